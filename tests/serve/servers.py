"""A server in a thread of the test, on a port of its own."""

import asyncio
import base64
import socket
import threading
from contextlib import contextmanager
from pathlib import Path

from vidspec.serve.app import build_app
from vidspec.serve.config import ServeConfig
from vidspec.serve.connections import BACKLOG, build_server


@contextmanager
def serving(captioner, **settings):
    """The URL of a server, while it runs, and its notes."""
    notes = []
    config = ServeConfig(**{"name": "test", "readers": 1, **settings})
    with running(build_app(captioner, config, notes.append), config) as url:
        yield url, notes


@contextmanager
def running(app, config):
    """The URL of an application's server, while it runs."""
    server = build_server(app, config)
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen(BACKLOG)
    thread = threading.Thread(target=lambda: asyncio.run(server.serve(sockets=[listener])))
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()
        listener.close()


def data_url(content: bytes | Path, kind: str = "video/mp4") -> str:
    content = content.read_bytes() if isinstance(content, Path) else content
    return f"data:{kind};base64,{base64.b64encode(content).decode()}"


def asked(*urls, text="Describe this video in detail.", kind="video_url", **more):
    """The body of a request."""
    parts = [{"type": kind, kind: {"url": url}} for url in urls]
    return {
        "model": "test",
        "messages": [{"role": "user", "content": [*parts, {"type": "text", "text": text}]}],
        **more,
    }
