"""Fetch the media of requests and read their frames in processes that can be killed; nothing is decoded here."""

from __future__ import annotations

import asyncio
import base64
import binascii
import os
import queue
import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from vidspec.dataset.access import GuardedClient, is_url
from vidspec.dataset.reader import ClipReader
from vidspec.errors import VidspecError
from vidspec.serve.config import ApiError

if TYPE_CHECKING:
    from yarl import URL

    from vidspec.captioner import Captioner
    from vidspec.serve.chat import ChatRequest, Media
    from vidspec.serve.config import ServeConfig
    from vidspec.video.base import Clip

__all__ = ["MediaReader"]

_DATA = re.compile(r"data:([a-z]{1,20}/[\w.+-]{1,64})?(?:;[\w.+-]{1,64}=[\w.+-]{1,64}){0,4}(;base64)?", re.IGNORECASE)
#: Bytes of a data URL before its content.
_HEADER = 512
#: Suffixes of media types that are called differently.
_SUFFIXES = {"quicktime": "mov", "x-matroska": "mkv", "mpeg": "mpg", "x-msvideo": "avi", "svg+xml": ""}
REDIRECTS = 5
CHUNK = 1 << 16


class MediaReader:
    """Reads the clips of requests, a few ahead of the models.

    Args:
        captioner: says which frames fit its models.
        config: the limits.
    """

    def __init__(self, captioner: Captioner, config: ServeConfig) -> None:
        self._captioner, self._config = captioner, config
        self._readers: queue.SimpleQueue[ClipReader] = queue.SimpleQueue()
        stall = captioner.profile.video.stall
        self._all = [ClipReader(config.timeout, stall, config.max_pixels) for _ in range(config.readers)]
        for reader in self._all:
            reader.start()
            self._readers.put(reader)
        self._pool = ThreadPoolExecutor(config.readers, thread_name_prefix="reader")

    def close(self) -> None:
        """End the reader processes."""
        for reader in self._all:
            reader.close()
        self._pool.shutdown(wait=False, cancel_futures=True)

    async def read(self, request: ChatRequest) -> Clip:
        """Return the frames of a request's video.

        Raises:
            ApiError: the media are missing, refused, too large, or damaged.
        """
        media = request.media
        if len(media.urls) > self._config.max_frames:
            raise ApiError(f"{media.field}: has more than {self._config.max_frames} frames", media.field)
        loop = asyncio.get_running_loop()
        with TemporaryDirectory(prefix="vidspec-", ignore_cleanup_errors=True) as folder:
            files: list[str] = []
            left = self._config.max_bytes
            for number, url in enumerate(media.urls):
                file = await self._fetch(url, Path(folder), number, media.field, left)
                left -= os.path.getsize(file)
                files.append(file)
            try:
                return await loop.run_in_executor(self._pool, self._read, request, files)
            except VidspecError as error:
                message = error.message
                for file in files:
                    message = message.replace(file, media.field)
                raise ApiError(message, media.field, code=error.kind) from error

    def _read(self, request: ChatRequest, files: Sequence[str]) -> Clip:
        reader = self._readers.get()
        try:
            clip = self._read_frames(reader, request, files)
        finally:
            self._readers.put(reader)
        with suppress(Exception):  # it recurs, and is reported, when the clip is captioned
            self._captioner.prepare(clip)
        return clip

    def _read_frames(self, reader: ClipReader, request: ChatRequest, files: Sequence[str]) -> Clip:
        import numpy as np

        from vidspec.video.base import Clip
        from vidspec.video.reading import MOST_BYTES

        media, captioner = request.media, self._captioner
        options: dict[str, object] = {**captioner.profile.video.arguments, "gpu": captioner.gpu}
        check = partial(self._check, request)
        if media.kind == "file" or len(files) == 1:
            options |= {**request.sampling, "sound": captioner.max_sound_s}
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

    def _check(self, request: ChatRequest, frames: int, height: int, width: int) -> None:
        """Refuse frames before they are decoded."""
        place = request.media.field
        if frames > self._config.max_frames:
            raise ApiError(f"{place}: {frames} frames are more than {self._config.max_frames}", place)
        self._captioner.refuse(place, request.prompt or None, frames, height, width, request.generate)

    def _check_duration(self, reader: ClipReader, file: str, media: Media) -> None:
        *_, (_, end) = reader.segments(file, 1e9, None, None)
        if end > self._config.max_seconds:
            raise ApiError(f"{media.field}: lasts more than {self._config.max_seconds:g} s", media.field)

    async def _fetch(self, url: str, folder: Path, number: int, place: str, left: int) -> str:
        """Return a local file with the bytes of a URL, of at most ``left`` bytes."""
        scheme = url[:16].partition(":")[0].lower()
        if scheme == "data":
            return await asyncio.to_thread(self._decode, url, folder, number, place, left)
        if scheme == "file":
            return self._local(url, place, left)
        if scheme in ("http", "https"):
            return await self._download(url, folder, number, place, left)
        raise ApiError(f"{place}: a URL must begin with data:, http:, https: or file:", place)

    def _decode(self, url: str, folder: Path, number: int, place: str, left: int) -> str:
        header, comma, _ = url[:_HEADER].partition(",")
        found = _DATA.fullmatch(header)
        if not comma or found is None or not found[2]:
            raise ApiError(f"{place}: a data URL must be data:TYPE;base64,...", place)
        if (len(url) - len(header)) * 3 // 4 > left + 4:
            raise self._too_large(place)
        try:
            content = base64.b64decode(url[len(header) + 1 :], validate=True)
        except (binascii.Error, ValueError):
            raise ApiError(f"{place}: is no valid base64", place) from None
        file = folder / f"{number}{_suffix((found[1] or '').partition('/')[2])}"
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

    async def _download(self, url: str, folder: Path, number: int, place: str, left: int) -> str:
        """Fetch a file. The URL that is checked is the parsed one that is fetched, also after each redirect."""
        import aiohttp

        origins = tuple(host for host in self._config.media_hosts if is_url(host))
        refused = ApiError(f"{place}: this URL may not be fetched", place, code="refused")
        try:
            async with await GuardedClient(origins)(auto_decompress=False) as session:
                where = self._allowed(url, refused)
                for _ in range(REDIRECTS + 1):
                    headers = {"Accept-Encoding": "identity"}
                    async with session.get(where, allow_redirects=False, headers=headers) as answer:
                        if answer.status in (301, 302, 303, 307, 308):
                            target = answer.headers.get("Location", "")
                            where = self._allowed(target, refused, base=where)
                            continue
                        if answer.status != 200:
                            raise ApiError(f"{place}: the server answered {answer.status}", place, code="fetch")
                        if (answer.content_length or 0) > left:
                            raise self._too_large(place)
                        file = folder / f"{number}{_suffix(os.path.splitext(where.path)[1][1:])}"
                        with file.open("wb") as out:
                            async for chunk in answer.content.iter_chunked(CHUNK):
                                left -= len(chunk)
                                if left < 0:
                                    raise self._too_large(place)
                                out.write(chunk)
                        return str(file)
        except (aiohttp.ClientError, OSError, ValueError):  # which address it was is told to nobody
            raise ApiError(f"{place}: this URL could not be fetched", place, code="fetch") from None
        raise ApiError(f"{place}: this URL has too many redirects", place, code="fetch")

    def _allowed(self, url: str, refused: ApiError, base: URL | None = None) -> URL:
        """Return a URL of an allowed host, parsed as the client that fetches it does."""
        from yarl import URL

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


def _suffix(name: str) -> str:
    """Return a file's suffix for a media type or a suffix."""
    name = _SUFFIXES.get(name.lower(), name.lower())
    return f".{name}" if re.fullmatch("[a-z0-9]{1,5}", name) else ""
