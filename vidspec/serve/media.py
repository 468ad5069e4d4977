"""Fetch the media of requests and read their frames in processes that can be killed; nothing is decoded here."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import os
import queue
import re
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import replace
from functools import partial
from tempfile import mkstemp
from typing import TYPE_CHECKING, BinaryIO, NamedTuple
from urllib.parse import unquote, urlsplit

from vidspec.errors import VidspecError
from vidspec.runs.access import GuardedClient, is_url
from vidspec.runs.reader import ClipReader
from vidspec.serve.config import ApiError
from vidspec.serve.recent import RecentVideos

if TYPE_CHECKING:
    from aiohttp import ClientSession, TraceRequestRedirectParams
    from yarl import URL

    from vidspec.decoding.engine_client import EngineClient
    from vidspec.models.chat_request import ChatRequest, Media
    from vidspec.models.request import CaptionRequest
    from vidspec.serve.config import ServeConfig
    from vidspec.video.base import Clip

#: The part of a data URL before its content, with the type of the file. A list of codecs may have commas.
_DATA = re.compile(
    r"data:(?:[a-z]{1,20}(?:/([\w.+-]{1,64}))?)?"
    r"(?:; ?[\w.+-]{1,64}=(?:[\w.+,-]{1,128}|\"[^\"]{0,128}\")){0,4};base64,",
    re.IGNORECASE,
)
_LINE_BREAKS = b"\r\n\t "
REDIRECTS = 5
#: Status of errors of reading that are not the client's, by their kind; all others are 400.
_STATUS = {"crashed": 503, "descriptors": 503, "timeout": 504}
CHUNK = 1 << 20


class _Medium(NamedTuple):
    """A file that may be read, or a part of the request's temporary file, with the suffix of its type."""

    path: str = ""
    start: int = 0
    size: int = 0
    suffix: str = ""


class MediaReader:
    """Reads the clips of requests, a few ahead of the models.

    Args:
        client: knows which frames fit its models.
        config: the limits.

    Attributes:
        recent: clips that need not be read again.
    """

    def __init__(self, client: EngineClient, config: ServeConfig) -> None:
        self._client, self._config = client, config
        self.recent = RecentVideos(client, config.keep_bytes)
        self._readers: queue.SimpleQueue[ClipReader] = queue.SimpleQueue()
        stall = client.profile.video.stall
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
            ApiError: the media are missing, refused, too large, or damaged, or cannot be stored.
        """
        media, files, left = chat.media, list[_Medium](), self._config.max_bytes
        if len(media.urls) > self._config.max_frames:
            raise ApiError(f"{media.field}: has more than {self._config.max_frames} frames", media.field)
        with _storing(media.field), _temporary_file() as (spool, _):
            for url in media.urls:
                files.append(await self._fetch(url, spool, media, left))
                left -= files[-1].size
            media.urls.clear()
            content = await asyncio.to_thread(
                lambda: [_digest(spool, file) for file in files] if self.recent.most else []
            )
            key = media.kind, media.fps, *sorted(chat.sampling.items()), *content
            request = self.recent.find(replace(chat.caption, key=key))
            use = _ReaderUse()
            try:
                if request.clip is not None:
                    await asyncio.to_thread(self._check, chat, *request.clip.frames.shape[:3])
                    return request
                loop = asyncio.get_running_loop()
                # no name for the future: its exception's traceback refers to this frame, a cycle that keeps the request
                return await loop.run_in_executor(self._pool, self._read, request, chat, spool, files, use)
            except VidspecError as error:
                raise _refusal(error, media.field) from error
            finally:
                use.end()  # the client has gone, or its time is over

    def _read(
        self, request: CaptionRequest, chat: ChatRequest, spool: BinaryIO, files: Sequence[_Medium], use: _ReaderUse
    ) -> CaptionRequest:
        reader = self._readers.get()
        try:
            if not use.begin(reader):
                raise asyncio.CancelledError
            clip = self._read_frames(reader, chat, spool, files)
        finally:
            if use.finish():
                reader.restart()  # for the next request
            self._readers.put(reader)
        return self._client.inputs.read_ahead(replace(request, clip=clip))

    def _read_frames(self, reader: ClipReader, chat: ChatRequest, spool: BinaryIO, files: Sequence[_Medium]) -> Clip:
        import numpy as np

        from vidspec.video.base import Clip
        from vidspec.video.reading import MOST_BYTES

        media, client = chat.media, self._client
        options: dict[str, object] = {**client.profile.video.arguments, "gpu": client.inputs.gpu}
        check = partial(self._check, chat)
        if media.kind == "file" or len(files) == 1:
            options |= {**chat.sampling, "sound": client.inputs.max_sound_s}
            with _named(spool, files[0], media.field) as path:
                if media.kind == "file":
                    self._check_duration(reader, path, media)
                return reader.read(path, None, None, options, check)
        most = MOST_BYTES // (3 * len(files))
        given = client.profile.video.max_pixels
        options |= {"max_pixels": min(most, given or most), "frames": 1, "fps": None}
        pictures = []
        for file in files:
            with _named(spool, file, media.field) as path:
                (picture,) = reader.read(
                    path, None, None, options, lambda _, height, width: check(len(files), height, width)
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
        self._client.inputs.refuse(place, request.prompt, frames, height, width, request.generate)

    def _check_duration(self, reader: ClipReader, file: str, media: Media) -> None:
        *_, (_, end) = reader.segments(file, 1e9, None, None)
        if end > self._config.max_seconds:
            raise ApiError(f"{media.field}: lasts more than {self._config.max_seconds:g} s", media.field)

    async def _fetch(self, url: str, spool: BinaryIO, media: Media, left: int) -> _Medium:
        """Return a medium of at most ``left`` bytes; what is no local file is added to ``spool``."""
        scheme, place = url[:16].partition(":")[0].lower(), media.field
        if scheme == "data":
            medium = await asyncio.to_thread(self._decode, url, spool, place, left)
        elif scheme == "file":
            return self._local(url, place, left)
        elif scheme in ("http", "https"):
            if not self._config.media_hosts:  # refused without aiohttp, which may not be installed
                raise _refused_url(place)
            medium = await self._download(url, spool, place, left)
        else:
            raise ApiError(f"{place}: a URL must begin with data:, http:, https: or file:", place)
        return medium if medium.suffix or media.kind == "file" else medium._replace(suffix=".png")  # of any picture

    def _decode(self, url: str, spool: BinaryIO, place: str, left: int) -> _Medium:
        found = _DATA.match(url)
        if found is None:
            raise ApiError(f"{place}: a data URL must be data:TYPE;base64,...", place)
        try:
            coded = url[found.end() :].encode("ascii").translate(None, _LINE_BREAKS)
            if len(coded) * 3 // 4 > left + 4:
                raise self._too_large(place)
            content = base64.b64decode(coded, validate=True)
        except ValueError:
            raise ApiError(f"{place}: is no valid base64", place) from None
        start = spool.tell()
        return _Medium("", start, spool.write(content), _suffix(found[1] or ""))

    def _local(self, url: str, place: str, left: int) -> _Medium:
        """Return a file that may be read, by its real path; all others get the same answer, missing or not."""
        refused = ApiError(f"{place}: this file may not be read, or does not exist", place, code="refused")
        try:
            parts, root = urlsplit(url), self._config.media_folder
            real = os.path.realpath(unquote(parts.path))
        except ValueError:
            raise refused from None
        allowed = root is not None and parts.netloc in ("", "localhost") and real.startswith(root.rstrip("/") + "/")
        if not (allowed and os.path.isfile(real) and os.access(real, os.R_OK)):
            raise refused
        if (size := os.path.getsize(real)) > left:
            raise self._too_large(place)
        return _Medium(real, 0, size)

    def _too_large(self, place: str) -> ApiError:
        return ApiError(f"{place}: has more than {self._config.max_bytes} bytes", place, status=413, code="too_large")

    async def _download(self, url: str, spool: BinaryIO, place: str, left: int) -> _Medium:
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
                start = spool.tell()
                async for chunk in answer.content.iter_chunked(CHUNK):
                    left -= spool.write(chunk)
                    if left < 0:
                        raise self._too_large(place)
                return _Medium("", start, spool.tell() - start, _suffix(os.path.splitext(answer.url.path)[1][1:]))
        except (aiohttp.ClientError, OSError, ValueError):  # which address it was is told to nobody
            raise ApiError(f"{place}: this URL could not be fetched", place, code="fetch") from None

    def _allowed(self, url: str, place: str, base: URL | None = None) -> URL:
        """Return a URL of an allowed host, parsed as the client that fetches it does."""
        from yarl import URL

        refused = _refused_url(place)
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


class _ReaderUse:
    """The use of a reader for one request, which another thread may end by killing the reader's process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._reader: ClipReader | None = None
        self._ended = self._killed = False

    def begin(self, reader: ClipReader) -> bool:
        """Begin to use a reader; return False if the use was ended before."""
        with self._lock:
            self._reader = None if self._ended else reader
            return not self._ended

    def finish(self) -> bool:
        """Give the reader up; return True if its process was killed."""
        with self._lock:
            self._reader = None
            return self._killed

    def end(self) -> None:
        """Kill the process of the reader in use; afterwards none can be used."""
        with self._lock:
            self._ended = True
            if self._reader is not None:
                self._killed = True
                self._reader.interrupt()


def _refusal(error: VidspecError, place: str, path: str | None = None) -> ApiError:
    """Return the answer to an error of a medium, which is named by its ``place`` in the request."""
    message = error.message if path is None else error.message.replace(path, place)
    return ApiError(message, place, status=_STATUS.get(error.kind, 400), code=error.kind)


def _refused_url(place: str) -> ApiError:
    return ApiError(f"{place}: this URL may not be fetched", place, code="refused")


def _digest(spool: BinaryIO, medium: _Medium) -> bytes:
    digest = hashlib.blake2b()
    for content in _pieces(spool, medium):
        digest.update(content)
    return digest.digest()


def _pieces(spool: BinaryIO, medium: _Medium) -> Iterator[bytes]:
    with open(medium.path, "rb") if medium.path else nullcontext(spool) as file:
        file.seek(medium.start)
        left = medium.size
        while left and (content := file.read(min(left, CHUNK))):
            left -= len(content)
            yield content


@contextmanager
def _named(spool: BinaryIO, medium: _Medium, place: str) -> Iterator[str]:
    """Provide a path to a medium; errors name its place in the request instead.

    Raises:
        ApiError: instead of any error about the file.
    """
    with _temporary_file(medium.suffix) if not medium.path else nullcontext((None, medium.path)) as (file, path):
        if file is not None:
            file.writelines(_pieces(spool, medium))
            file.flush()
        try:
            yield path
        except VidspecError as error:
            raise _refusal(error, place, path) from error


@contextmanager
def _storing(place: str) -> Iterator[None]:
    """Make errors of this machine's files, as of a full disk, errors of the request.

    Raises:
        ApiError: with status 503.
    """
    try:
        yield
    except OSError as error:
        reason = error.strerror or type(error).__name__
        message = f"{place}: the server cannot store or read this file now: {reason}"
        raise ApiError(message, place, status=503, code="storage") from None


@contextmanager
def _temporary_file(suffix: str = "") -> Iterator[tuple[BinaryIO, str]]:
    """Provide a temporary file and its path. On Linux it has no name, so that no end of this process leaves it."""
    number, name = mkstemp(suffix, "vidspec-")
    link = f"/proc/{os.getpid()}/fd/{number}"
    try:
        with os.fdopen(number, "w+b") as file:
            if unnamed := os.path.exists(link):
                os.unlink(name)
            yield file, link if unnamed else name
    finally:
        with suppress(FileNotFoundError):
            os.unlink(name)


def _suffix(name: str) -> str:
    """Return the file suffix for a media type or a suffix; it tells pictures from videos."""
    return f".{name.lower()}" if re.fullmatch("[a-zA-Z0-9]{1,5}", name) else ""
