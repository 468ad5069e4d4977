"""The thread that captions requests as they come, between the event loop of the server and ``Captioner.serve``."""

from __future__ import annotations

import asyncio
import sys
import threading
import traceback
from collections import deque
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING, TypeAlias

from vidspec.errors import ClosedError, GenerationError
from vidspec.events.events import Event, LoopLoad
from vidspec.events.wake import WakeEvent

if TYPE_CHECKING:
    from vidspec.captioner import Captioner
    from vidspec.models.request import CaptionRequest

__all__ = ["CaptionService", "Ticket"]

#: Events of a request, or the exception that ended it.
EventQueue: TypeAlias = "asyncio.Queue[Event | Exception]"


class Ticket:
    """A submitted request: its events, and the flag by which it is abandoned."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.abandoned = threading.Event()
        self._events: EventQueue = asyncio.Queue()
        self._loop = loop

    async def next_event(self) -> Event:
        """Wait for the next event.

        Raises:
            Exception: the one that ended the request.
        """
        event = await self._events.get()
        if isinstance(event, Exception):
            try:
                raise event
            finally:
                del event  # its traceback refers to this frame: a cycle that keeps the request
        return event

    def deliver(self, event: Event | Exception) -> None:
        """Add an event, from any thread."""
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._events.put_nowait, event)


class CaptionService:
    """Captions submitted requests in a thread of its own, several at a time.

    It is the source of ``Captioner.serve``: ``over`` and ``take`` are called by the service's thread only.

    Args:
        captioner: its models.
        batch: most clips at once; None to choose by memory and measured times.

    Attributes:
        load: the last report of the loop.
    """

    def __init__(self, captioner: Captioner, batch: int | None = None) -> None:
        self._captioner, self._batch = captioner, batch
        self._wake = WakeEvent()
        self._arrived: deque[CaptionRequest] = deque()
        self._tickets: dict[object, Ticket] = {}
        self._closing = self._captioner_closed = False
        self.load: LoopLoad | None = None
        self._thread = threading.Thread(target=self._run, name="captions", daemon=True)
        self._thread.start()

    @property
    def over(self) -> bool:
        """True once the service is closing and no request is left."""
        return self._closing and not self._arrived

    def take(self) -> CaptionRequest | None:
        """Return the next request that is not abandoned; None if there is none now."""
        while self._arrived:
            request = self._arrived.popleft()
            if request.abandoned is None or not request.abandoned.is_set():
                return request
        return None

    def submit(self, request: CaptionRequest) -> Ticket:
        """Submit a request whose clip has been read, from the event loop."""
        ticket = Ticket(asyncio.get_running_loop())
        self._tickets[ticket] = ticket
        if self._captioner_closed:
            ticket.deliver(ClosedError())
        self._arrived.append(replace(request, key=ticket, abandoned=ticket.abandoned))
        self._wake.set()
        return ticket

    def abandon(self, ticket: Ticket) -> None:
        """Free the place of a request; no effect on one that has ended."""
        ticket.abandoned.set()
        self._tickets.pop(ticket, None)
        self._wake.set()

    def close(self) -> None:
        """End the thread after the requests that are left."""
        self._closing = True
        self._wake.set()
        self._thread.join()

    def _run(self) -> None:
        while not self.over:
            try:
                with closing(self._captioner.serve(self, batch=self._batch, wake=self._wake)) as events:
                    for key, event in events:
                        if isinstance(event, LoopLoad):
                            self.load = event
                        elif (ticket := self._tickets.get(key)) is not None:
                            ticket.deliver(event)
            except ClosedError as error:
                self._captioner_closed = True
                self._fail_all(error)
                return
            except Exception:  # a bug: the clips in flight are lost, the server is not
                traceback.print_exc(file=sys.stderr)
                self._fail_all(GenerationError("the pass failed", kind="internal"))

    def _fail_all(self, error: Exception) -> None:
        for ticket in list(self._tickets.values()):
            ticket.deliver(error)
