"""Files by their names, local or behind a URL, through fsspec: opened, copied, listed and written; knows no format.

What fails on the way to a store is tried again a few times; then it is one error that names the file.
"""

from __future__ import annotations

import os
import posixpath
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, TypeVar

from vidspec.errors import OutputError, UsageError, VideoError, VidspecError
from vidspec.files import write_whole

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

__all__ = ["attempt", "copy", "is_url", "joined", "names_in", "opened", "put"]

T = TypeVar("T")

#: Seconds between the attempts at what a store does not give.
PAUSES = (0.2, 0.8, 3.2)
#: Bytes that are asked for at once: of a clip, and around a header in a tar, most of which lie far apart.
CHUNK, HEADERS = 8 << 20, 1 << 16
#: Stores whose objects lie in a bucket, and appear under their name when they are complete.
BUCKETS = ("s3", "s3a", "gs", "gcs", "az", "abfs")


def is_url(name: str) -> bool:
    """Whether a name is a URL."""
    return "://" in name


def joined(folder: str, name: str) -> str:
    """A name in a folder, which may be a URL; a name that stands for itself stays."""
    if is_url(folder) and not is_url(name):
        return f"{folder.rstrip('/')}/{name}"
    return name if is_url(name) else os.path.join(folder, name)


@contextmanager
def opened(name: str) -> Iterator[BinaryIO]:
    """A file that can be read from any place, closed on leaving. Raises what the store raises: for :func:`attempt`."""
    store, path = _store(name)
    how = {"block_size": HEADERS, "cache_type": "readahead"} if is_url(name) else {}
    with store.open(path, "rb", **how) as file:
        yield file


def copy(name: str, to: Path, start: int = 0, size: int | None = None) -> None:
    """Copy a file, or ``size`` bytes of it from ``start`` on, into a local one.

    Raises:
        VideoError: missing or unreadable; truncated where it ends before.
    """
    store, path = _store(name)
    if size is None:
        attempt(name, partial(store.get_file, path, str(to)))
        return
    with to.open("wb") as file:
        for first in range(start, start + size, CHUNK):
            end = min(first + CHUNK, start + size)
            got = file.write(attempt(name, partial(store.cat_file, path, start=first, end=end)))
            if got > end - first:  # a web server that gives whole files only
                raise VideoError(f"{name}: cannot be read in pieces", hint="download it first")
            if got < end - first:
                raise VideoError(f"{name}: ends within the clip", kind="truncated", hint="copy or download it again")


def names_in(folder: str) -> set[str]:
    """The names of the files in a folder; none where there is no such folder."""
    store, path = _store(folder)

    def listed() -> set[str]:
        try:
            return {posixpath.basename(one) for one in store.ls(path, detail=False, refresh=True)}
        except FileNotFoundError:
            return set()

    return attempt(folder, listed)


def put(name: str, content: bytes) -> None:
    """Write a file at once: it is there whole or not at all.

    Raises:
        OutputError: it cannot be written.
    """
    if not is_url(name):
        write_whole(Path(name), content)
        return
    store, path = _store(name)
    part = path if name.split("://")[0] in BUCKETS else f"{path}.part"
    try:
        attempt(name, partial(store.pipe_file, part, content))
        if part != path:
            attempt(name, partial(store.mv, part, path))
    except VideoError as error:
        raise OutputError(error.message.replace("be read", "be written"), hint=error.hint) from None


def attempt(name: str, call: Callable[[], T]) -> T:
    """What ``call`` gives; where ``name`` is a URL it is called again after a failure, up to four times.

    Raises:
        VideoError: missing, or unreadable.
        UsageError: a package is missing.
        VidspecError: whatever ``call`` says of the file itself.
    """
    for pause in (*PAUSES, None):
        try:
            return call()
        except VidspecError:
            raise
        except ImportError as error:
            raise _lacking(name, error) from None
        except FileNotFoundError:
            if pause is None or not name.startswith("http"):  # whose client says so of any failure
                what = "file, or no such bucket" if is_url(name) else "file"
                raise VideoError(f"{name}: there is no such {what}", kind="missing", hint="check its name") from None
        except Exception as error:  # each store's client has exceptions of its own
            if not is_url(name) and not isinstance(error, OSError):
                raise
            if pause is None or not is_url(name):
                times = f" ({len(PAUSES) + 1} attempts)" if is_url(name) else ""
                reason = str(getattr(error, "strerror", None) or error).split("\n")[0] or type(error).__name__
                raise VideoError(f"{name}: cannot be read{times}: {reason}") from None
        time.sleep(pause or 0.0)
    raise AssertionError


def _lacking(name: str, error: ImportError) -> UsageError:
    module = getattr(error.__cause__, "name", None) or error.name or str(error)
    hint = "'vidspec[data]'" if module == "pyarrow" else module
    return UsageError(f"{name}: needs {module}, which is not installed", hint=f"pip install {hint}")


def _store(name: str) -> tuple[AbstractFileSystem, str]:
    """The file system of a file, and its path there.

    Raises:
        UsageError: the protocol is not known, or needs a package that is not installed.
    """
    from fsspec.core import url_to_fs

    try:
        store, path = url_to_fs(name if is_url(name) else Path(os.path.abspath(name)).as_uri())
    except ValueError:
        known = "s3://, gs://, hf://, https://, memory:// or a file"
        raise UsageError(f"{name}: is of no protocol that fsspec knows", hint=known) from None
    except ImportError as error:
        raise _lacking(name, error) from None
    return store, str(path) if is_url(name) else os.path.abspath(name)
