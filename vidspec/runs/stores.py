"""Open, copy, list and write files by path or URL through fsspec; independent of file formats.

A failed access to a store is retried a few times, then reported as one error that names the file. Reads from a store
are bounded in time and bytes.
"""

from __future__ import annotations

import errno
import io
import os
import posixpath
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, TypeVar
from urllib.parse import unquote

from vidspec.errors import OutputError, UsageError, VideoError, VidspecError
from vidspec.files import open_own, write_whole
from vidspec.runs.access import Access, GuardedClient, InsecureRedirectError, PrivateAddressError, is_url
from vidspec.runs.allowance import Allowance, FetchLimits

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

__all__ = [
    "back_up_url",
    "copy",
    "is_bug",
    "is_url",
    "join_url",
    "list_names",
    "match_urls",
    "open_url",
    "retry",
    "write_url",
]

T = TypeVar("T")

#: Seconds between attempts at a failed access.
PAUSES = (0.2, 0.8, 3.2)
#: Bytes per request for a clip, and for the headers of a tar, most of which lie far apart.
CHUNK, HEADERS = 2 << 20, 1 << 16
#: Time limit for closing a connection, in seconds.
CLOSING = 2.0
#: Stores with buckets, whose objects become visible only when complete.
BUCKETS = ("s3", "s3a", "gs", "gcs", "az", "abfs")


def join_url(folder: str, name: str) -> str:
    """Join a name to a folder, either of which may be a URL; a name that is a URL stays, a ``file://`` URI is its path.

    Raises:
        ValueError: a ``file://`` URI is of another host.
    """
    if name[:7].lower() == "file://":
        host, slash, path = name[7:].partition("/")
        if host not in ("", "localhost"):
            raise ValueError(f"{name}: a file:// URI names a file of this machine, as file:///PATH")
        return unquote(slash + path)
    if is_url(folder) and not is_url(name):
        return f"{folder.rstrip('/')}/{name}"
    return name if is_url(name) else os.path.join(folder, name)


@contextmanager
def open_url(
    name: str, limits: FetchLimits | None = None, allowance: Allowance | None = None, size: int | None = None
) -> Iterator[BinaryIO]:
    """Open a seekable file for reading. Raises the store's own exceptions, for :func:`retry`.

    Args:
        name: path or URL of the file.
        limits: read limits; None for the defaults.
        allowance: shared allowance; None for a new one whose timeout holds per request.
        size: bytes of a file behind a URL as far as they are read, if they are known; else the store is asked.
    """
    limits = limits or FetchLimits()
    if not is_url(name):
        mode = os.stat(name).st_mode  # checked before opening, which may block on a pipe
        if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
            raise VideoError(f"{name}: is not a regular file", kind="not_video", hint="write it into a file")
        with open(name, "rb") as file:
            yield file
        return
    allowance = allowance or Allowance(name, limits, whole=False)
    with io.BufferedReader(_Pieces(name, limits, allowance, size), HEADERS) as file:
        yield file


class SizedFile(io.RawIOBase):
    """File of known size that is read from any place; subclasses read at ``at``, and move it on."""

    def __init__(self, size: int) -> None:
        self.size, self.at = size, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self.at

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        at = offset + {os.SEEK_SET: 0, os.SEEK_CUR: self.at, os.SEEK_END: self.size}[whence]
        if at < 0:
            raise OSError(errno.EINVAL, "before the beginning of the file")
        self.at = at
        return at


class _Pieces(SizedFile):
    """File behind a URL, fetched in pieces as it is read."""

    def __init__(self, name: str, limits: FetchLimits, allowance: Allowance, size: int | None) -> None:
        self._store, self._path = _file_system(name, limits.access)
        self._name, self._allowance = name, allowance
        size = size or allowance.call(partial(self._store.info, self._path)).get("size")
        if size is None:
            raise VideoError(f"{name}: its size is not known, so it cannot be read in pieces", hint="download it first")
        super().__init__(int(size))

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        end = min(self.at + min(len(buffer), CHUNK), self.size)
        if end <= self.at:
            return 0
        self._allowance.take(end - self.at)
        piece = partial(_read_range, self._store, self._path, self.at, end)
        content = retry(self._name, partial(self._allowance.call, piece))
        buffer[: len(content)] = content
        self.at += len(content)
        return len(content)


def _read_range(store: AbstractFileSystem, path: str, start: int, end: int) -> bytes:
    """Return the bytes of a file from ``start`` to ``end``, fewer only if it ends before.

    No more bytes are read from a web server than were requested, even if it sends more.
    """
    if not path.startswith(("http://", "https://")):
        return bytes(store.cat_file(path, start=start, end=end))[: end - start]
    headers = {"Range": f"bytes={start}-{end - 1}", "Accept-Encoding": "identity"}
    file = store.open(path, "rb", block_size=0, size=end, headers=headers)
    try:
        if file.r.status != 206 and start > 0:  # the server ignores ranges
            raise VideoError(f"{path}: cannot be read in pieces", hint="download it first")
        return _read_full(file, end - start)
    finally:
        file.close()


def _read_full(file: BinaryIO, size: int) -> bytes:
    """Read the next bytes of a stream, fewer than ``size`` only at its end."""
    content = bytearray()
    while len(content) < size and (read := file.read(size - len(content))):
        content += read
    return bytes(content)


def copy(name: str, to: Path, start: int = 0, size: int | None = None, limits: FetchLimits | None = None) -> None:
    """Copy a file, or ``size`` bytes of it from ``start`` on, to a local file.

    Raises:
        VideoError: it is missing, unreadable, too large, timed out, or truncated.
    """
    limits = limits or FetchLimits()
    allowance = Allowance(name, limits)
    if size is None:
        retry(name, partial(_copy_url, name, to, limits, allowance))
    elif size > limits.most:
        raise allowance.size_error()
    elif is_url(name):
        _copy_part(name, to, start, size, limits, allowance)  # each piece is retried
    else:
        retry(name, partial(_copy_part, name, to, start, size, limits, allowance))


def _copy_part(name: str, to: Path, start: int, size: int, limits: FetchLimits, allowance: Allowance) -> None:
    with open_url(name, limits, allowance, start + size) as source, open_own(to, "xb") as file:
        source.seek(start)
        while size and allowance.seconds:
            content = source.read(min(size, CHUNK))
            if not content:
                raise VideoError(f"{name}: ends within the clip", kind="truncated", hint="copy or download it again")
            size -= file.write(content)


def _copy_url(name: str, to: Path, limits: FetchLimits, allowance: Allowance) -> None:
    """Copy a file behind a URL, possibly of unknown size."""
    store, path = _file_system(name, limits.access)
    options = {"block_size": 0, "size": 1} if name.startswith(("http://", "https://")) else {"block_size": CHUNK}
    source = allowance.call(partial(store.open, path, "rb", **options))
    try:
        answer = getattr(source, "r", None)  # of a web server
        total = int((source.size if answer is None else answer.headers.get("Content-Length")) or 0)
        if total > limits.most:
            raise allowance.size_error()
        written = 0
        with open_own(to, "xb") as file:
            while content := allowance.call(partial(_read_full, source, CHUNK)):
                written += file.write(content)
                if written > limits.most:
                    raise allowance.size_error()
    finally:
        with suppress(Exception):
            allowance.call(source.close, CLOSING)


def list_names(folder: str) -> set[str]:
    """Return the names of the files in a folder; empty if there is no such folder."""
    store, path = _file_system(folder)

    def list_files() -> set[str]:
        try:
            return {posixpath.basename(one) for one in store.ls(path, detail=False, refresh=True)}
        except FileNotFoundError:
            return set()

    return retry(folder, list_files)


def back_up_url(name: str) -> str:
    """Rename a file below a URL to its first free backup name, ``NAME~``, ``NAME~1~`` and so on, and return that.

    Raises:
        OutputError: it cannot be renamed.
    """
    folder, _, base = name.rpartition("/")
    taken = list_names(folder)
    free = next(one for number in count() if (one := f"{base}~{f'{number}~' if number else ''}") not in taken)
    store, path = _file_system(name)
    try:
        retry(name, partial(store.mv, path, f"{path.rpartition('/')[0]}/{free}"))
    except VideoError as error:
        raise OutputError(error.message.replace("be read", "be renamed"), hint=error.hint) from None
    return f"{folder}/{free}"


def match_urls(pattern: str) -> list[str]:
    """Return the URLs of the files that match a pattern with ``*``, sorted.

    Raises:
        UsageError: there are none, the server cannot list files, or a package is missing.
        VideoError: the store cannot be read.
    """
    if pattern.startswith(("http://", "https://")):
        hint = "name them: '{00000..00099}' in place of '*'"
        raise UsageError(f"{pattern}: a web server does not list its files", hint=hint)
    store, path = _file_system(pattern)
    found = retry(pattern, lambda: sorted(store.glob(path)))
    if not found:
        raise UsageError(f"{pattern}: no file matches", hint="check its name")
    return [str(store.unstrip_protocol(one)) for one in found]


def write_url(name: str, content: bytes) -> None:
    """Write a file atomically: it appears whole or not at all.

    Raises:
        OutputError: it cannot be written.
    """
    if not is_url(name):
        write_whole(Path(name), content)
        return
    store, path = _file_system(name)
    part = path if name.split("://")[0] in BUCKETS else f"{path}.part"
    try:
        retry(name, partial(store.pipe_file, part, content))
        if part != path:
            retry(name, partial(store.mv, part, path))
    except VideoError as error:
        if part != path:
            with suppress(Exception):  # each store's client has exceptions of its own
                store.rm_file(part)
        raise OutputError(error.message.replace("be read", "be written"), hint=error.hint) from None


def retry(name: str, call: Callable[[], T]) -> T:
    """Return the result of ``call``; if ``name`` is a URL, failures are retried, up to four attempts in all.

    Raises:
        VideoError: the file is missing or unreadable; replaces any other exception except a bug (:func:`is_bug`).
        UsageError: a package is missing.
        VidspecError: any such error of ``call`` itself.
    """
    for pause in (*PAUSES, None):
        try:
            return call()
        except VidspecError:
            raise
        except Exception as error:  # each store's client has exceptions of its own
            if is_bug(error):
                raise
            explained, final = _explain_error(name, error)
            if pause is None or final:
                raise explained from error
        time.sleep(pause or 0.0)
    raise AssertionError


def _explain_error(name: str, error: Exception) -> tuple[VidspecError, bool]:
    """Convert a store's exception to a one-line error; also return True if a retry is pointless."""
    causes = _cause_chain(error)
    for one in causes:
        if isinstance(one, VidspecError):
            return type(one)(f"{name}: {one.message}", hint=one.hint, kind=one.kind), True
        if isinstance(one, PrivateAddressError):
            message = f"{name}: leads to {one.address}, which is not a public address"
            hint = f"give --allow-urls {name.partition('://')[0]}://{one.address}, or its name, if it may be read"
            return VideoError(message, kind="refused", hint=hint), True
        if isinstance(one, InsecureRedirectError):
            message = f"{name}: its server leads to http://{one.host}, without encryption"
            hint = f"give --allow-urls http://{one.host} if it may be read so"
            return VideoError(message, kind="refused", hint=hint), True
    if isinstance(error, ImportError):
        return _missing_package(name, error), True
    statuses = (getattr(one, "status", None) for one in causes)
    status = next((one for one in statuses if isinstance(one, int)), None)
    named = not name.startswith("http") or status in (404, 410) or len(causes) == 1  # HTTP: any failure
    if isinstance(error, FileNotFoundError) and named:
        what = "file, or no such bucket" if is_url(name) else "file"
        return VideoError(f"{name}: there is no such {what}", kind="missing", hint="check its name"), True
    final = not is_url(name) or (status is not None and 400 <= status < 500 and status not in (408, 425, 429))
    attempts = "" if final else f" ({len(PAUSES) + 1} attempts)"
    return VideoError(f"{name}: cannot be read{attempts}: {_describe_causes(causes)}"), final


def is_bug(error: BaseException) -> bool:
    """Return True if a line of vidspec raised the error, and it is of a type that bad data do not cause."""
    frame = error.__traceback__
    while frame is not None and frame.tb_next is not None:
        frame = frame.tb_next
    own = frame is not None and str(frame.tb_frame.f_globals.get("__name__")).partition(".")[0] == "vidspec"
    return own and isinstance(error, AssertionError | AttributeError | LookupError | NameError | TypeError)


def _cause_chain(error: BaseException) -> list[BaseException]:
    """Return an error and its chain of causes."""
    causes = [error]
    while (cause := causes[-1].__cause__ or causes[-1].__context__) is not None and cause not in causes:
        causes.append(cause)
    return causes


def _describe_causes(causes: list[BaseException]) -> str:
    """Return a short description of the cause of a failure."""
    for one in causes:
        if isinstance(status := getattr(one, "status", None), int):
            return f"the server answered {status} {getattr(one, 'message', '')}".rstrip()
        if getattr(one, "errno", None) == errno.ECONNREFUSED:
            return "the connection was refused"
    for one in causes[::-1] if isinstance(causes[0], FileNotFoundError) else causes:
        if text := str(getattr(one, "strerror", None) or one).split("\n")[0]:
            return text
    return type(causes[0]).__name__


def _missing_package(name: str, error: ImportError) -> UsageError:
    module = getattr(error.__cause__, "name", None) or error.name or str(error)
    return UsageError(f"{name}: needs {module}, which is not installed", hint=f"pip install {module}")


def _file_system(name: str, access: Access | None = None) -> tuple[AbstractFileSystem, str]:
    """Return the file system of a file, and its path there. Web servers are accessed by a :class:`GuardedClient`.

    Raises:
        UsageError: the protocol is unknown, or needs a package that is not installed.
    """
    from fsspec.core import url_to_fs

    options: dict[str, object] = {}
    if name.startswith(("http://", "https://")):
        access = access or Access().with_typed(name)
        options["get_client"] = GuardedClient((*access.typed, *access.urls))
    try:
        store, path = url_to_fs(name if is_url(name) else Path(os.path.abspath(name)).as_uri(), **options)
    except ValueError:
        known = "it knows s3://, gs://, hf://, https://, memory:// and files"
        raise UsageError(f"{name}: has a protocol that fsspec does not know", hint=known) from None
    except ImportError as error:
        raise _missing_package(name, error) from None
    return store, str(path) if is_url(name) else os.path.abspath(name)
