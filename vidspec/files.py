"""Files that are written: whole or not at all, as UTF-8 whatever the locale, never over what vidspec did not write;
and files that are read whole, which may be only so long."""

from __future__ import annotations

import contextlib
import os
import re
import stat
import sys
from collections.abc import Iterable
from itertools import count
from pathlib import Path
from typing import NamedTuple, TypeAlias

from vidspec.errors import OutputError, UsageError

__all__ = [
    "PICTURE",
    "FileKind",
    "FileLock",
    "NamedPath",
    "back_up",
    "backup_of",
    "check_distinct",
    "check_output",
    "encode_line",
    "read_whole",
    "write_whole",
]

#: An option and the file that it names, None or ``-`` for none.
NamedPath: TypeAlias = "tuple[str, str | Path | None]"
#: Bytes from the beginning of a file within which its mark stands.
_HEAD = 1 << 20


class FileKind(NamedTuple):
    """Files of one sort that vidspec writes, by what tells them from all others.

    ``name`` completes "is no ..." in an error; ``mark`` is a regular expression that is found in the first MiB of each
    of them and of no other file.
    """

    name: str
    mark: bytes


#: PNG and SVG; their writers name vidspec as the software or the creator, or in a comment.
PICTURE = FileKind("picture drawn by vidspec", rb"tEXtSoftware\0vidspec|<dc:title>vidspec</dc:title>|<!-- vidspec ")


def encode_line(line: str) -> bytes:
    """UTF-8 of ``line``, whatever the locale; of a path that is not UTF-8 the foreign bytes become ``\\udcXX``.

    JSON escapes them the same way, so a JSON line stays valid.
    """
    return line.encode("utf-8", "backslashreplace")


def read_whole(path: str | Path, most: int, said: str, *, pipe: bool = False) -> bytes:
    """The content of a file, or of standard input where ``path`` is ``-`` and ``pipe`` is set.

    Args:
        path: the file.
        most: bytes that it may have.
        said: what errors begin with.
        pipe: whether a pipe will do for a regular file. A device never does: it may have no end.

    Raises:
        UsageError: it cannot be read, is no such file, or is longer.
    """
    try:
        if pipe and str(path) == "-":
            content = sys.stdin.buffer.read(most + 1)
        else:
            mode = os.stat(path).st_mode  # before it is opened: to open a pipe may wait for ever
            if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode) or (pipe and stat.S_ISFIFO(mode))):
                raise UsageError(f"{said}: is no regular file", hint="write it into a file")
            with open(path, "rb") as file:
                content = file.read(most + 1)
    except (OSError, ValueError) as error:  # a name with a NUL is a ValueError
        raise UsageError(f"{said}: cannot be read: {getattr(error, 'strerror', None) or error}") from None
    if len(content) > most:
        raise UsageError(f"{said}: is longer than {most >> 20} MiB")
    return content


def write_whole(path: Path, content: str | bytes) -> None:
    """Write a file at once: it is replaced whole or not at all.

    Raises:
        OutputError: it cannot be written.
    """
    part = path.with_name(f".{path.name}.part")
    try:
        with part.open("wb") as file:
            file.write(encode_line(content) if isinstance(content, str) else content)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    except OSError as error:
        raise OutputError(f"{path}: cannot be written: {error.strerror or error}") from None


def backup_of(path: Path) -> Path:
    """The name that a file is kept under: ``NAME~``, or ``NAME~1~`` and so on, whichever is free."""
    names = (path.with_name(f"{path.name}~{f'{number}~' if number else ''}") for number in count())
    return next(name for name in names if not os.path.lexists(name))


def back_up(path: Path) -> Path | None:
    """Keep a file that is there as :func:`backup_of` it; returns that, or None where there was nothing to keep."""
    if not path.is_file() or path.stat().st_size == 0:
        return None
    return path.replace(backup_of(path))


class FileLock:
    """Keeps other processes from a file by a locked ``.NAME.lock`` beside it, which is gone when the lock is released.

    Whoever waits for a lock file that was removed meanwhile gets a lock on no name: filelock finds that out when it has
    the lock, and begins again with the file of that name.

    Args:
        path: the file.
        timeout: seconds to wait for another process, at least those that one takes that is just letting go.

    Raises:
        TimeoutError: another process has the lock.
        OSError: the lock file cannot be made.
    """

    def __init__(self, path: Path, timeout: float = 0.2) -> None:
        from filelock import FileLock

        self._lock = FileLock(path.with_name(f".{path.name}.lock"), timeout=timeout, thread_local=False)
        self._lock.acquire()

    def release(self) -> None:
        """Let go; a second time does nothing."""
        if self._lock.is_locked:
            with contextlib.suppress(OSError):  # some systems remove no open file: it stays
                os.unlink(self._lock.lock_file)  # while it is locked, or it might be somebody else's by then
            self._lock.release()

    def __enter__(self) -> FileLock:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


def check_output(path: Path, inputs: Iterable[str], option: str, kind: FileKind | None = None) -> None:
    """Find out before any model is loaded that ``path`` cannot be written, is one of the clips, or is not to be lost.

    Args:
        path: the file.
        inputs: the clips.
        option: that names the file.
        kind: of a file that is replaced or added to: what is there already must be of this kind, or empty. None where
            the caller keeps what was there.

    Raises:
        UsageError: naming ``option``.
    """
    if path.is_dir():
        raise UsageError(f"{option} {path}: is a folder")
    if not path.parent.is_dir():
        raise UsageError(f"{option} {path}: there is no folder {path.parent}")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise UsageError(f"{option} {path}: no permission to write there")
    if any(os.path.realpath(path) == os.path.realpath(clip) for clip in inputs):
        raise UsageError(f"{option} {path}: is one of the clips")
    if kind is not None and path.exists() and not _is(path, kind):
        raise UsageError(
            f"{option} {path}: is there already, and is no {kind.name}", hint="name another file, or move this one away"
        )


def check_distinct(written: Iterable[NamedPath], read: Iterable[NamedPath] = ()) -> None:
    """Refuse a file that is written twice, or both read and written. Devices and pipes may be named several times.

    Args:
        written, read: options with their files.

    Raises:
        UsageError: naming both options.
    """
    inputs = {_identity(path): f"{option} {path}" for option, path in read if path not in (None, "-")}
    outputs: dict[object, str] = {}
    for option, path in written:
        if path in (None, "-") or (file := _identity(path)) is None:
            continue
        if other := inputs.get(file) or outputs.get(file):
            raise UsageError(f"{option} {path}: is the same file as {other}", hint="name another file")
        outputs[file] = f"{option} {path}"


def _identity(path: str | Path | None) -> object:
    """Something equal for all names of one regular file, there or not; None for a folder, a device or a pipe."""
    try:
        found = os.stat(path or "")
    except (OSError, ValueError):
        return os.path.realpath(str(path).replace("\0", ""))
    return (found.st_dev, found.st_ino) if stat.S_ISREG(found.st_mode) else None


def _is(path: Path, kind: FileKind) -> bool:
    """Whether a file is of a kind, or empty; what is no regular file is of none."""
    if not path.is_file():
        return False
    try:
        with path.open("rb") as file:
            head = file.read(_HEAD)
    except OSError:
        return False
    return not head or re.search(kind.mark, head) is not None
