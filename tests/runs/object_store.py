"""An object store on loopback: moto's server, behind a front that fails as often as it is told to."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable

from werkzeug.serving import make_server


class Front:
    """A WSGI application in front of another one.

    ``failing`` says what becomes of a request, by its method and path: None for nothing, ``500``, or ``drop``, after
    which the connection is cut.
    """

    def __init__(self, inner: Callable) -> None:
        self.inner = inner
        self.requests: list[tuple[str, str, str | None]] = []
        self.failing: Callable[[str, str], str | None] = lambda method, path: None

    def __call__(self, environ, start_response):
        method, path = environ["REQUEST_METHOD"], environ["PATH_INFO"]
        fate = self.failing(method, path)
        self.requests.append((method, path, fate))
        if fate == "drop":
            environ["werkzeug.socket"].shutdown(socket.SHUT_RDWR)
            start_response("200 OK", [])
            return []
        if fate == "500":
            start_response("500 Internal Server Error", [("Content-Type", "text/xml")])
            return [b"<Error><Code>InternalError</Code><Message>injected</Message></Error>"]
        return self.inner(environ, start_response)

    def count(self, method, part):
        """Return the number of requests whose path holds ``part``."""
        return sum(one[0] == method and part in one[1] for one in self.requests)


class Store:
    """The server in a thread; ``url`` is its address."""

    def __init__(self) -> None:
        from moto.server import DomainDispatcherApplication, create_backend_app

        self.front = Front(DomainDispatcherApplication(create_backend_app))
        self._server = make_server("127.0.0.1", 0, self.front, threaded=True)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
