"""The web application: routes, access, and the answers of ``POST /v1/chat/completions``."""

from __future__ import annotations

import asyncio
import base64
import hmac
import json
import sys
import time
import traceback
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import aclosing, asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any, TypeVar

from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from vidspec.config import profiles
from vidspec.display.pages.page import render_page
from vidspec.display.pages.pictures import draw_clip
from vidspec.embedded.samples import shipped
from vidspec.errors import GenerationError, ProfileError, VidspecError
from vidspec.events.events import Event, Finished, InputsReleased, Opened, Prefilled
from vidspec.models.request import CaptionRequest
from vidspec.serve.answers import ChatAnswer, Metrics
from vidspec.serve.chat import ChatRequest, parse_chat
from vidspec.serve.config import ApiError, ServeConfig
from vidspec.serve.media import MediaReader
from vidspec.serve.service import CaptionService

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

    from vidspec.captioner import Captioner
    from vidspec.events.record import Caption
    from vidspec.video.base import Clip

__all__ = ["build_app"]

T = TypeVar("T")

#: Names of this machine, which a page of another host cannot use (DNS rebinding).
LOCAL = ("localhost", "127.0.0.1", "[::1]", "testserver")
#: What the page may load.
POLICY = (
    "default-src 'none'; connect-src 'self'; img-src data:; media-src blob:; style-src 'unsafe-inline'; "
    "script-src 'unsafe-inline'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
)
#: Note on the page, and the frames that it shows at most.
DEMO = "The built-in models know drawn shapes only; their captions of real video are wrong."
MAX_PICTURES = 16
#: Unknown fields that are warned of, at most.
MAX_WARNINGS = 100
#: Clips that are read or wait, with their frames in memory, and seconds after which a refused client may try again.
AHEAD, RETRY_AFTER = 8, 5
#: Bytes of all requests that are being received.
MAX_RECEIVED = 1 << 30


class _Api:
    """The handlers, and their counts.

    Attributes:
        waiting, running: requests before and after the captioner has taken them.
    """

    def __init__(self, captioner: Captioner, config: ServeConfig, note: Callable[[str], None]) -> None:
        self.captioner, self.config, self._note = captioner, config, note
        self.metrics = Metrics()
        self.waiting = self.running = self._received = 0
        self._warned: set[str] = set()

    @asynccontextmanager
    async def lifespan(self, _app: Starlette) -> AsyncIterator[None]:
        """Run the readers and the service; they end after the last request."""
        self.captioner.start_vision_worker()
        self.media = MediaReader(self.captioner, self.config)
        self.service = CaptionService(self.captioner, self.config.batch)
        self._ahead = asyncio.Semaphore(AHEAD)
        try:
            yield
        finally:
            await asyncio.to_thread(self.service.close)
            self.media.close()

    async def models(self, _request: Request) -> Response:
        """List the model."""
        model = {"id": self.config.name, "object": "model", "created": 0, "owned_by": "vidspec"}
        return JSONResponse({"object": "list", "data": [model]})

    async def health(self, _request: Request) -> Response:
        """Tell that the server answers."""
        return JSONResponse({"status": "ok"})

    async def show_metrics(self, _request: Request) -> Response:
        """Show the counters."""
        return PlainTextResponse(self.metrics.text(self.waiting, self.running, self.service.load))

    async def page(self, _request: Request) -> Response:
        """Return the page, made of the parts of reports."""
        samples, prompt = [clip.name for clip in shipped()], self.captioner.profile.generate.prompt
        content = {"model": self.config.name, "samples": samples, "prompt": prompt}
        text = render_page("serve.html", title="vidspec", demo=DEMO if self.captioner.embedded else "", **content)
        return HTMLResponse(text, headers={"Content-Security-Policy": POLICY})

    async def sample(self, request: Request) -> Response:
        """Return a sample clip."""
        clip = next((clip for clip in shipped() if clip.name == request.path_params["name"]), None)
        if clip is None:
            raise ApiError("there is no such sample", status=404)
        return Response(clip.read_bytes(), media_type="video/mp4")

    async def chat(self, request: Request) -> Response:
        """Answer a chat request."""
        began = time.monotonic()
        if self.waiting >= self.config.max_waiting:
            raise ApiError("the server is busy", status=503, code="busy")
        self.waiting += 1  # until the captioner takes it, see _events
        events: AsyncGenerator[Event, None] | None = None
        try:
            chat = await self._parse(request)
            answer = ChatAnswer(self.config.name, self._stops(chat), details=chat.details)
            events = self._events(chat, answer, began)
        finally:
            if events is None:
                self.waiting -= 1
        if not chat.stream:
            caption = await _while_connected(request.receive, self._collect(events, answer))
            return JSONResponse(answer.message(caption))
        first = await _while_connected(request.receive, _first(events))
        return _Stream(self._lines(chat, answer, first, events), self._fail)

    async def _parse(self, request: Request) -> ChatRequest:
        if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
            raise ApiError("the content type must be application/json", status=415)
        content = await self._body(request)
        try:
            body = await asyncio.to_thread(json.loads, content)
        except (ValueError, RecursionError):
            raise ApiError("the request is no JSON") from None
        del content
        chat = parse_chat(body, self._warn)
        if chat.model not in (None, "", self.config.name):
            raise ApiError(
                f"there is no such model; this is {self.config.name}", "model", status=404, code="model_not_found"
            )
        try:
            changed = {f"generate.{key}": value for key, value in chat.generate.items()}
            await asyncio.to_thread(profiles.override, self.captioner.profile, changed)
        except ProfileError as error:
            key = next((key for key in chat.generate if f"generate.{key}" in error.message), "")
            name = chat.named.get(key)
            raise ApiError(error.message.replace(f"generate.{key}", name or ""), name) from error
        return chat

    async def _body(self, request: Request) -> bytes:
        """Return the body, of bounded size and within the time of a request."""
        most = self.config.max_body
        large = ApiError(f"the request has more than {most} bytes", status=413, code="too_large")
        length = request.headers.get("content-length", "0")
        if not length.isdecimal() or len(length) > 15 or int(length) > most:
            raise large
        body = bytearray()
        try:
            async with asyncio.timeout(self.config.timeout):
                async for chunk in request.stream():
                    body += chunk
                    self._received += len(chunk)
                    if len(body) > most:
                        raise large
                    if self._received > MAX_RECEIVED:
                        raise ApiError("the server is busy", status=503, code="busy")
        except TimeoutError:
            raise self._late() from None
        finally:
            self._received -= len(body)
        return bytes(body)

    def _warn(self, name: str) -> None:
        if name not in self._warned and len(self._warned) < MAX_WARNINGS:
            self._warned.add(name)
            self._note(f"note: requests have the field {name[:60]!r}, which is ignored")

    def _stops(self, chat: ChatRequest) -> tuple[str, ...]:
        stop = chat.generate.get("stop", self.captioner.profile.generate.stop)
        return stop if isinstance(stop, tuple) else ()

    async def _events(self, chat: ChatRequest, answer: ChatAnswer, began: float) -> AsyncGenerator[Event, None]:
        """Yield the events of a request, from ``Prefilled`` on. Closing the iterator frees its place.

        A request counts as waiting until the captioner takes it, then as running.
        """
        ticket, waits, reads, answers = None, True, False, False
        deadline = began + self.config.timeout
        try:
            await self._in_time(self._ahead.acquire(), deadline)
            reads = True
            clip = await self._in_time(self.media.read(chat), deadline)
            ticket = self.service.submit(
                CaptionRequest(
                    chat.media.field,
                    clip,
                    (chat.prompt.strip() and chat.prompt) or None,
                    chat.system,
                    earlier=chat.earlier,
                    generate=chat.generate,
                    estimates_speedup=chat.details,
                )
            )
            shown = clip if chat.details else None
            del clip
            while True:
                event = await self._in_time(ticket.events.get(), deadline)
                if isinstance(event, Exception):
                    raise event
                if isinstance(event, Opened):
                    if waits:
                        waits, self.waiting, self.running = False, self.waiting - 1, self.running + 1
                    continue
                if isinstance(event, Prefilled) and not answers:
                    answers = True
                    self.metrics.add_first_token(time.monotonic() - began)
                if isinstance(event, InputsReleased) and reads:
                    reads = False
                    self._ahead.release()
                if isinstance(event, Prefilled) and shown is not None:
                    answer.frames_html, shown = await asyncio.to_thread(_render_frames, shown, event), None
                if isinstance(event, Finished):
                    self.metrics.add_caption(event.caption)
                yield event
                if isinstance(event, Finished):
                    return
        finally:
            if ticket is not None:
                self.service.abandon(ticket)
            if reads:
                self._ahead.release()
            self.waiting, self.running = self.waiting - waits, self.running - (not waits)

    async def _in_time(self, work: Awaitable[T], deadline: float) -> T:
        try:
            return await asyncio.wait_for(work, max(0.0, deadline - time.monotonic()))
        except TimeoutError:
            raise self._late() from None

    def _late(self) -> ApiError:
        return ApiError(f"not answered within {self.config.timeout:g} s", status=504, code="timeout")

    async def _collect(self, events: AsyncGenerator[Event, None], answer: ChatAnswer) -> Caption:
        async with aclosing(events):
            async for event in events:
                if isinstance(event, Finished):
                    return event.caption
                answer.add(event)
        raise AssertionError("a stream ends with Finished")

    async def _lines(
        self, chat: ChatRequest, answer: ChatAnswer, first: Event, events: AsyncGenerator[Event, None]
    ) -> AsyncGenerator[str, None]:
        """Yield the lines of a stream."""
        async with aclosing(events):
            answer.add(first)
            yield answer.chunk({"role": "assistant", "content": ""})
            async for event in events:
                if text := answer.add(event):
                    yield answer.chunk({"content": text})
                if isinstance(event, Finished):
                    caption = event.caption
                    yield answer.chunk({}, caption)
                    if chat.usage:
                        yield answer.usage_chunk(caption)
            yield "data: [DONE]\n\n"

    def _fail(self, error: Exception) -> ApiError:
        """Return the answer to an error, and count it. Messages of bugs go to the log only."""
        if isinstance(error, GenerationError) and error.kind == "internal":
            told = ApiError("internal error", status=500, code="internal")
        elif isinstance(error, VidspecError):
            status = 503 if error.kind == "memory" else 400
            told = ApiError(error.message, "max_tokens" if error.kind == "json" else None, status=status)
            told.code = error.kind
        elif isinstance(error, ApiError):
            told = error
        elif isinstance(error, HTTPException):  # no such route, or another method
            told = ApiError(error.detail.lower(), status=error.status_code, code="http")
        else:
            traceback.print_exception(error, file=sys.stderr)
            told = ApiError("internal error", status=500, code="internal")
        self.metrics.errors[told.code or "invalid"] += 1
        return told

    async def answer_error(self, _request: Request, error: Exception) -> Response:
        """Return an error in OpenAI's shape."""
        if isinstance(error, ClientDisconnect):
            self.metrics.errors["gone"] += 1
            return Response(status_code=499)
        told = self._fail(error)
        headers = dict(getattr(error, "headers", None) or {})
        if told.status == 503:
            headers["Retry-After"] = str(RETRY_AFTER)
        if told.code == "timeout":
            headers["X-Should-Retry"] = "false"
        return JSONResponse(told.content, told.status, headers)


class _Stream(Response):
    """A response of server-sent events; a client that goes away closes its source."""

    def __init__(self, lines: AsyncGenerator[str, None], fail: Callable[[Exception], ApiError]) -> None:
        self._lines, self._fail = lines, fail
        super().__init__(media_type="text/event-stream", headers={"Cache-Control": "no-store"})
        del self.headers["content-length"]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def body(text: str, *, more: bool = True) -> None:
            await send({"type": "http.response.body", "body": text.encode(), "more_body": more})

        async def produce() -> None:
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            async with aclosing(self._lines):
                try:
                    async for line in self._lines:
                        await body(line)
                except OSError:
                    raise ClientDisconnect from None
                except Exception as error:
                    await body(f"data: {json.dumps(self._fail(error).content)}\n\ndata: [DONE]\n\n")
            await body("", more=False)

        with suppress(ClientDisconnect):
            await _while_connected(receive, produce())


def _render_frames(clip: Clip, seen: Prefilled) -> str:
    """Return the frames of a clip with what the draft saw of them, as the page of a report has them."""
    return render_page("frames.html", pictures=draw_clip(clip, seen, MAX_PICTURES))


async def _first(events: AsyncGenerator[Event, None]) -> Event:
    try:
        return await anext(events)
    except BaseException:
        await events.aclose()
        raise


async def _while_connected(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """Return the result of work, or cancel it once the client has gone.

    Raises:
        ClientDisconnect: the client has gone.
    """

    async def gone() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass

    task, leaving = asyncio.ensure_future(work), asyncio.ensure_future(gone())
    try:
        await asyncio.wait({task, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientDisconnect
        return await task
    finally:
        for one in (task, leaving):
            one.cancel()
        await asyncio.gather(task, leaving, return_exceptions=True)


class _Guard:
    """Middleware: the key for all but ``/health``, and no requests of other hosts' pages."""

    def __init__(self, app: ASGIApp, config: ServeConfig) -> None:
        self._app, self._config = app, config

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and (error := self._refuse(scope["path"], Headers(scope=scope))) is not None:
            headers = {"WWW-Authenticate": "Basic" if scope["path"] == "/" else "Bearer"} if error.status == 401 else {}
            await JSONResponse(error.content, error.status, headers)(scope, receive, send)
            return
        await self._app(scope, receive, send)

    def _refuse(self, path: str, headers: Headers) -> ApiError | None:
        host, origin = headers.get("host", ""), headers.get("origin")
        name = host.rpartition(":")[0] if ":" in host.rpartition("]")[2] else host
        if self._config.loopback and name.lower() not in LOCAL:
            return ApiError("this server answers to localhost only", status=403, code="host")
        if origin is not None and origin.partition("://")[2] != host:
            return ApiError("pages of other hosts may not use this server", status=403, code="origin")
        if path == "/health" or self._config.api_key is None:
            return None
        kind, _, given = headers.get("authorization", "").partition(" ")
        if kind.lower() == "basic":  # a browser's, whose user name does not matter
            try:
                given = base64.b64decode(given, validate=True).decode().partition(":")[2]
            except ValueError:
                given = ""
        if hmac.compare_digest(given.encode(), self._config.api_key.encode()):
            return None
        return ApiError("a wrong or missing API key", status=401, code="invalid_api_key")


def build_app(captioner: Captioner, config: ServeConfig, note: Callable[[str], None] = lambda line: None) -> ASGIApp:
    """Return the application.

    Args:
        captioner: its models; not closed.
        config: settings.
        note: shows a line to the operator.
    """
    api = _Api(captioner, config, note)
    routes = [
        Route("/v1/chat/completions", api.chat, methods=["POST"]),
        Route("/v1/models", api.models),
        Route("/health", api.health),
        Route("/metrics", api.show_metrics),
    ]
    if config.page:
        routes += [Route("/", api.page), Route("/samples/{name}", api.sample)]
    handlers = {kind: api.answer_error for kind in (ApiError, HTTPException, VidspecError, ClientDisconnect, Exception)}
    app = Starlette(routes=routes, lifespan=api.lifespan, exception_handlers=handlers)
    return _Guard(app, config)
