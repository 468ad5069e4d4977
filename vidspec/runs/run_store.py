"""The store of a run: what is known of its captions, what it adds, and any number of renderers that show them.

There is one journal, or one for each folder of clips or each shard; journals alone decide what is done. One that cannot
be written any more fails its own clips only, as long as others can be.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Unpack

from vidspec.errors import OutputError, UsageError
from vidspec.events.record import RecordDict
from vidspec.events.tally import counted
from vidspec.runs.clip_files import ClipFiles
from vidspec.runs.formats.base import make_format
from vidspec.runs.job import Job
from vidspec.runs.part_files import PartFiles
from vidspec.runs.renderers import ONE_CLIP, PendingFile, Renderer, make_folder
from vidspec.runs.run_file import RunFile
from vidspec.runs.store.caption_set import CaptionSet, read_caption
from vidspec.runs.store.journal import Journal, hidden_journal, lock_file
from vidspec.runs.store.journal_lines import CaptionRun, JournalEntry, MarkedCaption
from vidspec.runs.store.known_journals import FileState, KnownJournals
from vidspec.runs.store.records import clip_id, lean_record
from vidspec.runs.store.sidecars import JournalFinder, SidecarNames
from vidspec.runs.stores import is_url
from vidspec.runs.writers import Stream


class RunCaptions:
    """Answers what is known of the captions of a run, and adds to it.

    Args:
        renderers: what shows them.
        jobs: the clips, or the shards.
        label: label of the shard of the run.
        overwrite: start over; earlier files are kept as ``NAME~``.
        read_only: lock and write nothing, also while another run writes.
        run: description of the run, for its journals.

    Attributes:
        known: journals around its files.
        measured: True if records without measurements do not count.
        cuts: True if segments of clips are written.
    """

    def __init__(
        self,
        renderers: Sequence[Renderer],
        jobs: Sequence[Job],
        *,
        label: str = "",
        overwrite: bool = False,
        read_only: bool = False,
        run: CaptionRun | None = None,
    ) -> None:
        self.overwrite, self.read_only, self.known = overwrite, read_only, KnownJournals()
        self._renderers, self._jobs, self._run = renderers, jobs, run
        self._files = {one.path: one.form for one in renderers if isinstance(one, RunFile)}
        self._of_shards = any(isinstance(one, PartFiles) for one in renderers)
        self.measured = any(form.measured for form in self._files.values())
        self._find = _journal_place(renderers, label, self.known)
        #: Finds captions that other runs left in the clips' own folders, of a run whose journal is elsewhere.
        self._beside: JournalFinder | None = None
        each = [one for one in renderers if isinstance(one, ClipFiles)]
        beside = [one for one in each if not one.of_segments]
        self.cuts = len(beside) < len(each)
        elsewhere = self._files or (self.cuts and not beside)
        others = len(self._files) + len(each) < len(renderers)
        if elsewhere and not (overwrite or others or any(one.names[0].folder for one in beside)):
            self._beside = JournalFinder(SidecarNames(make_format("txt"), None, None, ""), self.known)
        self._journals: dict[Path, Journal] = {}
        self._lost: dict[Path, OutputError] = {}  # journals that cannot be written any more
        self._folders = 0  # with a journal

    def open(self) -> None:
        """Open the journals; those of shards are opened with them.

        Raises:
            UsageError: none can be written, or another run is writing one.
        """
        if self._find is None or self._of_shards:
            return
        if self._files:
            self.journal()
            return
        folders = {self._find(job): job for job in self._jobs}
        self._folders = len(folders)
        for _, job in sorted(folders.items()):
            with contextlib.suppress(OutputError), self.losing(job):
                self.journal(job)
        if len(self._lost) == self._folders > 0:
            first = next(iter(self._lost.values()))
            raise UsageError(first.message, hint=first.hint)

    def journal(self, job: Job | None = None) -> Journal:
        """Return the journal of a clip, opened on first use; of the run without a clip.

        Raises:
            OutputError: it cannot be written any more.
        """
        path = self._path(job)
        if path in self._lost:
            raise self._error(self._lost[path])
        if path not in self._journals:
            if not self.read_only:
                make_folder(path.parent)
            self._journals[path] = Journal(
                path,
                overwrite=self.overwrite,
                visible=path in self._files,
                read_only=self.read_only,
                stored=lean_record if self._of_shards else self._files[path].stored if path in self._files else None,
            )
            self.known.add(self._journals[path])
        return self._journals[path]

    def is_journal(self, path: Path) -> bool:
        """Return True if a file for all clips is the journal of the run."""
        return self._path(None) == path

    def _path(self, job: Job | None) -> Path:
        assert self._find is not None
        return self._find(job)

    @contextlib.contextmanager
    def losing(self, job: Job | None = None, *, journal: Path | None = None) -> Iterator[None]:
        """Give up the journal of ``job``, or this one, after an OutputError in the block."""
        try:
            yield
        except OutputError as error:
            raise self._error(self._lost.setdefault(journal or self._path(job), error)) from None

    def _error(self, error: OutputError) -> OutputError:
        """Return a journal's error as one of a single clip while other journals work."""
        if len(self._lost) >= self._folders:
            return error
        return OutputError(error.message, hint=error.hint, kind=ONE_CLIP)

    @property
    def is_lost(self) -> bool:
        """True if a journal cannot be written any more."""
        return bool(self._lost)

    def check(self, job: Job) -> None:
        """Check that the record of a clip can be written; raises as :meth:`journal`."""
        if self._find is not None:
            self.journal(job)

    def add(self, job: Job, record: RecordDict) -> None:
        """Add a record; it is on the disk on return. Raises as :meth:`journal`."""
        if self._find is None:
            return
        with self.losing(job):
            journal = self.journal(job)
            if self._run is not None:
                journal.describe(record["job"]["settings"], self._run)
            journal.append(record)

    def mark(self, job: Job | None, path: Path, size: int, sha256: str, **about: Unpack[MarkedCaption]) -> None:
        """Note the content that a file is about to have, see :meth:`Journal.mark`. Raises as :meth:`journal`."""
        with self.losing(job):
            self.journal(job).mark(path, size, sha256, **about)

    def parts(self, job: Job, settings: str) -> Mapping[int | None, JournalEntry]:
        """Return the records of a clip under these settings, by segment, those in the clip's own folder too."""
        if self._find is None:
            return {}
        journal, clip = self.journal(job), clip_id(job)
        if not journal.index.parts(clip, settings) and (beside := self._journal_beside(job)) is not None:
            journal.adopt(beside, beside.index.parts(clip, settings).values(), measured=self.measured)
        return journal.index.parts(clip, settings)

    def others_count(self, settings: Collection[str]) -> int:
        """Return the number of earlier records made under other settings."""
        return sum(journal.index.other_settings_count(settings) for journal in self._journals.values())

    def _journal_beside(self, job: Job) -> Journal | None:
        """Return the journal of a clip's own folder, of a run that takes captions from there; None if there is none."""
        if self._beside is None or job.shard is not None or is_url(job.path):
            return None
        return self.known.read(self._beside(job))

    def state(self, job: Job, path: Path) -> FileState:
        """Return the state of a file of a clip."""
        return self.known.state(path, [self.journal(job)])

    def _caption_files(self, job: Job) -> dict[Path, str]:
        """Return the files that hold the caption of a clip or segment, of this run or beside it, with their formats."""
        files = {path: form for one in self._renderers for path, form in one.caption_files(job).items()}
        if self._beside is not None and job.segment is None and (beside := self._journal_beside(job)) is not None:
            own = self._beside.names.path(job)
            marked = beside.index.marks.caption_files(clip_id(job))
            marked.pop(Path(os.path.realpath(own.parent), own.name), None)
            files |= {own: "txt"} | marked
        return files

    def own_file(self, job: Job) -> tuple[Path, str] | None:
        """Return an edited or foreign caption file of a clip or segment, with its format; None if there is none."""
        files = self._caption_files(job).items()
        return next((one for one in files if self.state(job, one[0]) in ("edited", "foreign")), None)

    def own_text(self, job: Job, *, replaced: bool = False) -> str | None:
        """Return the text of :meth:`own_file`, and of one that was ``replaced`` since; None if there is none.

        Raises:
            OutputError: of kind :data:`ONE_CLIP`; the file cannot be read.
        """
        if (own := self.own_file(job)) is not None:
            try:
                return read_caption(*own)
            except UsageError as error:
                hint = error.hint or "convert it, or give --existing replace"
                raise OutputError(error.message, hint=hint, kind=ONE_CLIP) from None
        several = [self.journal(job), *self.known.around(self._path(job))] if replaced else []
        return next((one.index.existing[clip_id(job)] for one in several if clip_id(job) in one.index.existing), None)

    def current(self, *, settings: Mapping[str, str] | None = None) -> CaptionSet:
        """Return the captions of the run's journal, with the texts that hold now.

        Args:
            settings: by clip, those of which a list has the caption; None to take all captionings.
        """
        wanted = self._jobs if settings is not None else ()
        return CaptionSet(
            [self.journal()],
            self.known,
            ((job, path, form) for job in wanted for path, form in self._caption_files(job).items()),
            one_each=settings is not None,
            settings=settings,
            order=[*map(clip_id, self._jobs)],
        )

    def end(self, job: Job) -> None:
        """Remove the journal of a shard that is done."""
        with contextlib.closing(self._journals.pop(self._path(job))) as journal:
            journal.path.unlink(missing_ok=True)

    def compact(self, jobs: Sequence[Job], failures: list[Exception]) -> list[str]:
        """Put the records of clips in their order; return notes for the user, and collect failures."""
        notes = []
        for path, journal in self._journals.items():
            with collecting(failures):
                if path not in self._lost:
                    with self.losing(journal=path):
                        journal.compact([clip_id(job) for job in jobs if self._path(job) == path])
                if journal.repaired:
                    notes.append(f"{journal.shown}: a torn last line was repaired; its clip was captioned again")
                if journal.damaged:
                    lines = counted(journal.damaged, "damaged line")
                    notes.append(f"{journal.shown}: {lines} moved to {journal.shown}.damaged")
        return notes

    def close(self, failures: list[Exception], *, complete: bool = False) -> list[str]:
        """Close all journals; return notes for the user, and collect failures."""
        for path, journal in self._journals.items():
            with collecting(failures):
                journal.close(complete=complete and not self._of_shards and path not in self._lost)
        replaced = [one for one in self._journals.values() if one.replaced]
        return [f"{one.shown}: the earlier file is now {one.replaced}" for one in replaced]


class RunStore:
    """Keeps the records of a run and of earlier ones, and hands each to its renderers.

    Args:
        renderers: in the order in which they get a record: files for each clip last, as one of these may fail alone.
        jobs: the clips, or the shards.
        label: label of the shard of the run.
        overwrite: start over; earlier files are kept as ``NAME~``.
        read_only: lock and write nothing, also while another run writes.
        run: description of the run, for its journals.

    Attributes:
        captions: what is known of the captions.
        part_files: the file for each shard, if that is what the run writes; else None.
        only_stream: the stream of a run that shows its records nowhere else; else None.

    Raises:
        UsageError: a file is there that may not be replaced, another run is writing it, or no journal can be written.
    """

    def __init__(
        self,
        renderers: Sequence[Renderer] = (),
        jobs: Iterable[Job] = (),
        *,
        label: str = "",
        overwrite: bool = False,
        read_only: bool = False,
        run: CaptionRun | None = None,
    ) -> None:
        self.renderers, self._shown = tuple(renderers), () if read_only else tuple(renderers)
        self.part_files = next((one for one in self.renderers if isinstance(one, PartFiles)), None)
        streams = [one for one in self.renderers if isinstance(one, Stream)]
        self.only_stream = streams[0] if len(self.renderers) == len(streams) == 1 else None
        self.captions = RunCaptions(
            self.renderers, tuple(jobs), label=label, overwrite=overwrite, read_only=read_only, run=run
        )
        with contextlib.ExitStack() as undo:
            for path in [
                one.path for one in self._shown if isinstance(one, RunFile) and not self.captions.is_journal(one.path)
            ]:
                undo.callback(lock_file(Path(os.path.realpath(path)), path).release)
            undo.callback(self.captions.close, [])
            self.captions.open()
            for one in self.renderers:
                one.open(self.captions)
            self._closing = undo.pop_all()

    @property
    def kept_hint(self) -> str:
        """The option that captions the clips whose files are kept."""
        if any(isinstance(one, ClipFiles) and not one.of_segments for one in self.renderers):
            return "--existing replace replaces those that no run wrote"
        return "--overwrite captions them for this file"

    def check(self, job: Job) -> None:
        """Check before a clip is captioned that its record can be written.

        Raises:
            OutputError: of kind :data:`ONE_CLIP`.
        """
        self.captions.check(job)
        for one in self._shown:
            one.check(job)

    def leaves(self, job: Job) -> bool:
        """Return True if all files of a clip exist and must not be replaced, so that captioning it is useless."""
        return bool(self.renderers) and all([one.leaves(job) for one in self.renderers])

    def file_changes(self, job: Job, settings: str, *, captioned: bool) -> dict[Path, str]:
        """Return the effect of a run on existing files, see :meth:`Renderer.file_changes`."""
        changes: dict[Path, str] = {}
        for one in self.renderers:
            changes |= one.file_changes(job, settings, captioned=captioned)
        return changes

    def keeps(self, job: Job) -> bool:
        """Return True if records of this job are kept at all; a shard that cannot be read is tried again."""
        return job.shard is not None or self.part_files is None

    def add(self, job: Job, record: RecordDict) -> PendingFile | None:
        """Keep a record and show it; it is durable on return. Return a file of it that is shown later.

        Raises:
            OutputError: it could not be written; of kind :data:`ONE_CLIP` if those of other clips still can.
        """
        if not self._shown or not self.keeps(job):
            return None
        for one in self._shown:
            one.prepare(job, record)
        self.captions.add(job, record)
        pending = [one.add(job, record) for one in self._shown]
        return next(filter(None, pending), None)

    def restore(self, job: Job, settings: str) -> None:
        """Show a clip that needs no captioning, where it is missing."""
        for one in self._shown:
            one.restore(job, settings)

    def close(self, jobs: Sequence[Job], *, complete: bool) -> list[str]:
        """Finish all files after the last record; return notes for the user."""
        failures: list[Exception] = []
        with self._closing:
            for one in self.renderers:
                with collecting(failures):
                    one.settle()
            notes = self.captions.compact(jobs, failures)
            for one in self.renderers:
                with collecting(failures):  # the others must be finished all the same
                    notes += one.finish(complete=complete)
            notes += self.captions.close(failures, complete=complete)
        if failures:
            raise failures[0]
        return notes


@contextlib.contextmanager
def collecting(failures: list[Exception]) -> Iterator[None]:
    """Go on after a failure in the block, to be raised later."""
    try:
        yield
    except Exception as error:
        failures.append(error)


def _journal_place(
    renderers: Sequence[Renderer], label: str, known: KnownJournals
) -> Callable[[Job | None], Path] | None:
    """Return the function that finds the journal of a clip, or of the run; None if nothing is kept."""
    if (parts := next((one for one in renderers if isinstance(one, PartFiles)), None)) is not None:
        return parts.journal_path
    files = [one for one in renderers if isinstance(one, RunFile)]
    each = next((one for one in renderers if isinstance(one, ClipFiles)), None)
    if each is not None and (not files or each.names[0].folder is not None):
        return JournalFinder(each.names[0], known, label)
    if not files:
        return None
    path = next((one.path for one in files if not one.form.is_journal), files[0].path)
    if each is not None:
        path = files[0].path.with_name(f".vidspec{label}.jsonl")
    elif len(files) > 1 or not files[0].form.is_journal:
        path = _hidden_journal(path, known)
    return lambda job: path


def _hidden_journal(path: Path, known: KnownJournals) -> Path:
    """Return the hidden journal of a file: its own, unless a run with more files wrote it from another."""
    own = hidden_journal(path)
    others = () if own.exists() else sorted(path.parent.glob(".*vidspec*.jsonl"))
    return next((one for one in others if (found := known.read(one)) and found.index.marks.of(path)), own)
