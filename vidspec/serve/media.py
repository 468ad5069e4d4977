"""Fetch the media of requests and read their frames in processes that can be killed; nothing is decoded here."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import os
import queue
import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from vidspec.dataset.access import GuardedClient, is_url
from vidspec.dataset.reader import ClipReader
from vidspec.errors import VidspecError
from vidspec.serve.config import ApiError
from vidspec.serve.recent import RecentVideos

if TYPE_CHECKING:
    from aiohttp import ClientSession, TraceRequestRedirectParams
    from yarl import URL

    from vidspec.captioner import Captioner
    from vidspec.models.request import CaptionRequest
    from vidspec.serve.chat import ChatRequest, Media
    from vidspec.serve.config import ServeConfig
    from vidspec.video.base import Clip

__all__ = ["MediaReader"]

#: What a data URL has before its content, with the type of the file.
_DATA = re.compile(r"data:(?:[a-z]{1,20}/([\w.+-]{1,64}))?(?:;[\w.+-]{1,64}=[\w.+-]{1,64}){0,4};base64,", re.IGNORECASE)
#: Suffixes of media types that are called differently.
_SUFFIXES = {"quicktime": "mov", "x-matroska": "mkv", "mpeg": "mpg", "x-msvideo": "avi", "svg+xml": ""}
REDIRECTS = 5
CHUNK = 1 << 16


class MediaReader:
    """Reads the clips of requests, a few ahead of the models.

    Args:
        captioner: says which frames fit its models.
        config: the limits.

    Attributes:
        recent: clips that need not be read again.
    """

    def __init__(self, captioner: Captioner, config: ServeConfig) -> None:
        self._captioner, self._config = captioner, config
        self.recent = RecentVideos(captioner, config.keep_bytes)
        self._readers: queue.SimpleQueue[ClipReader] = queue.SimpleQueue()
        stall = captioner.profile.video.stall
        self._all = [ClipReader(config.timeout, stall, config.max_pixels) for _ in range(config.readers)]
        for reader in self._all:
            reader.start()
            self._readers.put(reader)
        self._pool = ThreadPoolExecutor(config.readers, thread_name_prefix="reader")

    def close(self) -> None:
        """End the reader processes, and forget the recent clips."""
        self.recent.clear()
        for reader in self._all:
            reader.close()
        self._pool.shutdown(wait=False, cancel_futures=True)

    async def read(self, chat: ChatRequest) -> CaptionRequest:
        """Return the request with its clip.

        Raises:
            ApiError: the media are missing, refused, too large, or damaged.
        """
        media, files, left = chat.media, list[str](), self._config.max_bytes
        if len(media.urls) > self._config.max_frames:
            raise ApiError(f"{media.field}: has more than {self._config.max_frames} frames", media.field)
        with TemporaryDirectory(prefix="vidspec-", ignore_cleanup_errors=True) as folder:
            for number, url in enumerate(media.urls):
                files.append(await self._fetch(url, Path(folder), number, media.field, left))
                left -= os.path.getsize(files[-1])
            media.urls.clear()
            content = await asyncio.to_thread(lambda: [_digest(file) for file in files] if self.recent.most else [])
            key = media.kind, media.fps, *sorted(chat.sampling.items()), *content
            request = self.recent.find(replace(chat.caption, key=key))
            try:
                if request.clip is not None:
                    await asyncio.to_thread(self._check, chat, *request.clip.frames.shape[:3])
                    return request
                loop = asyncio.get_running_loop()
                # no name for the future: its exception's traceback refers to this frame, a cycle that keeps the request
                return replace(request, clip=await loop.run_in_executor(self._pool, self._read, chat, files))
            except VidspecError as error:
                message = error.message
                for file in files:
                    message = message.replace(file, media.field)
                raise ApiError(message, media.field, code=error.kind) from error

    def _read(self, chat: ChatRequest, files: Sequence[str]) -> Clip:
        reader = self._readers.get()
        try:
            clip = self._read_frames(reader, chat, files)
        finally:
            self._readers.put(reader)
        with suppress(Exception):  # it recurs, and is reported, when the clip is captioned
            self._captioner.prepare(clip)
        return clip

    def _read_frames(self, reader: ClipReader, chat: ChatRequest, files: Sequence[str]) -> Clip:
        import numpy as np

        from vidspec.video.base import Clip
        from vidspec.video.reading import MOST_BYTES

        media, captioner = chat.media, self._captioner
        options: dict[str, object] = {**captioner.profile.video.arguments, "gpu": captioner.gpu}
        check = partial(self._check, chat)
        if media.kind == "file" or len(files) == 1:
            options |= {**chat.sampling, "sound": captioner.max_sound_s}
            if media.kind == "file":
                self._check_duration(reader, files[0], media)
            return reader.read(files[0], None, None, options, check)
        most = MOST_BYTES // (3 * len(files))
        given = captioner.profile.video.max_pixels
        options |= {"max_pixels": min(most, given or most), "frames": 1, "fps": None}
        pictures = []
        for file in files:
            (picture,) = reader.read(
                file, None, None, options, lambda _, height, width: check(len(files), height, width)
            ).frames
            pictures.append(picture)
        if len({picture.shape for picture in pictures}) > 1:
            raise ApiError(f"{media.field}: the frames of a video must have one size", media.field)
        return Clip.of(np.stack(pictures), [number / media.fps for number in range(len(files))])

    def _check(self, chat: ChatRequest, frames: int, height: int, width: int) -> None:
        """Refuse frames before they are decoded."""
        place, request = chat.media.field, chat.caption
        if frames > self._config.max_frames:
            raise ApiError(f"{place}: {frames} frames are more than {self._config.max_frames}", place)
        self._captioner.refuse(place, request.prompt, frames, height, width, request.generate)

    def _check_duration(self, reader: ClipReader, file: str, media: Media) -> None:
        *_, (_, end) = reader.segments(file, 1e9, None, None)
        if end > self._config.max_seconds:
            raise ApiError(f"{media.field}: lasts more than {self._config.max_seconds:g} s", media.field)

    async def _fetch(self, url: str, folder: Path, number: int, place: str, left: int) -> str:
        """Return a local file with the bytes of a URL, of at most ``left`` bytes."""
        scheme, file = url[:16].partition(":")[0].lower(), folder / str(number)
        if scheme == "data":
            return await asyncio.to_thread(self._decode, url, file, place, left)
        if scheme == "file":
            return self._local(url, place, left)
        if scheme in ("http", "https"):
            return await self._download(url, file, place, left)
        raise ApiError(f"{place}: a URL must begin with data:, http:, https: or file:", place)

    def _decode(self, url: str, file: Path, place: str, left: int) -> str:
        found = _DATA.match(url)
        if found is None:
            raise ApiError(f"{place}: a data URL must be data:TYPE;base64,...", place)
        if (len(url) - found.end()) * 3 // 4 > left + 4:
            raise self._too_large(place)
        try:
            content = base64.b64decode(url[found.end() :], validate=True)
        except ValueError:
            raise ApiError(f"{place}: is no valid base64", place) from None
        file = _with_suffix(file, found[1] or "")
        file.write_bytes(content)
        return str(file)

    def _local(self, url: str, place: str, left: int) -> str:
        """Return the real path of a file that may be read; all others get the same answer, missing or not."""
        parts, root = urlsplit(url), self._config.media_folder
        real = os.path.realpath(unquote(parts.path)) if "\0" not in unquote(parts.path) else ""
        allowed = root is not None and parts.netloc in ("", "localhost") and real.startswith(root.rstrip("/") + "/")
        if not allowed or not os.path.isfile(real):
            raise ApiError(f"{place}: this file may not be read, or does not exist", place, code="refused")
        if os.path.getsize(real) > left:
            raise self._too_large(place)
        return real

    def _too_large(self, place: str) -> ApiError:
        return ApiError(f"{place}: has more than {self._config.max_bytes} bytes", place, status=413, code="too_large")

    async def _download(self, url: str, file: Path, place: str, left: int) -> str:
        """Fetch a file. The URL that is checked is the parsed one that is fetched, also after each redirect."""
        import aiohttp

        async def check(_session: ClientSession, _context: object, redirect: TraceRequestRedirectParams) -> None:
            headers = redirect.response.headers
            self._allowed(headers.get("Location") or headers.get("URI") or "", place, redirect.response.url)

        trace = aiohttp.TraceConfig()
        trace.on_request_redirect.append(check)
        client = GuardedClient(tuple(host for host in self._config.media_hosts if is_url(host)))
        plain = {"Accept-Encoding": "identity"}
        try:
            async with (
                await client(auto_decompress=False, trace_configs=[trace]) as session,
                session.get(self._allowed(url, place), headers=plain, max_redirects=REDIRECTS) as answer,
            ):
                if answer.status != 200:
                    raise ApiError(f"{place}: the server answered {answer.status}", place, code="fetch")
                if (answer.content_length or 0) > left:
                    raise self._too_large(place)
                file = _with_suffix(file, os.path.splitext(answer.url.path)[1][1:])
                with file.open("wb") as out:
                    async for chunk in answer.content.iter_chunked(CHUNK):
                        left -= len(chunk)
                        if left < 0:
                            raise self._too_large(place)
                        out.write(chunk)
                return str(file)
        except (aiohttp.ClientError, OSError, ValueError):  # which address it was is told to nobody
            raise ApiError(f"{place}: this URL could not be fetched", place, code="fetch") from None

    def _allowed(self, url: str, place: str, base: URL | None = None) -> URL:
        """Return a URL of an allowed host, parsed as the client that fetches it does."""
        from yarl import URL

        refused = ApiError(f"{place}: this URL may not be fetched", place, code="refused")
        if not url or re.search(r"[\\\s\x00-\x1f\x7f]", url):
            raise refused
        try:
            parsed = URL(url) if base is None else base.join(URL(url))
            host, origin = parsed.host, str(parsed.origin()).lower()
        except (ValueError, TypeError):
            raise refused from None
        if parsed.scheme not in ("http", "https") or host is None or parsed.user or parsed.password:
            raise refused
        usual = parsed.port == (443 if parsed.scheme == "https" else 80)
        if origin in self._config.media_hosts or (usual and host.lower() in self._config.media_hosts):
            return parsed
        raise refused


def _digest(file: str) -> bytes:
    with open(file, "rb") as content:
        return hashlib.file_digest(content, "blake2b").digest()


def _with_suffix(file: Path, name: str) -> Path:
    """Return a file's path with the suffix for a media type or a suffix."""
    name = _SUFFIXES.get(name.lower(), name.lower())
    return file.with_suffix(f".{name}") if re.fullmatch("[a-z0-9]{1,5}", name) else file
