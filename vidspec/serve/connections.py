"""The HTTP server: connections of bounded number, closed if their clients neither send nor read. Knows no routes."""

from __future__ import annotations

import asyncio
import math
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

if TYPE_CHECKING:
    from starlette.applications import Starlette

    from vidspec.serve.config import ServeConfig

#: Connections that the system accepts, and asyncio takes at once; more must wait.
BACKLOG = 64
#: Most open connections, and those that are possible at any limit of descriptors.
MOST, FEWEST = 4096, 16
BUSY = b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 5\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"


def build_server(app: Starlette, config: ServeConfig) -> uvicorn.Server:
    """Return a server that is not running yet."""

    class Connection(_Connection):
        patience, most = config.patience, _most_connections()

    settings = uvicorn.Config(
        app,
        http=Connection,
        ws="none",
        backlog=BACKLOG,
        h11_max_incomplete_event_size=1 << 16,
        log_level="warning",
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=int(config.timeout) + 1,
        timeout_keep_alive=int(config.patience),
    )
    return uvicorn.Server(settings)


def _most_connections() -> int:
    """Return the connections for which there are descriptors: half of the free ones, for clips need some too."""
    try:
        import resource
    except ImportError:  # Windows
        return MOST
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit == resource.RLIM_INFINITY:
        return MOST
    used = 0
    with suppress(OSError):
        used = sum(1 for _ in Path("/proc/self/fd").iterdir())
    return min(MOST, max(FEWEST, (limit - used - BACKLOG) // 2))


class _Connection(H11Protocol):
    """A connection that ends if the headers of a request, or the reading of an answer, take too long.

    Uvicorn's own timer starts after an answer only, and its limit of connections counts after the headers. At the
    limit, the connection that has waited longest without a request is closed; if none waits, the new one is refused.

    Attributes:
        patience: seconds for the headers, and for reading.
        most: limit of open connections.
    """

    patience: float
    most: int

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._unread: asyncio.TimerHandle | None = None
        self.timeout_keep_alive_task = self.loop.call_later(self.patience, self.timeout_keep_alive_handler)
        if len(self.connections) > self.most:
            idle = [one for one in self.connections if isinstance(one, _Connection) and one._idle_until < math.inf]
            oldest = min(idle, key=lambda one: (one is self, one._idle_until), default=self)
            self.connections.discard(oldest)
            if oldest is self:
                transport.write(BUSY)
                transport.close()
            else:
                oldest.transport.abort()

    @property
    def _idle_until(self) -> float:
        return math.inf if (timer := self.timeout_keep_alive_task) is None else timer.when()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._unset_keepalive_if_required()
        self.resume_writing()

    def data_received(self, data: bytes) -> None:
        timer, self.timeout_keep_alive_task = self.timeout_keep_alive_task, None
        super().data_received(data)
        if timer is None:
            return
        if self.timeout_keep_alive_task is None and (self.cycle is None or self.cycle.response_complete):
            self.timeout_keep_alive_task = timer  # headers that come bit by bit have no more time
        else:
            timer.cancel()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._unread = self.loop.call_later(self.patience, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._unread is not None:
            self._unread.cancel()
