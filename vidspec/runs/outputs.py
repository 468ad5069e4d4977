"""Records of a run go to outputs: journals with the files rendered from them, and standard output.

A journal (``vidspec.runs.journal``) makes a run resumable; it alone decides what is done. Every file that users see
is rendered from one (``vidspec.runs.formats``), unless its format is a journal itself.
"""

from __future__ import annotations

import contextlib
import os
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import ClassVar

from vidspec.errors import OutputError
from vidspec.events.record import RecordDict
from vidspec.events.tally import counted
from vidspec.runs.job import Job
from vidspec.runs.journal import Journal, JournalEntry
from vidspec.runs.records import clip_id

__all__ = [
    "ONE_CLIP",
    "CombinedOutput",
    "FileOutput",
    "Output",
    "in_order",
    "make_folder",
]

#: Kind of an OutputError that concerns one clip; after any other kind nothing more can be written.
ONE_CLIP = "sidecar"


class Output:
    """Destination of records, with access to those of earlier runs; the base class keeps none.

    Each record comes with its clip, as the planned job.

    Attributes:
        has_journal: True if it has the records of earlier runs.
    """

    has_journal: ClassVar[bool] = False

    def parts(self, job: Job, settings: str) -> Mapping[int | None, JournalEntry]:
        """Return the records of a clip under these settings, by segment."""
        return {}

    def others(self, settings: Collection[str]) -> int:
        """Return the number of earlier records made under other settings."""
        return 0

    def check(self, job: Job) -> None:
        """Check before a clip is captioned that its record can be written.

        Raises:
            OutputError: of kind :data:`ONE_CLIP`.
        """

    def leaves(self, job: Job) -> bool:
        """Return True if all files of a clip exist and must not be replaced, so that captioning it is useless."""
        return False

    def existing_text(self, job: Job) -> str | None:
        """Return the text of a caption file that no run wrote, empty if there is none; None if the run uses none.

        Raises:
            OutputError: of kind :data:`ONE_CLIP`; the file cannot be read.
        """
        return None

    def add(self, job: Job, record: RecordDict) -> None:
        """Write a record; it is durable on return.

        Raises:
            OutputError: it could not be written; of kind :data:`ONE_CLIP` if those of other clips still can.
        """

    def keeps(self, job: Job) -> bool:
        """Return True if records of this job are kept at all."""
        return True

    def restore(self, job: Job, settings: str) -> None:
        """Write the missing file of a clip that needs no captioning."""

    def close(self, jobs: Sequence[Job], *, complete: bool) -> list[str]:
        """Finish the output after the last record; return notes for the user."""
        return []


class FileOutput(Output, ABC):
    """Output of files that are rendered from journals.

    Args:
        fresh: start over; earlier files are kept as ``NAME~``.
        look: read only, without lock or repair.
    """

    has_journal = True

    def __init__(self, *, fresh: bool = False, look: bool = False) -> None:
        self._fresh, self._look = fresh, look
        self._journals: dict[Path, Journal] = {}
        self._lost: dict[Path, OutputError] = {}  # journals that cannot be written any more

    @abstractmethod
    def journal_path(self, job: Job) -> Path:
        """Return the path of a clip's journal."""

    def visible_file(self) -> Path | None:
        """Return the file that users see, if there is one for all clips."""
        return None

    def file_changes(self, job: Job, settings: str, *, captioned: bool) -> Mapping[Path, str]:
        """Return the effect of a run on existing files, for a clip that it would caption or, if not, finds done."""
        return {}

    def render_all(self, *, complete: bool) -> list[str]:
        """Write the files that are rendered once, from the compacted journals; return notes."""
        return []

    def journal(self, job: Job) -> Journal:
        """Return the journal of a clip, opened on first use.

        Raises:
            OutputError: it cannot be written any more.
        """
        path = self.journal_path(job)
        if path in self._lost:
            raise self.journal_error(self._lost[path])
        if path not in self._journals:
            visible = self.visible_file()
            self._journals[path] = Journal(path, fresh=self._fresh, visible=visible, look=self._look)
        return self._journals[path]

    @contextlib.contextmanager
    def losing_journal(self, job: Job) -> Iterator[None]:
        """Mark the journal of ``job`` as lost after an OutputError in the block."""
        try:
            yield
        except OutputError as error:
            raise self.journal_error(self._lost.setdefault(self.journal_path(job), error)) from None

    def journal_error(self, error: OutputError) -> OutputError:
        """Return the error to raise for an error of a journal."""
        return error

    def parts(self, job: Job, settings: str) -> Mapping[int | None, JournalEntry]:
        return self.journal(job).index.parts(clip_id(job), settings)

    def records(self) -> Iterator[RecordDict]:
        """Yield the records of all opened journals."""
        for journal in self._journals.values():
            yield from journal.records()

    def others(self, settings: Collection[str]) -> int:
        return sum(journal.index.other_settings_count(settings) for journal in self._journals.values())

    def close(self, jobs: Sequence[Job], *, complete: bool) -> list[str]:
        notes = []
        try:
            for path, journal in self._journals.items():
                if path not in self._lost:
                    journal.compact([clip_id(job) for job in jobs if self.journal_path(job) == path])
                if journal.repaired:
                    notes.append(f"{journal.shown}: a torn last line was repaired; its clip was captioned again")
                if journal.damaged:
                    notes.append(
                        f"{journal.shown}: {counted(journal.damaged, 'damaged line')} moved to {journal.shown}.damaged"
                    )
            notes += self.render_all(complete=complete)
        finally:
            for path, journal in self._journals.items():
                journal.close(complete=complete and path not in self._lost)
        replaced = [one for one in self._journals.values() if one.replaced]
        return notes + [f"{one.shown}: the earlier file is now {one.replaced}" for one in replaced]


class CombinedOutput(Output):
    """Several outputs: a part is done if every journaled one has it; streams get earlier records again.

    Args:
        outputs: at most one stream, combined with an output of complete records; sidecar files last, as a write to
            them may fail for a single clip.
        look: read only.
    """

    def __init__(self, outputs: Sequence[Output], *, look: bool = False) -> None:
        self.outputs = outputs
        self._written = () if look else outputs
        self._journaled = [one for one in outputs if one.has_journal]
        self._streams = [one for one in outputs if not one.has_journal]

    def parts(self, job: Job, settings: str) -> Mapping[int | None, JournalEntry]:
        first, *others = [one.parts(job, settings) for one in self._journaled] or [{}]
        return {
            key: stored
            for key, stored in first.items()
            if all(key in other and other[key].content.same(stored.content) for other in others)
        }

    def others(self, settings: Collection[str]) -> int:
        return max(one.others(settings) for one in self._journaled)

    def check(self, job: Job) -> None:
        for one in self._written:
            one.check(job)

    def existing_text(self, job: Job) -> str | None:
        return next((text for one in self.outputs if (text := one.existing_text(job)) is not None), None)

    def leaves(self, job: Job) -> bool:
        return bool(self.outputs) and all([one.leaves(job) for one in self.outputs])

    def add(self, job: Job, record: RecordDict) -> None:
        for one in self._written:
            one.add(job, record)

    def restore(self, job: Job, settings: str) -> None:
        stored = in_order(self.parts(job, settings)) if self._streams else []
        for one in self._written:
            one.restore(job, settings)
        for stream in self._streams:
            for part in stored:
                stream.add(job, part.record())

    def close(self, jobs: Sequence[Job], *, complete: bool) -> list[str]:
        notes: list[str] = []
        failures: list[Exception] = []
        for one in self.outputs:
            try:
                notes += one.close(jobs, complete=complete)
            except Exception as error:  # the others must be closed all the same
                failures.append(error)
        if failures:
            raise failures[0]
        return notes


def in_order(parts: Mapping[int | None, JournalEntry]) -> list[JournalEntry]:
    """Return a clip's records in the order of its segments."""
    return sorted(parts.values(), key=lambda one: one.segment or 0)


def make_folder(folder: Path) -> None:
    """Create a folder and check that it is writable.

    Raises:
        OutputError: it cannot be created or written.
    """
    try:
        os.makedirs(folder, exist_ok=True)
    except OSError as error:
        raise OutputError(f"{folder}: cannot be made: {error.strerror or error}") from None
    except RecursionError:  # of a name that nests folders without end
        raise OutputError(f"{str(folder)[:80]}...: cannot be made: too many folders in each other") from None
    if not os.access(folder, os.W_OK):
        raise OutputError(f"{folder}: no permission to write there")
