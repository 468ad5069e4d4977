"""The web application of ``vidspec review``: clips and their caption files on a page of this machine."""

from __future__ import annotations

import asyncio
import json
import mimetypes
import os
import sys
import threading
import traceback
from collections.abc import Callable
from typing import TYPE_CHECKING

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.responses import FileResponse, HTMLResponse, JSONResponse, Response
from starlette.routing import Mount, Route

from vidspec.display.pages.review import render_review
from vidspec.errors import UsageError, VidspecError
from vidspec.escaping import HALF_CHARACTER
from vidspec.runs.executors.local import caption_locally
from vidspec.runs.review import CaptionFiles, ChangedOnDiskError, RepeatedRun, ReviewedClip, review_rows
from vidspec.runs.store.caption_set import CAPTION_STATES
from vidspec.serve.config import ApiError, ServeConfig
from vidspec.serve.guard import guarded

if TYPE_CHECKING:
    from starlette.requests import Request

    from vidspec.captioner import Captioner
    from vidspec.config.schema import Profile
    from vidspec.runs.job import Job

#: Headers of every page: it may load and ask only this server, and tells its address, which has the token, to nobody.
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; connect-src 'self'; img-src data: 'self'; media-src 'self'; "
    "style-src 'unsafe-inline'; script-src 'unsafe-inline'; frame-ancestors 'none'; base-uri 'none'; "
    "form-action 'none'",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}
#: Most bytes of a request.
MAX_BODY = 4 << 20


class FreshCaptions:
    """Captions clips one at a time. Its captioner is loaded for the first clip, and again for another profile.

    Args:
        load: loads the captioner of a profile.
    """

    def __init__(self, load: Callable[[Profile], Captioner]) -> None:
        self._load, self._lock = load, threading.Lock()
        self._captioner: Captioner | None = None
        self._profile: Profile | None = None

    def caption(self, run: RepeatedRun) -> list[Job]:
        """Return the parts of a clip, each with its result.

        Raises:
            VidspecError: the models cannot be loaded.
        """
        with self._lock:
            if self._captioner is None or self._profile != run.profile:
                if self._captioner is not None:
                    self._captioner.close()
                    self._captioner = None
                self._captioner, self._profile = self._load(run.profile), run.profile
            return [*caption_locally(self._captioner, [run.job], run.spec, vision_worker=False)]

    def close(self) -> None:
        with self._lock:
            if self._captioner is not None:
                self._captioner.close()


class _Review:
    """The handlers. A request names a clip by its number only; no path in it is opened."""

    def __init__(self, files: CaptionFiles, recaptioner: FreshCaptions, title: str) -> None:
        self._files, self._recaptioner, self._title = files, recaptioner, title

    async def page(self, _request: Request) -> Response:
        rows = await asyncio.to_thread(lambda: review_rows(self._files, lambda number, _: f"clips/{number}"))
        page = render_review(rows, CAPTION_STATES, self._title, live=True)
        return HTMLResponse(page, headers=HEADERS)

    async def video(self, request: Request) -> Response:
        """Return a clip, or a range of its bytes."""
        path = self._files.jobs[self._number(request)].path
        if not os.path.isfile(path):
            raise ApiError("the clip is gone", status=404, code="gone")
        kind, _ = mimetypes.guess_type(path)
        known = kind if kind is not None and kind.startswith(("video/", "image/")) else "video/mp4"
        return FileResponse(path, media_type=known, headers={"X-Content-Type-Options": "nosniff"})

    async def save(self, request: Request) -> Response:
        """Write a caption, unless its file has changed since it was shown."""
        number, (text, version) = self._number(request), await _fields(request, "text", "version")
        return JSONResponse(_now(await asyncio.to_thread(self._files.save, number, text, version)))

    async def undo(self, request: Request) -> Response:
        """Put back what the last save of a clip replaced, unless its file has changed since."""
        number, (version,) = self._number(request), await _fields(request, "version")
        return JSONResponse(_now(await asyncio.to_thread(self._files.undo, number, version)))

    async def again(self, request: Request) -> Response:
        """Caption a clip as its run did, by another prompt; writes nothing."""
        number, (prompt,) = self._number(request), await _fields(request, "prompt")

        def caption() -> str:
            run = self._files.repeated(self._files.clip(number), prompt.strip() or None)
            return self._files.render(run, self._recaptioner.caption(run))

        return JSONResponse({"text": await asyncio.to_thread(caption)})

    def _number(self, request: Request) -> int:
        """Return the place of the clip that a request names, from 0."""
        name: str = request.path_params["number"]  # not as a number, which Python refuses to read if it is very long
        number = int(name) if name.isascii() and name.isdecimal() and len(name) < 10 else 0
        if not 1 <= number <= len(self._files.jobs):
            raise ApiError("there is no such clip", status=404, code="clip")
        return number - 1

    async def answer_error(self, _request: Request, error: Exception) -> Response:
        """Return an error as JSON; one of a file that has changed, with what it is now."""
        if isinstance(error, ChangedOnDiskError):
            refused = ApiError(f"{error.message}; save again to replace it", status=409, code="changed")
            return JSONResponse({**refused.content, "now": _now(error.clip)}, 409)
        return _answer(error)


def _answer(error: Exception) -> Response:
    if isinstance(error, ApiError):
        return error.response
    if isinstance(error, HTTPException):
        return ApiError(error.detail.lower(), status=error.status_code, code="http", headers=error.headers).response
    if isinstance(error, VidspecError):
        status = 409 if isinstance(error, UsageError) else 400
        return ApiError(str(error), status=status, code=error.kind).response
    traceback.print_exception(error, file=sys.stderr)
    return ApiError("internal error", status=500, code="internal").response


def _now(clip: ReviewedClip) -> dict[str, str | None]:
    return {"state": clip.state, "version": clip.version, "text": clip.text}


async def _fields(request: Request, *names: str) -> list[str]:
    """Return texts of a request's JSON object, whose content type pages of other hosts cannot send unasked."""
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        raise ApiError("the content type must be application/json", status=415)
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > MAX_BODY:
            raise ApiError(f"the request has more than {MAX_BODY} bytes", status=413, code="too_large")
    try:
        given = json.loads(body)
    except (ValueError, RecursionError):
        given = None
    found = [given.get(name) if isinstance(given, dict) else None for name in names]
    texts = [one for one in found if isinstance(one, str) and not HALF_CHARACTER.search(one)]
    if len(texts) < len(names):
        raise ApiError(f"the request must be a JSON object with the texts {', '.join(names)}")
    return texts


def build_review(
    files: CaptionFiles, recaptioner: FreshCaptions, config: ServeConfig, token: str, title: str
) -> Starlette:
    """Return the application.

    Args:
        token: first part of each address, which other programs and pages do not know.
    """
    review = _Review(files, recaptioner, title)
    routes = [
        Route("/", review.page),
        Route("/clips/{number}", review.video),
        Route("/clips/{number}/save", review.save, methods=["POST"]),
        Route("/clips/{number}/undo", review.undo, methods=["POST"]),
        Route("/clips/{number}/again", review.again, methods=["POST"]),
    ]
    handlers = {kind: review.answer_error for kind in (HTTPException, VidspecError, Exception)}
    guard = guarded(config, _answer)
    return Starlette(routes=[Mount(f"/{token}", routes=routes)], exception_handlers=handlers, middleware=[guard])
