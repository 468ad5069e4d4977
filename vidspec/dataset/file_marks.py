"""Marks of files as lines of a journal: which file a run wrote, and the hash of its bytes. Compares no file."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import NamedTuple

from vidspec.escaping import json_text
from vidspec.files import encode_line

__all__ = ["FileMark", "is_mark", "mark_line", "marked_folders", "parsed_mark"]

#: How the line of a mark begins; no record begins so.
_MARK = b'{"file": '


class FileMark(NamedTuple):
    """A file as the run wrote it: its first ``size`` bytes have this ``sha256``.

    ``offset`` and ``length`` are those of the line in the journal, ``file`` is relative to the journal's folder, and
    ``settings`` and ``format`` are those of the records that the file shows.
    """

    offset: int
    length: int
    file: str
    size: int
    sha256: str
    settings: str | None = None
    format: str | None = None


def is_mark(line: bytes) -> bool:
    """Whether a line of a journal is the mark of a file and no record."""
    return line.startswith(_MARK)


def marked_folders(path: Path) -> set[str]:
    """The folders of the files that the journal at ``path`` marks; none where it cannot be read or written."""
    if not (path.is_file() and os.access(path, os.R_OK | os.W_OK) and os.access(path.parent, os.W_OK)):
        return set()
    with path.open("rb") as file:
        marks = filter(None, map(parsed_mark, file))
        return {os.path.realpath(path.parent / os.path.dirname(mark.file)) for mark in marks}


def parsed_mark(line: bytes) -> FileMark | None:
    """The mark in a line, whose place is not known yet; None if it is none."""
    if not is_mark(line):
        return None
    try:
        found = json.loads(line)
        return FileMark(0, 0, str(found["file"]), int(found["size"]), *(found.get(key) for key in FileMark._fields[4:]))
    except (ValueError, KeyError, TypeError, RecursionError):
        return None


def mark_line(mark: FileMark) -> bytes:
    """A mark as a line of a journal."""
    known = {key: value for key, value in mark._asdict().items() if key not in ("offset", "length")}
    return encode_line(json_text(known) + "\n")
