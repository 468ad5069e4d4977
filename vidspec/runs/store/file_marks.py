"""Marks of files in a journal: the name of a file, and the hash of its bytes as a run wrote it."""

from __future__ import annotations

import fnmatch
import json
import os
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import NamedTuple, TypedDict

from vidspec.escaping import json_text
from vidspec.files import encode_line
from vidspec.runs.formats.base import holds_caption

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
        self._clips: dict[tuple[str | None, int | None], dict[str, None]] = {}  # files by clip and segment

    def __iter__(self) -> Iterator[FileMark]:
        return chain.from_iterable(self._marks.values())

    def add(self, mark: FileMark) -> None:
        """Add a mark, the last of its file."""
        self._marks[mark.file] = [*self._marks.get(mark.file, ())[-1:], mark]
        self._folders.add(os.path.dirname(mark.file))
        self._clips.setdefault((mark.clip, mark.segment), {})[mark.file] = None

    def of(self, path: Path) -> Sequence[FileMark]:
        """Return the marks of a file."""
        return self._marks.get(self.name(path), ())

    def latest(self, path: Path) -> FileMark | None:
        """Return the last mark of a file."""
        return next(reversed(self.of(path)), None)

    def caption_files(self, clip: str | None, segment: int | None = None) -> dict[Path, str]:
        """Return the caption files of a clip or its segment, with their formats; None for those without a clip."""
        latest = (self._marks[file][-1] for file in self._clips.get((clip, segment), ()))
        return {self.path(mark): mark.format for mark in latest if mark.format and holds_caption(mark.format)}

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
