"""Journals around files, and by their marks the state of a file: free, written by a run, edited since, or foreign.

A run marks what it writes: a line of its journal has the name of the file and the hash of its bytes. Nothing else makes
a file a run's. Runs and all commands beside them ask here.
"""

from __future__ import annotations

import fnmatch
import hashlib
import os
import stat
from collections.abc import Iterable
from itertools import chain, count
from pathlib import Path
from typing import Literal, TypeAlias

from vidspec.errors import OutputError
from vidspec.files import encode_line
from vidspec.runs.formats.base import OutputFormat
from vidspec.runs.store.journal import Journal, hidden_journal
from vidspec.runs.store.journal_lines import FileMark

#: Missing or empty; as a run wrote it; edited since; written by no run.
FileState: TypeAlias = Literal["free", "written", "edited", "foreign"]


class KnownJournals:
    """Journals by path, each read once and again only after its file has changed. Threads may share it.

    A file's journals are its hidden one and those in its folder and above.
    """

    def __init__(self) -> None:
        self._read: dict[Path, tuple[tuple[int, ...], Journal]] = {}
        self._near: dict[Path, list[Journal]] = {}  # by folder
        self._real: dict[Path, Path] = {}  # folders without links
        self._own: dict[Path, Journal] = {}

    def add(self, journal: Journal) -> None:
        """Take a journal that this process writes for what is at its path."""
        self._own[journal.path] = journal
        self._read.pop(journal.path, None)
        self.refresh()

    def refresh(self) -> None:
        """Forget which journals there are, as other processes may have made some and written others."""
        self._near.clear()
        self._real.clear()

    def read(self, path: Path) -> Journal | None:
        """Return a journal as it is now; None if it cannot be read, or is a link or a device, which no run made."""
        return self._as_it_is(Path(os.path.realpath(path.parent), path.name))

    def _as_it_is(self, path: Path) -> Journal | None:
        if path in self._own:
            return self._own[path]
        try:
            status = path.lstat()
            now = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)
            if not stat.S_ISREG(status.st_mode):
                return None
            if path not in self._read or self._read[path][0] != now:
                self._read[path] = now, Journal(path, read_only=True)
        except (OSError, OutputError):
            return None
        return self._read[path][1]

    def around(self, file: Path) -> list[Journal]:
        """Return the journals that may name a file, the nearest last."""
        folder = self._real.get(file.parent) or self._real.setdefault(file.parent, Path(os.path.realpath(file.parent)))
        if folder not in self._near:
            paths = [path for one in (*reversed(folder.parents), folder) for path in folder_journals(one)]
            self._near[folder] = [found for path in paths if (found := self._as_it_is(path)) is not None]
        hidden = self._as_it_is(hidden_journal(folder / file.name))
        return self._near[folder] if hidden is None else [*self._near[folder], hidden]

    def marks(self, file: Path, own: Iterable[Journal] = ()) -> list[tuple[Journal, FileMark]]:
        """Return the marks of a file with their journals, in the order of these, at the end those in ``own``."""
        journals = dict.fromkeys(chain(self.around(file), own))
        return [(journal, mark) for journal in journals for mark in journal.index.marks.of(file)]

    def state(
        self, file: Path, own: Iterable[Journal] = (), form: OutputFormat | None = None, *, named: bool = False
    ) -> FileState:
        """Return the state of a file.

        Args:
            file: the file.
            own: further journals that may name it, as those that a run writes.
            form: its format, if runs append to it; a killed one may have written less than its journal has.
            named: the user named the file, so that a link stands for what it points to; any other link is foreign.
        """
        if os.path.islink(file) and not (named and os.path.isfile(file)):
            return "foreign"
        if not os.path.isfile(file):
            return "free"
        try:
            content = file.read_bytes()
        except OSError:
            return "foreign"
        if not content:
            return "free"
        found = self.marks(file, own)
        if any(_is_content(content, journal, mark, form) for journal, mark in found):
            return "written"
        return "edited" if found else "foreign"

    def text_by_hand(self, file: Path, text: str) -> str:
        """Return the text of a person for a file, with an ending by which no run can have written it."""
        marks = self.marks(file)
        texts = (text + "\n" * ends for ends in chain((1, 0), count(2)))
        return next(one for one in texts if one and not any(_is_content(encode_line(one), *mark) for mark in marks))


def folder_journals(folder: Path) -> list[Path]:
    """Return the hidden journals in a folder, sorted; none if it cannot be listed."""
    try:
        names = os.listdir(folder)
    except OSError:
        return []
    return [folder / name for name in sorted(fnmatch.filter(names, ".vidspec*.jsonl"))]


def _is_content(content: bytes, journal: Journal, mark: FileMark, form: OutputFormat | None = None) -> bool:
    """Return True if a run wrote this content, by a mark in its journal and the lines that it appended after that."""
    if mark.size > len(content) or hashlib.sha256(content[: mark.size]).hexdigest() != mark.sha256:
        return False
    lines = () if form is None else (form.line(record) for record in journal.records_after(mark))
    appended = b"".join(encode_line(line + "\n") for line in lines if line is not None)
    return appended.startswith(content[mark.size :])
