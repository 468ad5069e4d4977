"""Open, read and write files: atomic UTF-8 writes that follow no foreign link, and reads of bounded size."""

from __future__ import annotations

import codecs
import contextlib
import errno
import os
import re
import shutil
import stat
import sys
from collections.abc import Iterable, Iterator
from itertools import count
from pathlib import Path
from typing import BinaryIO, Literal, NamedTuple, TypeAlias

from vidspec.errors import OutputError, UsageError

__all__ = [
    "LFS_HINT",
    "FileKind",
    "FileLock",
    "NamedPath",
    "back_up",
    "backup_of",
    "behind_link",
    "check_distinct",
    "check_output",
    "copy_to_backup",
    "decode_text",
    "encode_line",
    "held_file",
    "is_lfs_pointer",
    "open_own",
    "permissions",
    "read_text",
    "read_whole",
    "replacing",
    "write_whole",
]

#: An option and the file it names; None or ``-`` for none.
NamedPath: TypeAlias = "tuple[str, str | Path | None]"
#: Bytes at the beginning of a file that are searched for its mark.
_HEAD = 1 << 20
#: First line of the text that Git LFS leaves in place of a file, and the bytes that the text may have.
_LFS, _LFS_BYTES = b"version https://git-lfs.github.com/spec/v1\n", 1024
#: Hint for such a file.
LFS_HINT = "run git lfs pull in the repository that it is from"


class FileKind(NamedTuple):
    """A kind of file that vidspec writes, recognised by its content.

    ``name`` completes "is not a ..." in an error; ``mark`` is a regular expression that matches within the first MiB of
    these files and of no others.
    """

    name: str
    mark: bytes


def encode_line(line: str) -> bytes:
    """Encode ``line`` as UTF-8 in any locale; bytes of a path that is not UTF-8 become ``\\udcXX``.

    JSON escapes them the same way, so a JSON line stays valid.
    """
    return line.encode("utf-8", "backslashreplace")


def read_whole(path: str | Path, most: int, label: str, *, pipe: bool = False) -> bytes:
    """Return the content of a file, or of standard input if ``path`` is ``-`` and ``pipe`` is set.

    Args:
        path: the file.
        most: maximum size in bytes.
        label: beginning of error messages.
        pipe: accept a pipe as well as a regular file. A device is never accepted: it may have no end.

    Raises:
        UsageError: the file cannot be read, is of another kind, or is too long.
    """
    try:
        if pipe and str(path) == "-":
            content = sys.stdin.buffer.read(most + 1)
        else:
            mode = os.stat(path).st_mode  # checked before opening, which may block on a pipe
            if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode) or (pipe and stat.S_ISFIFO(mode))):
                raise UsageError(f"{label}: is not a regular file", hint="write it into a file")
            with open(path, "rb") as file:
                content = file.read(most + 1)
    except (OSError, ValueError) as error:  # a name with a NUL is a ValueError
        raise UsageError(f"{label}: cannot be read: {getattr(error, 'strerror', None) or error}") from None
    if len(content) > most:
        raise UsageError(f"{label}: is longer than {most >> 20} MiB")
    return content


def decode_text(content: bytes, errors: str = "strict") -> str:
    """Decode UTF-8, or UTF-16 with a byte order mark; the mark, which Windows tools write before UTF-8 too, is dropped.

    Raises:
        UnicodeDecodeError: it is neither.
    """
    utf16 = content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    return content.decode("utf-16" if utf16 else "utf-8-sig", errors)


def read_text(path: str | Path, most: int, label: str, *, pipe: bool = False, errors: str = "strict") -> str:
    """Return the text of a file, see :func:`read_whole` and :func:`decode_text`.

    Raises:
        UsageError: the file cannot be read, is too long, is not text, or is a pointer of Git LFS.
    """
    content = read_whole(path, most, label, pipe=pipe)
    if content.startswith(_LFS):
        raise UsageError(f"{label}: is a pointer of Git LFS, not the file itself", hint=LFS_HINT)
    try:
        return decode_text(content, errors)
    except UnicodeDecodeError:
        raise UsageError(f"{label}: is not UTF-8 text") from None


def is_lfs_pointer(path: str | Path) -> bool:
    """Return True if a regular file is the pointer that Git LFS leaves in place of a file not downloaded yet.

    Raises:
        OSError: it cannot be read.
    """
    if os.stat(path).st_size > _LFS_BYTES:
        return False
    with open(path, "rb") as file:
        return file.read(len(_LFS)) == _LFS


def open_own(path: Path, mode: Literal["xb", "ab", "r+b"]) -> BinaryIO:
    """Open a file under a name that vidspec chose, for writing.

    The folder may come from somebody else, who may have put a link under the name: it is never followed.

    Args:
        path: the file.
        mode: ``xb`` removes what has the name and makes a new file, ``ab`` appends, ``r+b`` changes an existing file.

    Raises:
        OSError: the name is a link, not a regular file, or cannot be opened.
    """
    if mode == "xb":
        path.unlink(missing_ok=True)
    elif path.is_symlink():
        raise _link_error(path)

    def opener(name: str, flags: int) -> int:
        number = os.open(name, flags | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0), 0o666)
        if not stat.S_ISREG(os.fstat(number).st_mode):
            os.close(number)
            raise OSError(errno.EINVAL, f"{path.name} is not a regular file", name)
        return number

    return open(path, mode, opener=opener)


def _link_error(path: Path) -> OSError:
    return OSError(errno.ELOOP, f"{path.name} is a link", str(path))


def behind_link(path: Path) -> Path:
    """Return the file to write for an output that the user named: what it points to if it is a link."""
    return Path(os.path.realpath(path)) if path.is_symlink() else path


def write_whole(path: Path, content: str | bytes, *, mode: int | None = None) -> None:
    """Write a file atomically, see :func:`replacing`: it is replaced whole or not at all.

    Raises:
        OutputError: it cannot be written.
    """
    try:
        with replacing(path, mode=mode) as file:
            file.write(encode_line(content) if isinstance(content, str) else content)
    except OSError as error:
        raise OutputError(f"{path}: cannot be written: {error.strerror or error}") from None


@contextlib.contextmanager
def replacing(path: Path, *, mode: int | None = None) -> Iterator[BinaryIO]:
    """Yield a new file ``.NAME.part``, which replaces ``path`` after the block; if that fails, it is removed.

    Args:
        path: the file; a link is refused, see :func:`behind_link` for those that a user may name.
        mode: its permissions; None for those of the file that is replaced.

    Raises:
        OSError: it cannot be written.
    """
    if path.is_symlink():
        raise _link_error(path)
    shortened = os.fsdecode(os.fsencode(path.name)[-249:])  # a name may have 255 bytes
    part = path.with_name(f".{shortened}.part")
    try:
        with open_own(part, "xb") as file:
            with contextlib.suppress(OSError):  # there is no earlier file, or permissions cannot be set
                os.chmod(part, permissions(path) if mode is None else mode)
            yield file
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):  # it may be a folder, or that of the file has gone
            part.unlink(missing_ok=True)
        raise


def backup_of(path: Path) -> Path:
    """Return the first free backup name of a file: ``NAME~``, ``NAME~1~`` and so on."""
    names = (path.with_name(f"{path.name}~{f'{number}~' if number else ''}") for number in count())
    return next(name for name in names if not os.path.lexists(name))


def permissions(path: Path) -> int:
    """Return the permission bits of a file; raises OSError if there is none."""
    return path.stat().st_mode & 0o777


def back_up(path: Path) -> Path | None:
    """Rename a file or link to its :func:`backup_of` name and return that; None if there is none or it is empty."""
    if not path.is_symlink() and (not path.is_file() or path.stat().st_size == 0):
        return None
    return path.replace(backup_of(path))


def copy_to_backup(path: Path) -> Path:
    """Copy a file, its times and permissions to its :func:`backup_of` name and return that."""
    backup = backup_of(path)
    with path.open("rb") as file, open_own(backup, "xb") as copy:
        shutil.copyfileobj(file, copy)
    shutil.copystat(path, backup)
    return backup


#: Errors of file systems without locks, as NFS mounted with ``nolock`` is, some of FUSE and of SMB.
_NO_LOCKS = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOTSUP)


class FileLock:
    """Locks a file against other processes through ``.NAME.lock`` next to it; the lock file is removed on release.

    A waiter may lock a file that was unlinked meanwhile; filelock detects this and starts over with the current one.
    Where the file system has no locks, a file ``.NAME.held`` that names the holder is the lock: it outlives a holder
    that is killed, and is then taken over on the same machine only.

    Args:
        path: the file.
        timeout: seconds to wait for another process; long enough for one that is just releasing the lock.

    Raises:
        TimeoutError: another process holds the lock.
        OSError: the lock file cannot be created, or something that is no lock file has its name.
    """

    def __init__(self, path: Path, timeout: float = 0.2) -> None:
        from filelock import BaseFileLock, FileLock, SoftFileLock

        file = path.with_name(f".{path.name}.lock")
        _check_lock_file(file)
        self._lock: BaseFileLock = FileLock(file, timeout=timeout, thread_local=False)
        try:
            self._lock.acquire()
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                raise
            file.unlink(missing_ok=True)
            self._lock = SoftFileLock(held_file(path), timeout=timeout, thread_local=False)
            self._lock.acquire()
        self._unlinks = self._lock.lock_file == str(file)

    def release(self) -> None:
        """Release the lock; a second call does nothing."""
        if self._lock.is_locked:
            with contextlib.suppress(OSError):  # some systems cannot remove an open file
                if self._unlinks:
                    os.unlink(self._lock.lock_file)  # while still locked: later it may belong to another process
            self._lock.release()

    def __enter__(self) -> FileLock:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


def _check_lock_file(file: Path) -> None:
    """Refuse another name of a file elsewhere: older versions of filelock empty the file that they lock."""
    with contextlib.suppress(FileNotFoundError):
        status = file.lstat()
        if not stat.S_ISREG(status.st_mode) or status.st_nlink > 1:
            raise OSError(errno.ELOOP, f"{file.name} is a link, or no regular file")


def held_file(path: Path) -> Path:
    """Return the file that is a file's lock where the file system has no locks."""
    return path.with_name(f".{path.name}.held")


def check_output(path: Path, inputs: Iterable[str], option: str, kind: FileKind | None = None) -> None:
    """Check before any model is loaded that ``path`` can be written and is neither a clip nor a foreign file.

    Args:
        path: the file.
        inputs: the clips.
        option: the option that names the file.
        kind: required kind of an existing file that will be replaced or appended to; an empty file passes. None if the
            caller keeps the existing file.

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
    if kind is not None and path.exists() and not _is_kind(path, kind):
        raise UsageError(
            f"{option} {path}: exists already, and is not a {kind.name}",
            hint="name another file, or move this one away",
        )


def check_distinct(written: Iterable[NamedPath], read: Iterable[NamedPath] = ()) -> None:
    """Reject a file that is written twice, or both read and written. Devices and pipes may be named several times.

    Args:
        written, read: options with their files.

    Raises:
        UsageError: naming both options.
    """
    inputs = {_file_key(path): f"{option} {path}" for option, path in read if path not in (None, "-")}
    outputs: dict[object, str] = {}
    for option, path in written:
        if path in (None, "-") or (file := _file_key(path)) is None:
            continue
        if other := inputs.get(file) or outputs.get(file):
            raise UsageError(f"{option} {path}: is the same file as {other}", hint="name another file")
        outputs[file] = f"{option} {path}"


def _file_key(path: str | Path | None) -> object:
    """Return a key equal for all names of one regular file, existing or not; None for a folder, device or pipe."""
    try:
        status = os.stat(path or "")
    except (OSError, ValueError):
        return os.path.realpath(str(path).replace("\0", ""))
    return (status.st_dev, status.st_ino) if stat.S_ISREG(status.st_mode) else None


def _is_kind(path: Path, kind: FileKind) -> bool:
    """Return True if a regular file is of a kind, or empty."""
    if not path.is_file():
        return False
    try:
        with path.open("rb") as file:
            head = file.read(_HEAD)
    except OSError:
        return False
    return not head or re.search(kind.mark, head) is not None
