"""Captions that other runs left in the clips' own folders: a list or table takes them over instead of captioning."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from vidspec.runs.formats.base import make_format
from vidspec.runs.job import Job
from vidspec.runs.store.file_states import FileMarks, FileState, file_state
from vidspec.runs.store.journal import Journal
from vidspec.runs.store.sidecars import JournalFinder, SidecarNames
from vidspec.runs.stores import is_url

__all__ = ["CaptionsBeside"]


class CaptionsBeside:
    """Journals and caption files beside clips, for reading; a folder without a journal has no captions."""

    def __init__(self) -> None:
        self._names = SidecarNames(make_format("txt"), None, None, "")
        self._find = JournalFinder(self._names)
        self._journals: dict[Path, Journal | None] = {}

    def journal(self, job: Job) -> Journal | None:
        """Return the journal of a clip's folder; None if there is none.

        Raises:
            OutputError: it cannot be read.
        """
        if job.shard is not None or is_url(job.path):
            return None
        path = self._find(job)
        if path not in self._journals:
            there = path.is_file() and not path.is_symlink()
            self._journals[path] = Journal(path, read_only=True) if there else None
        return self._journals[path]

    def state(self, job: Job) -> FileState:
        """Return the state of the caption file beside a clip; ``free`` in a folder without a journal."""
        journal = self.journal(job)
        return "free" if journal is None else file_state(self._names.path(job), [journal.index.marks])

    @property
    def marks(self) -> list[FileMarks]:
        """Marks of the journals of all clips that were asked about."""
        return [journal.index.marks for journal in self._journals.values() if journal is not None]

    def files(self, jobs: Iterable[Job]) -> Iterator[tuple[Job, Path]]:
        """Yield clips in folders with a journal, with their caption files."""
        return ((job, self._names.path(job)) for job in jobs if self.journal(job) is not None)
