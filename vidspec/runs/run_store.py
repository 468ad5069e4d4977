"""The store of a run: its records in one journal, and any number of renderers that show them.

A journal (``vidspec.runs.store.journal``) makes a run resumable; it alone decides what is done. It is the run's, unless
each clip has a file of its own next to it or each shard one: then it is that of a folder or of the shard.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from vidspec.errors import OutputError, UsageError
from vidspec.events.record import RecordDict
from vidspec.runs.clip_files import ClipFiles
from vidspec.runs.formats.base import make_format
from vidspec.runs.job import Job
from vidspec.runs.part_files import PartFiles
from vidspec.runs.renderers import ONE_CLIP, PendingFile, Renderer
from vidspec.runs.run_file import RunFile
from vidspec.runs.run_journals import RunJournals, collecting
from vidspec.runs.segment_files import SegmentFiles
from vidspec.runs.store.caption_set import CaptionSet, read_caption
from vidspec.runs.store.file_marks import hidden_journal
from vidspec.runs.store.journal import Journal, lock_file
from vidspec.runs.store.journal_index import JournalEntry
from vidspec.runs.store.known_journals import FileState, KnownJournals
from vidspec.runs.store.records import clip_id, lean_record
from vidspec.runs.store.run_lines import CaptionRun
from vidspec.runs.store.sidecars import JournalFinder, SidecarNames
from vidspec.runs.stores import is_url
from vidspec.runs.writers import Stream


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
        part_files: the file for each shard, if that is what the run writes; else None.
        only_stream: the stream of a run that shows its records nowhere else; else None.
        known: journals around its files.
        cuts: True if it writes segments of clips.

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
        self.renderers, self.overwrite, self.read_only = tuple(renderers), overwrite, read_only
        self._run, self._jobs = run, tuple(jobs)
        self.part_files = next((one for one in self.renderers if isinstance(one, PartFiles)), None)
        streams = [one for one in self.renderers if isinstance(one, Stream)]
        self.only_stream = streams[0] if len(self.renderers) == len(streams) == 1 else None
        files = [one for one in self.renderers if isinstance(one, RunFile)]
        self.known = KnownJournals()
        find = _journal_place(self.renderers, label, self.known)
        self.cuts = any(isinstance(one, SegmentFiles) for one in self.renderers)
        #: Finds captions that other runs left in the clips' own folders, of a run whose journal is elsewhere.
        self._beside: JournalFinder | None = None
        beside = [one for one in self.renderers if isinstance(one, ClipFiles) and not one.of_segments]
        elsewhere = files or (self.cuts and not beside)
        others = [one for one in self.renderers if not isinstance(one, RunFile | ClipFiles)]
        if elsewhere and not (overwrite or others or any(one.names[0].folder for one in beside)):
            self._beside = JournalFinder(SidecarNames(make_format("txt"), None, None, ""), self.known)
        self._file_journal = find(None) if find is not None and files else None
        self.journals = RunJournals(
            find,
            self.known,
            visible={one.path for one in files},
            measured=any(one.form.measured for one in files),
            stored=self._stored,
            overwrite=overwrite,
            read_only=read_only,
        )
        with contextlib.ExitStack() as undo:
            for path in [one.path for one in files if one.path != self._file_journal and not read_only]:
                undo.callback(lock_file(Path(os.path.realpath(path)), path).release)
            undo.callback(self.journals.close, [])
            if files:
                self.journals.of()
            elif self.journals and self.part_files is None:  # those of shards are opened with them
                self.journals.open(self._jobs)
            for one in self.renderers:
                one.open(self)
            self._closing = undo.pop_all()

    def parts(self, job: Job, settings: str) -> Mapping[int | None, JournalEntry]:
        """Return the records of a clip under these settings, by segment, those in the clip's own folder too."""
        if not self.journals:
            return {}
        journal, clip = self.journals.of(job), clip_id(job)
        if not journal.index.parts(clip, settings) and (beside := self._journal_beside(job)) is not None:
            self.journals.adopt(beside, beside.index.parts(clip, settings).values())
        return journal.index.parts(clip, settings)

    def _journal_beside(self, job: Job) -> Journal | None:
        """Return the journal of a clip's own folder, of a run that takes captions from there; None if there is none."""
        if self._beside is None or job.shard is not None or is_url(job.path):
            return None
        return self.known.read(self._beside(job))

    def state(self, job: Job, path: Path) -> FileState:
        """Return the state of a file of a clip."""
        return self.known.state(path, [self.journals.of(job)])

    def caption_files(self, job: Job) -> dict[Path, str]:
        """Return the files that hold the caption of a clip or segment, of this run or beside it, with their formats."""
        files = {path: form for one in self.renderers for path, form in one.caption_files(job).items()}
        if self._beside is not None and job.segment is None and (beside := self._journal_beside(job)) is not None:
            own = self._beside.names.path(job)
            marked = beside.index.marks.caption_files(clip_id(job))
            marked.pop(Path(os.path.realpath(own.parent), own.name), None)
            files |= {own: "txt"} | marked
        return files

    def own_text(self, job: Job) -> str | None:
        """Return the text of a caption file that was edited or that no run wrote; None if there is none.

        Raises:
            OutputError: of kind :data:`ONE_CLIP`; the file cannot be read.
        """
        for path, form in self.caption_files(job).items():
            if self.state(job, path) in ("edited", "foreign"):
                try:
                    return read_caption(path, form)
                except UsageError as error:
                    hint = error.hint or "convert it, or give --existing replace"
                    raise OutputError(error.message, hint=hint, kind=ONE_CLIP) from None
        return None

    def existing_text(self, job: Job) -> str:
        """Return the text of a caption file that no run wrote, also after it was replaced; empty if there is none.

        Raises:
            OutputError: as :meth:`own_text` does.
        """
        if (text := self.own_text(job)) is not None:
            return text
        path = self.journals.path(job)
        several = [self.journals.of(job), *self.known.around(path)]
        return next((one.index.existing[clip_id(job)] for one in several if clip_id(job) in one.index.existing), "")

    def has_own_text(self, job: Job) -> bool:
        """Return True if a clip has a caption file of this run or beside it that was edited, or that no run wrote."""
        states = (
            []
            if self.overwrite or job.shard is not None
            else [self.state(job, path) for path in self.caption_files(job)]
        )
        return any(state in ("edited", "foreign") for state in states)

    @property
    def kept_hint(self) -> str:
        """The option that captions the clips whose files are kept."""
        if any(isinstance(one, ClipFiles) and not one.of_segments for one in self.renderers):
            return "--existing replace replaces those that no run wrote"
        return "--overwrite captions them for this file"

    def captions(self, *, settings: Mapping[str, str] | None = None) -> CaptionSet:
        """Return what is known of the captions of the run's journal, with the texts that hold now.

        Args:
            settings: by clip, those of which a list has the caption; None to take all captionings.
        """
        wanted = self._jobs if settings is not None else ()
        return CaptionSet(
            [self.journals.of()],
            self.known,
            ((job, path, form) for job in wanted for path, form in self.caption_files(job).items()),
            one_each=settings is not None,
            settings=settings,
            order=[*map(clip_id, self._jobs)],
        )

    def check(self, job: Job) -> None:
        """Check before a clip is captioned that its record can be written.

        Raises:
            OutputError: of kind :data:`ONE_CLIP`.
        """
        if self.journals:
            self.journals.of(job)
        for one in () if self.read_only else self.renderers:
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
        if self.read_only or not self.keeps(job):
            return None
        for one in self.renderers:
            one.prepare(job, record)
        if self.journals:
            with self.journals.losing(job):
                journal = self.journals.of(job)
                if self._run is not None:
                    journal.describe(record["job"]["settings"], self._run)
                journal.append(self._stored(record))
        pending = [one.add(job, record) for one in self.renderers]
        return next(filter(None, pending), None)

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
        for one in () if self.read_only else self.renderers:
            one.restore(job, settings)

    def close(self, jobs: Sequence[Job], *, complete: bool) -> list[str]:
        """Finish all files after the last record; return notes for the user."""
        failures: list[Exception] = []
        with self._closing:
            for one in self.renderers:
                one.settle()
            notes = self.journals.compact(jobs, failures)
            for one in self.renderers:
                with collecting(failures):  # the others must be finished all the same
                    notes += one.finish(complete=complete)
            notes += self.journals.close(failures, complete=complete and self.part_files is None)
        if failures:
            raise failures[0]
        return notes


def _journal_place(
    renderers: Sequence[Renderer], label: str, known: KnownJournals
) -> Callable[[Job | None], Path] | None:
    """Return the function that finds the journal of a clip, or of the run; None if nothing is kept."""
    files = [one for one in renderers if isinstance(one, RunFile)]
    for one in renderers:
        if isinstance(one, PartFiles):
            return one.journal_path
        if isinstance(one, ClipFiles) and not (files and one.names[0].folder is None):
            return JournalFinder(one.names[0], known, label)
        if isinstance(one, ClipFiles):
            path = files[0].path.with_name(f".vidspec{label}.jsonl")
            return lambda job: path
    if not files:
        return None
    if len(files) == 1 and files[0].form.is_journal:
        path = files[0].path
    else:
        path = _hidden_journal(next((one.path for one in files if not one.form.is_journal), files[0].path), known)
    return lambda job: path


def _hidden_journal(path: Path, known: KnownJournals) -> Path:
    """Return the hidden journal of a file: its own, unless a run with more files wrote it from another."""
    own = hidden_journal(path)
    others = () if own.exists() else sorted(path.parent.glob(".*vidspec*.jsonl"))
    return next((one for one in others if (found := known.read(one)) and found.index.marks.of(path)), own)
