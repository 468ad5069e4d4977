"""Decides whether a file is free, written by a run, edited since, or foreign, for runs and all commands beside them.

Marks in a journal (``vidspec.runs.file_marks``) hold the hash of what a run wrote; nothing else makes a file a run's.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Literal, TypeAlias

from vidspec.files import encode_line
from vidspec.runs.file_marks import FileMark, FileMarks
from vidspec.runs.formats.base import OutputFormat
from vidspec.runs.journal import Journal

__all__ = ["FileState", "KnownFiles", "file_state", "hidden_journal"]

#: Missing or empty; as a run wrote it; edited since; written by no run.
FileState: TypeAlias = Literal["free", "written", "edited", "foreign"]


def hidden_journal(path: Path) -> Path:
    """Return the path of the hidden journal of a file that cannot be its own."""
    return path.with_name(f".{path.name}.vidspec.jsonl")


def file_state(
    path: Path,
    known: Iterable[FileMarks],
    appended: Callable[[FileMarks, FileMark], bytes] = lambda marks, mark: b"",
) -> FileState:
    """Return the state of a file.

    Args:
        path: the file.
        known: marks of the journals that may name it.
        appended: what a run appended to the file after one of the marks; a killed one may have written less of it.
    """
    if not os.path.isfile(path):
        return "foreign" if os.path.islink(path) else "free"
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


class KnownFiles:
    """States of files for commands beside a run, by their own journals and those of their folders and above.

    Each journal is read once, for its marks alone.
    """

    def __init__(self) -> None:
        self._marks: dict[Path, FileMarks] = {}

    def state(self, path: Path, form: OutputFormat | None = None) -> FileState:
        """Return the state of a file, see :func:`file_state`; ``form`` is its format if a run may append lines."""

        def appended(marks: FileMarks, mark: FileMark) -> bytes:
            if form is None:
                return b""
            lines = map(form.line, Journal(marks.journal, look=True).records_after(mark))
            return b"".join(encode_line(f"{line}\n") for line in lines if line is not None)

        return file_state(path, map(self._read, self._journals(path)), appended)

    def _journals(self, path: Path) -> Iterator[Path]:
        yield hidden_journal(path)
        folder = Path(os.path.realpath(path.parent))
        for one in (folder, *folder.parents):
            yield from sorted(one.glob(".vidspec*.jsonl"))

    def _read(self, journal: Path) -> FileMarks:
        if journal not in self._marks:
            self._marks[journal] = FileMarks.read(journal)
        return self._marks[journal]
