"""Decides whether a file is free, written by a run, edited since, or foreign, for runs and all commands beside them.

A run marks what it writes: a line of its journal has the name of the file and the hash of its bytes. Nothing else makes
a file a run's.
"""

from __future__ import annotations

import fnmatch
import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import Generic, Literal, NamedTuple, TypeAlias, TypedDict, TypeVar

from vidspec.escaping import json_text
from vidspec.files import encode_line

__all__ = [
    "ChangedFiles",
    "FileMark",
    "FileMarks",
    "FileState",
    "KnownFiles",
    "MarkedCaption",
    "file_state",
    "folder_journals",
    "hidden_journal",
    "is_mark",
    "mark_line",
    "parsed_mark",
]

#: Beginning of a mark's line; no record begins like this.
_MARK = b'{"file": '


class FileMark(NamedTuple):
    """State of a file as a run wrote it: the ``sha256`` of its first ``size`` bytes.

    ``offset`` and ``length`` locate the line in the journal, ``file`` is relative to the journal's folder, ``settings``
    and ``format`` are those of the records in the file. ``clip`` is set for a file of one clip, and ``segment`` for one
    of its segments; versions before 0.5.0 set neither.
    """

    offset: int
    length: int
    file: str
    size: int
    sha256: str
    settings: str | None = None
    format: str | None = None
    clip: str | None = None
    segment: int | None = None


class MarkedCaption(TypedDict, total=False):
    """The optional fields of a :class:`FileMark`."""

    settings: str | None
    format: str | None
    clip: str | None
    segment: int | None


class FileMarks:
    """Marks in a journal, of each file the last two: a run may have been killed between mark and write.

    Args:
        journal: path of the journal, without links.
    """

    def __init__(self, journal: Path) -> None:
        self.journal = journal
        self._marks: dict[str, list[FileMark]] = {}
        self._folders: set[str] = set()

    @classmethod
    def read(cls, journal: Path) -> FileMarks:
        """Return the marks in a journal's file; none if it cannot be read."""
        marks, at = cls(Path(os.path.realpath(journal))), 0
        if journal.is_symlink() or not journal.is_file():  # no run made it, or it may have no end
            return marks
        with suppress(OSError), journal.open("rb") as file:
            for line in file:
                if (mark := parsed_mark(line)) is not None:
                    marks.add(mark._replace(offset=at, length=len(line)))
                at += len(line)
        return marks

    def __iter__(self) -> Iterator[FileMark]:
        return chain.from_iterable(self._marks.values())

    def add(self, mark: FileMark) -> None:
        """Add a mark, the last of its file."""
        self._marks[mark.file] = [*self._marks.get(mark.file, ())[-1:], mark]
        self._folders.add(os.path.dirname(mark.file))

    def of(self, path: Path) -> Sequence[FileMark]:
        """Return the marks of a file."""
        return self._marks.get(self.name(path), ())

    def latest(self, path: Path) -> FileMark | None:
        """Return the last mark of a file."""
        return next(reversed(self.of(path)), None)

    def name(self, path: Path) -> str:
        """Return the name of a file in marks: relative to the journal's folder."""
        return os.path.relpath(os.path.join(os.path.realpath(path.parent), path.name), self.journal.parent)

    def path(self, mark: FileMark) -> Path:
        """Return the path of a marked file."""
        return self.journal.parent / mark.file

    @property
    def folders(self) -> set[str]:
        """Folders of the marked files."""
        return {os.path.realpath(self.journal.parent / folder) for folder in self._folders}


def is_mark(line: bytes) -> bool:
    """Return True if a line of a journal is a file mark, not a record."""
    return line.startswith(_MARK)


def parsed_mark(line: bytes) -> FileMark | None:
    """Parse the mark in a line, without its place in the journal; None if the line is no mark."""
    if not is_mark(line):
        return None
    try:
        fields = json.loads(line)
        return FileMark(
            0, 0, str(fields["file"]), int(fields["size"]), *(fields.get(key) for key in FileMark._fields[4:])
        )
    except (ValueError, KeyError, TypeError, RecursionError):
        return None


def mark_line(mark: FileMark) -> bytes:
    """Return a mark as a line of a journal."""
    known = {key: value for key, value in mark._asdict().items() if key not in ("offset", "length")}
    known = {key: value for key, value in known.items() if value is not None or key not in ("clip", "segment")}
    return encode_line(json_text(known) + "\n")


#: Missing or empty; as a run wrote it; edited since; written by no run.
FileState: TypeAlias = Literal["free", "written", "edited", "foreign"]


#: Returns what a run appended to a file after a mark, one of these.
AppendedBytes: TypeAlias = Callable[[FileMarks, FileMark], bytes]


def _nothing(marks: FileMarks, mark: FileMark) -> bytes:
    return b""


def hidden_journal(path: Path) -> Path:
    """Return the path of the hidden journal of a file that cannot be its own."""
    return path.with_name(f".{path.name}.vidspec.jsonl")


def folder_journals(folder: Path) -> list[Path]:
    """Return the hidden journals in a folder, sorted; none if it cannot be listed."""
    try:
        names = os.listdir(folder)
    except OSError:
        return []
    return [folder / name for name in sorted(fnmatch.filter(names, ".vidspec*.jsonl"))]


def file_state(
    path: Path,
    known: Iterable[FileMarks],
    appended: AppendedBytes = _nothing,
    *,
    named: bool = False,
) -> FileState:
    """Return the state of a file.

    Args:
        path: the file.
        known: marks of the journals that may name it.
        appended: what a run appended to the file after one of the marks; a killed one may have written less of it.
        named: the user named the file, so that a link stands for what it points to; any other link is foreign.
    """
    if os.path.islink(path) and not (named and os.path.isfile(path)):
        return "foreign"
    if not os.path.isfile(path):
        return "free"
    try:
        content = path.read_bytes()
    except OSError:
        return "foreign"
    if not content:
        return "free"
    found = [(one, mark) for one in known for mark in one.of(path)]
    for marks, mark in found:
        begun = mark.size <= len(content) and hashlib.sha256(content[: mark.size]).hexdigest() == mark.sha256
        if begun and appended(marks, mark).startswith(content[mark.size :]):
            return "written"
    return "edited" if found else "foreign"


Content = TypeVar("Content")


class ChangedFiles(Generic[Content]):
    """Contents of files, each read again only after its file has changed. Threads may share it.

    Args:
        read: reads a file, which may be missing.
    """

    def __init__(self, read: Callable[[Path], Content]) -> None:
        self._read = read
        self._known: dict[Path, tuple[tuple[int, ...] | None, Content]] = {}

    def __call__(self, path: Path) -> Content:
        """Return the content of a file as it is now; raises as ``read`` does."""
        now = None
        with suppress(OSError):
            status = path.stat()
            now = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)
        known = self._known.get(path)
        if known is None or known[0] != now:
            known = self._known[path] = (now, self._read(path))
        return known[1]


class KnownFiles:
    """States of files for commands beside a run, by their own journals and those of their folders and above.

    Each folder is searched once, and of each journal there only the marks are read.

    Args:
        read: returns the marks of a journal.
    """

    def __init__(self, read: Callable[[Path], FileMarks] = FileMarks.read) -> None:
        self._read = read
        self._known: dict[Path, list[FileMarks]] = {}  # by folder

    def state(self, path: Path, appended: AppendedBytes = _nothing, *, named: bool = False) -> FileState:
        """Return the state of a file, see :func:`file_state`."""
        folder = Path(os.path.realpath(path.parent))
        known = chain.from_iterable(map(self._of_folder, (folder, *folder.parents)))
        return file_state(path, chain([self._read(hidden_journal(path))], known), appended, named=named)

    def _of_folder(self, folder: Path) -> list[FileMarks]:
        if folder not in self._known:
            self._known[folder] = [*map(self._read, folder_journals(folder))]
        return self._known[folder]
