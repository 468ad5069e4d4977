"""Connections of clients that are slow, or many: over an application of the test, and over captions."""

import asyncio
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager, suppress

import httpx
import pytest
from starlette.responses import Response, StreamingResponse

from tests.serve.servers import asked, data_url, running, serving
from vidspec.captioner import Captioner
from vidspec.embedded.samples import shipped
from vidspec.serve import connections
from vidspec.serve.config import ServeConfig

PATIENCE = 0.3
#: Requests whose headers the application has got, and whether an endless answer was given up.
requests, abandoned = threading.Semaphore(0), threading.Event()
HEAD = b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 1000\r\n"


async def application(scope, receive, send):
    """``/endless``: an answer without end; else an empty one, after the body. Counts the requests that have come."""
    if scope["type"] == "lifespan":
        while (message := await receive())["type"] != "lifespan.shutdown":
            await send({"type": "lifespan.startup.complete"})
        await send({"type": f"{message['type']}.complete"})
        return
    requests.release()
    while (await receive()).get("more_body"):
        pass
    answer = StreamingResponse(endless()) if scope["path"] == "/endless" else Response()
    await answer(scope, receive, send)


async def endless():
    try:
        while True:
            yield b"x" * 65536
            await asyncio.sleep(0)
    finally:
        abandoned.set()


@pytest.fixture
def few(monkeypatch):
    """Room for four connections."""
    monkeypatch.setattr(connections, "_most_connections", lambda: 4)


@contextmanager
def application_at(patience=PATIENCE):
    with running(application, ServeConfig(patience=patience)) as url:
        yield url, int(url.rpartition(":")[2])


def connect(port, content=b""):
    made = socket.create_connection(("127.0.0.1", port), timeout=30)
    made.sendall(content)
    return closing(made)


def test_headers_that_do_not_come():
    with application_at() as (url, port), ExitStack() as opened:
        silent, half = (opened.enter_context(connect(port, content)) for content in (b"", HEAD))
        after = opened.enter_context(connect(port, b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\nGET / HT"))
        bit_by_bit = opened.enter_context(connect(port))
        with pytest.raises(OSError):
            for letter in HEAD * 10:
                bit_by_bit.sendall(bytes([letter]))
                time.sleep(PATIENCE / 10)
        assert silent.recv(100) == half.recv(100) == b""
        assert after.recv(1000).startswith(b"HTTP/1.1 200")
        while after.recv(1000):
            pass
        assert httpx.get(url).status_code == 200


@pytest.mark.full
def test_an_answer_that_is_not_read():
    abandoned.clear()
    with application_at() as (url, port), connect(port, b"GET /endless HTTP/1.1\r\nHost: localhost\r\n\r\n") as made:
        assert abandoned.wait(60)
        with suppress(ConnectionResetError):
            while made.recv(1 << 20):
                pass
        assert httpx.get(url).status_code == 200


def test_idle_connections_make_place(few):
    with application_at() as (url, port), ExitStack() as opened:
        idle = [opened.enter_context(connect(port)) for _ in range(20)]
        assert httpx.get(url).status_code == 200
        assert idle[0].recv(100) == b""


@pytest.mark.full
def test_connections_in_use_do_not(few):
    while requests.acquire(blocking=False):  # of other tests
        pass
    with application_at(patience=60.0) as (url, port), ExitStack() as opened:
        busy = [opened.enter_context(connect(port, HEAD + b"\r\n{")) for _ in range(4)]
        assert all(requests.acquire(timeout=60) for _ in busy)
        refused = httpx.get(url)
        assert refused.status_code == 503 and int(refused.headers["retry-after"]) > 0
        busy[0].sendall(b" " * 999)
        assert busy[0].recv(100).startswith(b"HTTP/1.1 200")
        assert httpx.get(url).status_code == 200


def test_the_most_connections(monkeypatch):
    resource = pytest.importorskip("resource")
    limits = {
        256: (16, 128),
        1024: (300, 500),
        1 << 20: (4096, 4096),
        resource.RLIM_INFINITY: (4096, 4096),
        8: (16, 16),
    }
    for limit, (least, most) in limits.items():
        monkeypatch.setattr(resource, "getrlimit", lambda _, limit=limit: (limit, limit))
        assert least <= connections._most_connections() <= most


@pytest.mark.full
def test_bodies_that_do_not_come_hold_no_place():
    overrides = {"video.frames": 2, "generate.max_new_tokens": 2, "models.device": "cpu"}
    head = HEAD.replace(b"POST /", b"POST /v1/chat/completions") + b"\r\n{"
    with (
        Captioner.from_profile("ar", overrides=overrides) as captioner,
        serving(captioner, max_waiting=1, patience=2.0) as (url, _),
        ThreadPoolExecutor(1) as pool,
        ExitStack() as opened,
    ):
        slow = [opened.enter_context(connect(int(url.rpartition(":")[2]), head)) for _ in range(3)]
        answer = pool.submit(httpx.post, f"{url}/v1/chat/completions", json=asked(data_url(shipped()[0])), timeout=60)
        assert answer.result().status_code == 200
        for one in slow:
            received = b"".join(iter(lambda one=one: one.recv(1000), b""))
            assert received.startswith(b"HTTP/1.1 408") and b"no part of the request" in received
