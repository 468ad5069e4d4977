"""File marks: journal lines with the name of a file that a run wrote and the hash of its bytes. Compares no file."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import NamedTuple

from vidspec.escaping import json_text
from vidspec.files import encode_line

__all__ = ["FileMark", "is_mark", "mark_line", "marked_folders", "parsed_mark"]

#: Beginning of a mark's line; no record begins like this.
_MARK = b'{"file": '


class FileMark(NamedTuple):
    """State of a file as a run wrote it: the ``sha256`` of its first ``size`` bytes.

    ``offset`` and ``length`` locate the line in the journal, ``file`` is relative to the journal's folder, ``settings``
    and ``format`` are those of the records in the file.
    """

    offset: int
    length: int
    file: str
    size: int
    sha256: str
    settings: str | None = None
    format: str | None = None


def is_mark(line: bytes) -> bool:
    """Return True if a line of a journal is a file mark, not a record."""
    return line.startswith(_MARK)


def marked_folders(path: Path) -> set[str]:
    """Return the folders of the files marked in the journal at ``path``; none if it cannot be read or written."""
    if not (path.is_file() and os.access(path, os.R_OK | os.W_OK) and os.access(path.parent, os.W_OK)):
        return set()
    with path.open("rb") as file:
        marks = filter(None, map(parsed_mark, file))
        return {os.path.realpath(path.parent / os.path.dirname(mark.file)) for mark in marks}


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
    return encode_line(json_text(known) + "\n")
