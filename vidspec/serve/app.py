"""The web application: routes, access, and the answers of ``POST /v1/chat/completions``."""

from __future__ import annotations

import asyncio
import json
import sys
import time
import traceback
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import FileResponse, HTMLResponse, JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from vidspec.aio import AsyncCaptioner
from vidspec.display.pages import words
from vidspec.display.pages.page import Page, section
from vidspec.display.pages.pictures import draw_clip
from vidspec.embedded.samples import shipped
from vidspec.errors import GenerationError, ProfileError, VidspecError
from vidspec.events.events import Finished, Opened, Prefilled
from vidspec.models.chat_request import ChatError, ChatRequest, parse_chat
from vidspec.models.request import CaptionRequest
from vidspec.serve.answers import ChatAnswer, Metrics
from vidspec.serve.config import ApiError, ServeConfig
from vidspec.serve.guard import guarded
from vidspec.serve.media import MediaReader

if TYPE_CHECKING:
    from starlette.types import Receive

    from vidspec.captioner import Captioner
    from vidspec.decoding.setup import DecodingSetup
    from vidspec.events.record import Caption
    from vidspec.video.base import Clip

T = TypeVar("T")

#: Sources that the page may load from.
POLICY = (
    "default-src 'none'; connect-src 'self'; img-src data:; media-src blob:; style-src 'unsafe-inline'; "
    "script-src 'unsafe-inline'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
)
#: Note on the page, and the frames that it shows at most.
DEMO = "The built-in models know drawn shapes only; their captions of real video are wrong."
MAX_PICTURES = 16
#: Unknown fields that are warned of, at most.
MAX_WARNINGS = 100
#: Bytes of all requests whose media have not been read yet; twice a body's while it is parsed.
MAX_RECEIVED = 1 << 30


class _Progress(NamedTuple):
    """Text that can be sent now, and the caption at the end."""

    text: str = ""
    caption: Caption | None = None


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
        """Run the readers and the captioner's thread; they end after the last request."""
        self.captioner.client.inputs.vision.start_worker()
        self.media = MediaReader(self.captioner.client, self.config)
        self.captions = AsyncCaptioner(self.captioner, self.config.batch)
        try:
            yield
        finally:
            await self.captions.drain()
            self.media.close()

    async def models(self, _request: Request) -> Response:
        model = {"id": self.config.name, "object": "model", "created": 0, "owned_by": "vidspec"}
        return JSONResponse({"object": "list", "data": [model]})

    async def health(self, _request: Request) -> Response:
        return JSONResponse({"status": "ok"})

    async def show_metrics(self, _request: Request) -> Response:
        slab = self.captioner.client.setup.target.model.decoder.slab
        now = {"requests_waiting": self.waiting, "requests_running": self.running}
        now |= {"kv_used_bytes": slab.used * slab.entry_bytes, "kv_capacity_bytes": slab.capacity * slab.entry_bytes}
        return PlainTextResponse(self.metrics.text({**now, "kept_bytes": self.media.recent.nbytes}))

    async def page(self, _request: Request) -> Response:
        profile = self.captioner.client.profile
        samples, prompt = [clip.name for clip in shipped()], profile.generate.prompt
        lead, ask = section("lead", text=self.config.name, faint=True), section("ask", samples=samples, prompt=prompt)
        page = Page("vidspec", [ask], lead, DEMO if profile.models.pair else "", "ask.js", policy="")
        return HTMLResponse(page.render(), headers={"Content-Security-Policy": POLICY})

    async def sample(self, request: Request) -> Response:
        clip = next((clip for clip in shipped() if clip.name == request.path_params["name"]), None)
        if clip is None:
            raise ApiError("there is no such sample", status=404)
        return FileResponse(clip, media_type="video/mp4")

    async def chat(self, request: Request) -> Response:
        deadline = time.monotonic() + self.config.timeout
        self._require_place()  # before a large body is sent, too
        body, waits, parsed = bytearray(), 0, 0
        try:
            await self._receive(request, body)
            self._require_place()
            waits, parsed = 1, len(body)
            self.waiting += waits
            self._count_received(parsed)
            chat = await self._parse(body)
            setup = await asyncio.to_thread(self._setup_of, chat)
        finally:
            self.waiting -= waits  # _answer counts on
            self._received -= len(body) + parsed
            del body
        answer = ChatAnswer(self.config.name, setup.profile.generate.stop, details=chat.caption.estimates_speedup)
        progress = self._answer(chat, answer, deadline)
        if not chat.body.stream:
            caption = await _while_connected(request.receive, _last_caption(progress))
            return JSONResponse(answer.message(caption))
        await _while_connected(request.receive, anext(progress))
        lines = self._lines(chat, answer, progress)
        return StreamingResponse(lines, headers={"Cache-Control": "no-store"}, media_type="text/event-stream")

    def _require_place(self) -> None:
        if self.waiting >= self.config.max_waiting:
            raise ApiError("the server is busy", status=503, code="busy")

    def _count_received(self, size: int) -> None:
        self._received += size
        if self._received > MAX_RECEIVED:
            raise ApiError("the server is busy", status=503, code="busy")

    async def _parse(self, body: bytearray) -> ChatRequest:
        chat = await asyncio.to_thread(parse_chat, body, self._warn, self.config.max_frames)
        if chat.body.model not in (None, "", self.config.name):
            message = f"there is no such model; this is {self.config.name}"
            raise ApiError(message, "model", status=404, code="model_not_found")
        return chat

    def _setup_of(self, chat: ChatRequest) -> DecodingSetup:
        try:
            return self.captioner.client.setup_of(chat.caption)
        except ProfileError as error:
            error.spelling = chat.spell
            raise ApiError(error.message, chat.named.get((error.field or "").removeprefix("generate."))) from error

    async def _receive(self, request: Request, body: bytearray) -> None:
        """Add the request's body to ``body``, of bounded size and without long pauses, and count its bytes."""
        if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
            raise ApiError("the content type must be application/json", status=415)
        if (coding := request.headers.get("content-encoding", "identity").strip().lower()) != "identity":
            raise ApiError(f"the content encoding {coding[:40]} is not read: send plain JSON", status=415)
        most = self.config.max_body
        large = ApiError(f"the request has more than {most} bytes", status=413, code="too_large")
        length = request.headers.get("content-length", "0")
        if not length.isdecimal() or len(length) > 15 or int(length) > most:
            raise large
        clock = asyncio.get_running_loop().time
        end = clock() + self.config.timeout
        try:
            async with asyncio.timeout(self.config.patience) as pause:
                async for chunk in request.stream():
                    body += chunk
                    self._count_received(len(chunk))
                    if len(body) > most:
                        raise large
                    pause.reschedule(min(end, clock() + self.config.patience))
        except TimeoutError:
            if clock() >= end:
                raise self._late() from None
            message = f"no part of the request came for {self.config.patience:g} s"
            raise ApiError(message, status=408, code="timeout", headers={"Connection": "close"}) from None

    def _warn(self, name: str) -> None:
        if name not in self._warned and len(self._warned) < MAX_WARNINGS:
            self._warned.add(name)
            self._note(f"note: requests have the field {name[:60]!r}, which is ignored")

    def _late(self) -> ApiError:
        message = f"not answered within {self.config.timeout:g} s"
        return ApiError(message, status=504, code="timeout", headers={"X-Should-Retry": "false"})

    async def _answer(self, chat: ChatRequest, answer: ChatAnswer, deadline: float) -> AsyncGenerator[_Progress, None]:
        """Yield the progress of a request from ``Prefilled`` on. Closing the iterator frees its place.

        A request counts as waiting until the captioner takes it, then as running; its bytes until its media are read.
        """
        request: CaptionRequest | None = None
        waits, received = True, chat.nbytes
        self.waiting, self._received = self.waiting + 1, self._received + received

        async def read() -> CaptionRequest:
            nonlocal request, received
            request = await self.media.read(chat)
            self._received, received = self._received - received, 0
            return request

        try:
            async with aclosing(self.captions.run(read)) as events:
                while True:
                    event = await self._in_time(anext(events), deadline)
                    assert request is not None and request.clip is not None
                    if isinstance(event, Opened) and waits:
                        waits, self.waiting, self.running = False, self.waiting - 1, self.running + 1
                    if isinstance(event, Prefilled) and not answer.prompt_tokens:
                        self.metrics.add_first_token(time.monotonic() - deadline + self.config.timeout)
                        if chat.caption.estimates_speedup:
                            answer.frames_html = await asyncio.to_thread(_render_frames, request.clip, event)
                    caption = event.caption if isinstance(event, Finished) else None
                    if caption is not None:
                        self.metrics.add_caption(caption)
                        await self.media.recent.add(request)
                    text = await asyncio.to_thread(answer.add, event) if answer.stop else answer.add(event)
                    if answer.prompt_tokens:
                        yield _Progress(text, caption)
                    if caption is not None:
                        return
        finally:
            request = None  # a cancelled stream's frames are kept until a collection, but not its clip
            self.waiting, self.running = self.waiting - waits, self.running - (not waits)
            self._received -= received

    async def _in_time(self, work: Awaitable[T], deadline: float) -> T:
        try:
            async with asyncio.timeout(max(0.0, deadline - time.monotonic())):
                return await work
        except TimeoutError:
            raise self._late() from None

    async def _lines(
        self, chat: ChatRequest, answer: ChatAnswer, progress: AsyncGenerator[_Progress, None]
    ) -> AsyncGenerator[str, None]:
        yield answer.chunk({"role": "assistant", "content": ""})
        try:
            async with aclosing(progress):
                async for text, caption in progress:
                    if text:
                        yield answer.chunk({"content": text})
                    if caption is not None:
                        yield answer.chunk({}, caption)
                        if chat.body.stream_options.include_usage:
                            yield answer.usage_chunk(caption)
        except Exception as error:
            yield f"data: {json.dumps(self.fail(error).content)}\n\n"
        yield "data: [DONE]\n\n"

    def fail(self, error: Exception) -> ApiError:
        """Return the answer to an error, and count it. Messages of bugs go to the log only."""
        if isinstance(error, ApiError):
            reply = error
        elif isinstance(error, ChatError):
            reply = ApiError(error.message, error.param, status=error.status, code=error.code)
        elif isinstance(error, HTTPException):  # no such route, or another method
            reply = ApiError(error.detail.lower(), status=error.status_code, code="http", headers=error.headers)
        elif isinstance(error, VidspecError) and not (isinstance(error, GenerationError) and error.kind == "internal"):
            param = "max_tokens" if error.kind in ("json", "reasoning") else None
            reply = ApiError(error.message, param, status=503 if error.kind == "memory" else 400, code=error.kind)
        else:
            if not isinstance(error, GenerationError):  # whose cause has been printed
                traceback.print_exception(error, file=sys.stderr)
            reply = ApiError("internal error", status=500, code="internal")
        if reply.code == "memory":
            self.media.recent.clear()
        self.metrics.errors[reply.code or "invalid"] += 1
        return reply

    async def answer_error(self, _request: Request, error: Exception) -> Response:
        """Return an error in OpenAI's shape."""
        if isinstance(error, ClientDisconnect):
            self.metrics.errors["gone"] += 1
            return Response(status_code=499)
        return self.fail(error).response


def _render_frames(clip: Clip, seen: Prefilled) -> str:
    """Return the frames of a clip with what the draft saw of them, as the page of a report has them."""
    pictures = draw_clip(clip, seen, MAX_PICTURES)
    sight = words.text_only(seen.visual_tokens) if seen.is_draft_text_only else ""
    if any(one.veil for one in pictures):
        sight = words.VEILED
    return section("lead", text=sight) + section("pictures", pictures=pictures)


async def _last_caption(progress: AsyncGenerator[_Progress, None]) -> Caption:
    async with aclosing(progress):
        async for _, caption in progress:
            if caption is not None:
                return caption
    raise AssertionError("a stream ends with Finished")


async def _while_connected(receive: Receive, work: Awaitable[T]) -> T:
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
        return task.result()
    finally:
        for one in (task, leaving):
            one.cancel()
        await asyncio.gather(task, leaving, return_exceptions=True)
        del task  # its exception's traceback refers to this frame: a cycle that keeps the request


def build_app(captioner: Captioner, config: ServeConfig, note: Callable[[str], None] = lambda line: None) -> Starlette:
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
    handlers = {kind: api.answer_error for kind in (HTTPException, VidspecError, ClientDisconnect, Exception)}
    guard = guarded(config, lambda error: api.fail(error).response)
    return Starlette(routes=routes, lifespan=api.lifespan, exception_handlers=handlers, middleware=[guard])
