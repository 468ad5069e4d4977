"""Requests that no route sees: of other hosts' pages, and without the key."""

from __future__ import annotations

import base64
import hmac
from collections.abc import Callable
from typing import TYPE_CHECKING

from starlette.authentication import AuthenticationBackend, AuthenticationError
from starlette.middleware import Middleware
from starlette.middleware.authentication import AuthenticationMiddleware

from vidspec.serve.config import ApiError, ServeConfig

if TYPE_CHECKING:
    from starlette.requests import HTTPConnection
    from starlette.responses import Response

#: Names of this machine, which a page of another host cannot use (DNS rebinding).
LOCAL = ("localhost", "127.0.0.1", "[::1]")


def guarded(config: ServeConfig, answer: Callable[[Exception], Response]) -> Middleware:
    """Return the middleware that refuses such requests; ``answer`` makes the response to a refusal."""
    return Middleware(AuthenticationMiddleware, backend=_Guard(config), on_error=lambda _, error: answer(error))


class _Refused(ApiError, AuthenticationError):
    """A request that no route sees."""


class _Guard(AuthenticationBackend):
    """The key for all but ``/health``, and no requests of other hosts' pages."""

    def __init__(self, config: ServeConfig) -> None:
        self._config = config

    async def authenticate(self, conn: HTTPConnection) -> None:
        """Return if a request may be answered.

        Raises:
            _Refused: it may not.
        """
        path, host, origin = conn.scope["path"], conn.headers.get("host", ""), conn.headers.get("origin")
        name = host.rpartition(":")[0] if ":" in host.rpartition("]")[2] else host
        if self._config.loopback and name.lower() not in LOCAL:
            raise _Refused("this server answers to localhost only", status=403, code="host")
        if origin is not None and origin.partition("://")[2] != host:
            raise _Refused("pages of other hosts may not use this server", status=403, code="origin")
        if path == "/health" or self._config.api_key is None:
            return
        kind, _, given = conn.headers.get("authorization", "").partition(" ")
        if kind.lower() == "basic":  # a browser's, whose user name does not matter
            try:
                given = base64.b64decode(given, validate=True).decode().partition(":")[2]
            except ValueError:
                given = ""
        if not hmac.compare_digest(given.encode(), self._config.api_key.encode()):
            scheme = {"WWW-Authenticate": "Basic" if path == "/" else "Bearer"}
            raise _Refused("a wrong or missing API key", status=401, code="invalid_api_key", headers=scheme)
