"""Requests of OpenAI's batch API: lines with ``custom_id`` and ``body``, each a clip with its own prompt and options.

``--format openai-batch`` writes the answers in the API's form.
"""

from __future__ import annotations

import base64
import json
import os
import re
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

from vidspec.errors import UsageError, VideoError, VidspecError
from vidspec.runs.access import is_url
from vidspec.runs.allowance import Allowance
from vidspec.runs.job import Job, JobOptions, MemberSource
from vidspec.runs.sources.base import ListOptions, Source, sources
from vidspec.runs.sources.frames import write_frames
from vidspec.runs.stores import copy, join_url

if TYPE_CHECKING:
    from vidspec.models.chat_request import ChatRequest, Media

__all__ = ["BatchSource", "is_batch"]

#: Maximum bytes of a line, whose media may be base64.
MAX_LINE = 1 << 30
#: The endpoint whose requests are read.
ENDPOINT = "/v1/chat/completions"
_MISPLACED = "media must be data:, http:, https: or file: URLs"


def is_batch(path: str) -> bool:
    """Return True if the first line of a file is a request of a batch."""
    if not os.path.isfile(path):
        return False
    try:
        with open(path, "rb") as file:
            first = next((line for line in iter(lambda: file.readline(MAX_LINE), b"") if line.strip()), b"")
        row = json.loads(first) if b'"custom_id"' in first else None
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(row, dict) and {"custom_id", "body"} <= row.keys()


@sources.register("openai_batch")
class BatchSource(Source):
    """Requests of :data:`ENDPOINT`. Media in base64 stay in the file until their clip is read."""

    is_shard = False

    def list(self, file: Job, options: ListOptions) -> Iterator[Job]:
        seen = set[str]()
        with open(file.path, "rb") as lines:
            at, number = 0, 0
            while line := lines.readline(MAX_LINE):
                number += 1
                if line.strip():
                    where = f"{file.path}, line {number}"
                    row = _read_row(line, where)
                    name = str(row["custom_id"])
                    if name in seen:
                        raise UsageError(f"{where}: the custom_id {name} is there twice")
                    seen.add(name)
                    yield self._job(file.path, row, MemberSource(file.path, at, len(line), kind="openai_batch"))
                at += len(line)

    def open(self, job: Job, folder: str) -> bytes | str:
        assert job.source is not None
        try:
            with open(job.source.url, "rb") as lines:
                lines.seek(job.source.start)
                row = _read_row(lines.read(job.source.size), job.path)
        except OSError as error:
            raise VideoError(f"{job.path}: cannot be read: {error.strerror}", kind="unreadable") from None
        if row["custom_id"] != job.id:
            raise VideoError(f"{job.path}: {job.source.url} was changed during the run", kind="truncated")
        media = _parse_request(row).media
        allowance = Allowance(job.path, self.limits)
        pictures = (self._fetch(job, url, folder, allowance) for url in media.urls)
        if media.kind == "file" or len(media.urls) == 1:
            return next(pictures)
        file, rate = os.path.join(folder, "clip.nut"), Fraction(media.fps).limit_denominator(1001)
        write_frames(file, ((f"frame {number}", one) for number, one in enumerate(pictures, 1)), rate, job.path)
        return file

    def _job(self, batch: str, row: dict[str, object], source: MemberSource) -> Job:
        """Return the clip of a line, with the error of a request that cannot be answered."""
        name = str(row["custom_id"])
        job = Job(f"{batch}/{quote(name, safe='')}", root=os.path.dirname(batch) or ".", id=name, shard=batch)
        try:
            chat = _parse_request(row)
            caption = chat.caption
            job.prompt = caption.prompt
            job.options = JobOptions(caption.system, caption.earlier, caption.generate, chat.sampling)
            self._place(job, chat.media, source)
        except VidspecError as error:
            message = error.message if error.message.startswith(batch) else f"{job.path}: {error.message}"
            job.error = VideoError(message, hint=error.hint, kind=error.kind)
        except ValueError as error:
            job.error = VideoError(f"{job.path}: {error}", kind="refused")
        return job

    def _place(self, job: Job, media: Media, source: MemberSource) -> None:
        """Set where a clip is: a file, a URL, or the line itself."""
        job.source, url = source, media.urls[0]
        if media.kind == "frames" or url[:5].lower() == "data:":
            return
        if url[:7].lower() == "file://":
            job.path, job.source, job.shard = join_url("", url), None, None
        elif is_url(url):
            job.path = self.limits.access.locate(source.url, url)
            job.source = MemberSource(job.path)
        else:
            raise VideoError(f"{media.field}: {_MISPLACED}", kind="refused")

    def _fetch(self, job: Job, url: str, folder: str, allowance: Allowance) -> bytes:
        """Return the bytes of a medium."""
        if url[:5].lower() == "data:":
            head = url[:512].find(";base64,")
            coded = re.sub(r"\s", "", url[head + len(";base64,") :])
            allowance.take(len(coded) * 3 // 4)
            try:
                if head < 0:
                    raise ValueError
                return base64.b64decode(coded, validate=True)
            except ValueError:
                raise VideoError(f"{job.path}: a data URL must be data:TYPE;base64,...", kind="damaged") from None
        if url[:7].lower() == "file://":
            file = Path(join_url("", url))
            if not file.is_file():
                raise VideoError(f"{file}: there is no such file", kind="missing")
        elif is_url(url):
            file = Path(folder, "fetched")
            assert job.source is not None
            copy(self.limits.access.locate(job.source.url, url), file, limits=self.limits)
        else:
            raise VideoError(f"{job.path}: {_MISPLACED}", kind="refused")
        allowance.take(file.stat().st_size)
        return file.read_bytes()


def _read_row(line: bytes, where: str) -> dict[str, object]:
    """Return the object of a line.

    Raises:
        UsageError: it is none, or has no ``custom_id``.
    """
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{where}: not JSON: {error}") from None
    if not (isinstance(row, dict) and isinstance(row.get("custom_id"), str) and row["custom_id"]):
        raise UsageError(f"{where}: must be an object with a custom_id, which is text")
    return row


def _parse_request(row: dict[str, object]) -> ChatRequest:
    """Return the request of a line.

    Raises:
        VidspecError: it is wrong, or another than a chat's.
    """
    from vidspec.models.chat_request import parse_chat  # makes models of pydantic: 20 ms

    if row.get("method", "POST") != "POST" or row.get("url", ENDPOINT) != ENDPOINT:
        raise VideoError(f"must be POST {ENDPOINT}, not {row.get('method')} {row.get('url')}", kind="unsupported")
    chat = parse_chat(json.dumps(row.get("body")).encode(), lambda name: None)
    if chat.body.stream:
        raise VideoError("stream: a batch is not streamed", kind="unsupported")
    return chat
