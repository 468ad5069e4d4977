"""The store of a run: its records in one journal, and any number of renderers that show them.

A journal (``vidspec.runs.journal``) makes a run resumable; it alone decides what is done. It is the run's, unless each
clip has a file of its own next to it or each shard one: then it is that of a folder or of the shard.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from vidspec.errors import OutputError, UsageError
from vidspec.events.record import RecordDict
from vidspec.events.tally import counted
from vidspec.runs.clip_files import ClipFiles
from vidspec.runs.file_states import FileMarks, hidden_journal
from vidspec.runs.job import Job
from vidspec.runs.journal import Journal, lock_file
from vidspec.runs.journal_index import JournalEntry
from vidspec.runs.part_files import PartFiles
from vidspec.runs.records import FileContent, clip_id, lean_record
from vidspec.runs.renderers import ONE_CLIP, Renderer, make_folder
from vidspec.runs.run_file import RunFile
from vidspec.runs.sidecars import JournalFinder
from vidspec.runs.writers import Stream

__all__ = ["RunStore"]


class RunStore:
    """Keeps the records of a run and of earlier ones, and hands each to its renderers.

    Args:
        renderers: in the order in which they get a record: files for each clip last, as one of these may fail alone.
        jobs: the clips, or the shards.
        label: label of the shard of the run.
        fresh: start over; earlier files are kept as ``NAME~``.
        look: read only, also while another run writes.

    Raises:
        UsageError: a file is there that may not be replaced, another run is writing it, or no journal can be written.
    """

    def __init__(
        self,
        renderers: Sequence[Renderer] = (),
        jobs: Iterable[Job] = (),
        *,
        label: str = "",
        fresh: bool = False,
        look: bool = False,
    ) -> None:
        self.renderers, self.fresh, self.look = tuple(renderers), fresh, look
        self._journals: dict[Path, Journal] = {}
        self._lost: dict[Path, OutputError] = {}  # journals that cannot be written any more
        self._find = _journal_place(self.renderers, label)
        self._files = {one.path for one in self.renderers if one.path is not None}
        self._folders = 0  # with a journal
        with contextlib.ExitStack() as undo:
            self._closing = undo
            for file in () if look else self._files - {self._file_journal}:
                undo.callback(lock_file(Path(os.path.realpath(file)), file).release)
            undo.callback(self._close_journals, complete=False)
            self._open_journals(jobs)
            for one in self.renderers:
                one.open(self)
            self._closing = undo.pop_all()

    @property
    def _file_journal(self) -> Path | None:
        """The journal of a run with a file for all clips."""
        return self._find(None) if self._find is not None and self._files else None

    def _open_journals(self, jobs: Iterable[Job]) -> None:
        if self._find is None or self.part_files is not None:
            return  # those of shards are opened with them
        if self._files:
            self.journal()
            return
        folders = {self._find(job): job for job in jobs}
        self._folders = len(folders)
        for _, job in sorted(folders.items()):
            with contextlib.suppress(OutputError), self.losing_journal(job):  # it fails its own clips only
                self.journal(job)
        if len(self._lost) == self._folders > 0:
            first = next(iter(self._lost.values()))
            raise UsageError(first.message, hint=first.hint)

    def journal(self, job: Job | None = None) -> Journal:
        """Return the journal of a clip, opened on first use; of the run without a clip.

        Raises:
            OutputError: it cannot be written any more.
        """
        path = self.journal_path(job)
        if path in self._lost:
            raise self._error(self._lost[path])
        if path not in self._journals:
            if not self.look:
                make_folder(path.parent)
            self._journals[path] = Journal(path, fresh=self.fresh, visible=path in self._files, look=self.look)
        return self._journals[path]

    def journal_path(self, job: Job | None = None) -> Path:
        """Return the path of the journal of a clip."""
        assert self._find is not None
        return self._find(job)

    def losing_journal(self, job: Job | None = None) -> contextlib.AbstractContextManager[None]:
        """Mark the journal of ``job`` as lost after an OutputError in the block."""
        return self._losing(self.journal_path(job))

    @contextlib.contextmanager
    def _losing(self, journal: Path) -> Iterator[None]:
        try:
            yield
        except OutputError as error:
            raise self._error(self._lost.setdefault(journal, error)) from None

    def _error(self, error: OutputError) -> OutputError:
        """Return a journal's error as one of a single clip while other journals work."""
        if len(self._lost) >= self._folders:
            return error
        return OutputError(error.message, hint=error.hint, kind=ONE_CLIP)

    @property
    def part_files(self) -> PartFiles | None:
        """The file for each shard, if that is what the run writes."""
        return next((one for one in self.renderers if isinstance(one, PartFiles)), None)

    @property
    def only_stream(self) -> Stream | None:
        """The stream of a run that shows its records nowhere else."""
        (only,) = self.renderers if len(self.renderers) == 1 else (None,)
        return only if isinstance(only, Stream) else None

    @property
    def is_lost(self) -> bool:
        """True if a journal cannot be written any more."""
        return bool(self._lost)

    def adopt(self, records: Iterable[RecordDict], job: Job | None = None, *, edits: bool = False) -> bool:
        """Copy to a journal what it lacks; return True if a caption differs, or has no measurements but needs them.

        Args:
            records: those of a file or an earlier journal.
            job: clip or shard of the journal; None for the run's.
            edits: captions that differ are edits, and count.
        """
        journal, differ = self.journal(job), False
        measured = any(isinstance(one, RunFile) and one.form.measured for one in self.renderers)
        stored: dict[tuple[str, str], dict[int | None, JournalEntry]] = {}  # of all parts of a clip before any is added
        for record in records:
            about = record["job"]
            clip, segment, segments = (about["clip"], about["settings"]), about.get("segment"), about.get("segments")
            content = FileContent(*(about.get(key) for key in FileContent._fields))
            known = stored.setdefault(clip, dict(journal.index.parts(*clip)))
            same = known.get(segment)
            if same is not None and same.content.same(content):
                whole = same.record()
                if whole["caption"] != record["caption"] is not None:
                    differ = True
                    if edits:
                        journal.append({**whole, "caption": record["caption"]})
            elif all(one.segments == segments and one.content.same(content) for one in known.values()):
                if measured and "timings" not in record:
                    differ |= record["caption"] is not None
                else:
                    journal.append(record)
        return differ

    def end_journal(self, job: Job) -> None:
        """Remove the journal of a shard that is done."""
        with contextlib.closing(self._journals.pop(self.journal_path(job))) as journal:
            journal.path.unlink(missing_ok=True)

    def records(self) -> Iterator[RecordDict]:
        """Yield the records of all opened journals."""
        for journal in self._journals.values():
            yield from journal.records()

    def parts(self, job: Job, settings: str) -> Mapping[int | None, JournalEntry]:
        """Return the records of a clip under these settings, by segment."""
        return {} if self._find is None else self.journal(job).index.parts(clip_id(job), settings)

    def others(self, settings: Collection[str]) -> int:
        """Return the number of earlier records made under other settings."""
        return sum(journal.index.other_settings_count(settings) for journal in self._journals.values())

    def check(self, job: Job) -> None:
        """Check before a clip is captioned that its record can be written.

        Raises:
            OutputError: of kind :data:`ONE_CLIP`.
        """
        if self._find is not None:
            self.journal(job)
        for one in () if self.look else self.renderers:
            one.check(job)

    def leaves(self, job: Job) -> bool:
        """Return True if all files of a clip exist and must not be replaced, so that captioning it is useless."""
        return bool(self.renderers) and all([one.leaves(job) for one in self.renderers])

    def existing_text(self, job: Job) -> str | None:
        """Return the text of a caption file that no run wrote, see :meth:`Renderer.existing_text`."""
        return next((text for one in self.renderers if (text := one.existing_text(job)) is not None), None)

    def file_changes(self, job: Job, settings: str, *, captioned: bool) -> dict[Path, str]:
        """Return the effect of a run on existing files, see :meth:`Renderer.file_changes`."""
        changes: dict[Path, str] = {}
        for one in self.renderers:
            changes |= one.file_changes(job, settings, captioned=captioned)
        return changes

    def keeps(self, job: Job) -> bool:
        """Return True if records of this job are kept at all; a shard that cannot be read is tried again."""
        return job.shard is not None or self.part_files is None

    def add(self, job: Job, record: RecordDict) -> None:
        """Keep a record and show it; it is durable on return.

        Raises:
            OutputError: it could not be written; of kind :data:`ONE_CLIP` if those of other clips still can.
        """
        if self.look or not self.keeps(job):
            return
        for one in self.renderers:
            one.prepare(job, record)
        if self._find is not None:
            with self.losing_journal(job):
                self.journal(job).append(self._stored(record))
        for one in self.renderers:
            one.add(job, record)

    def _stored(self, record: RecordDict) -> RecordDict:
        """Return a record as the journal keeps it: without measurements where it is a file that shows none."""
        if self.part_files is not None:
            return lean_record(record)
        for one in self.renderers:
            if isinstance(one, RunFile) and one.path == self._file_journal:
                return one.form.stored(record)
        return record

    def restore(self, job: Job, settings: str) -> None:
        """Show a clip that needs no captioning, where it is missing."""
        for one in () if self.look else self.renderers:
            one.restore(job, settings)

    def close(self, jobs: Sequence[Job], *, complete: bool) -> list[str]:
        """Finish all files after the last record; return notes for the user."""
        notes: list[str] = []
        failures: list[Exception] = []
        with self._closing:
            for one in self.renderers:
                one.settle()
            for path, journal in self._journals.items():
                with _collecting(failures):
                    if path not in self._lost:
                        with self._losing(path):
                            journal.compact([clip_id(job) for job in jobs if self.journal_path(job) == path])
                    if journal.repaired:
                        notes.append(f"{journal.shown}: a torn last line was repaired; its clip was captioned again")
                    if journal.damaged:
                        lines = counted(journal.damaged, "damaged line")
                        notes.append(f"{journal.shown}: {lines} moved to {journal.shown}.damaged")
            for one in self.renderers:
                with _collecting(failures):  # the others must be finished all the same
                    notes += one.finish(complete=complete)
            failures += self._close_journals(complete=complete)
        if failures:
            raise failures[0]
        replaced = [one for one in self._journals.values() if one.replaced]
        return notes + [f"{one.shown}: the earlier file is now {one.replaced}" for one in replaced]

    def _close_journals(self, *, complete: bool) -> list[Exception]:
        failures: list[Exception] = []
        for path, journal in self._journals.items():
            with _collecting(failures):
                journal.close(complete=complete and path not in self._lost and self.part_files is None)
        return failures


@contextlib.contextmanager
def _collecting(failures: list[Exception]) -> Iterator[None]:
    """Go on after a failure in the block, to be raised later."""
    try:
        yield
    except Exception as error:
        failures.append(error)


def _journal_place(renderers: Sequence[Renderer], label: str) -> Callable[[Job | None], Path] | None:
    """Return the function that finds the journal of a clip, or of the run; None if nothing is kept."""
    files = [one for one in renderers if isinstance(one, RunFile)]
    for one in renderers:
        if isinstance(one, PartFiles):
            return one.journal_path
        if isinstance(one, ClipFiles) and not (files and one.names[0].folder is None):
            return JournalFinder(one.names[0], label)
        if isinstance(one, ClipFiles):
            path = files[0].path.with_name(f".vidspec{label}.jsonl")
            return lambda job: path
    if not files:
        return None
    if len(files) == 1 and files[0].form.is_journal:
        path = files[0].path
    else:
        path = _hidden_journal(next((one.path for one in files if not one.form.is_journal), files[0].path))
    return lambda job: path


def _hidden_journal(path: Path) -> Path:
    """Return the hidden journal of a file: its own, unless a run with more files wrote it from another."""
    own = hidden_journal(path)
    others = () if own.exists() else sorted(path.parent.glob(".*vidspec*.jsonl"))
    return next((one for one in others if FileMarks.read(one).of(path)), own)
