"""Captions of a run: its journals, what they and the files that show their records tell, and what the run adds."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypeAlias, Unpack

from vidspec.errors import OutputError, UsageError
from vidspec.events.record import RecordDict
from vidspec.events.tally import counted
from vidspec.runs.clip_files import ClipFiles
from vidspec.runs.formats.base import OutputFormat, make_format
from vidspec.runs.job import Job
from vidspec.runs.part_files import PartFiles
from vidspec.runs.renderers import ONE_CLIP, Renderer, make_folder
from vidspec.runs.run_file import RunFile
from vidspec.runs.store.caption_set import CaptionSet, read_caption
from vidspec.runs.store.journal import Journal, hidden_journal
from vidspec.runs.store.journal_lines import CaptionRun, JournalEntry, MarkedCaption
from vidspec.runs.store.known_journals import FileState, KnownJournals
from vidspec.runs.store.records import clip_id, lean_record
from vidspec.runs.store.sidecars import JournalFinder, SidecarNames
from vidspec.runs.stores import is_url

#: Returns the path of the journal of a clip, or of the run without a clip.
JournalPlace: TypeAlias = Callable[[Job | None], Path]


class RunJournals:
    """The journals of a run: one, or one for each folder of clips or each shard, opened when they are needed.

    One that cannot be written any more fails its own clips only, as long as others can be.

    Args:
        place: finds the journal of a clip; None of a run that keeps no records.
        known: gets those that are opened.
        files: formats of the files for all clips, one of which may be the journal, by path.
        of_shards: True if each shard has its own, opened with the shard and removed when that is done.
        overwrite: start over; earlier files are kept as ``NAME~``.
        read_only: lock and write nothing, also while another run writes.

    Attributes:
        kept: False of a run that keeps no records, as one that only prints.
        opened: those that are open, by path.
    """

    def __init__(
        self,
        place: JournalPlace | None,
        known: KnownJournals,
        files: Mapping[Path, OutputFormat],
        *,
        of_shards: bool,
        overwrite: bool,
        read_only: bool,
    ) -> None:
        self._place, self._known, self._files, self._of_shards = place, known, files, of_shards
        self._overwrite, self._read_only = overwrite, read_only
        self.kept = place is not None
        self.opened: dict[Path, Journal] = {}
        self._lost: dict[Path, OutputError] = {}  # journals that cannot be written any more
        self._folders = 0  # with a journal

    def path_of(self, job: Job | None) -> Path:
        """Return the path of the journal of a clip; of the run without a clip."""
        assert self._place is not None
        return self._place(job)

    def open(self, jobs: Sequence[Job]) -> None:
        """Open the journals of these clips; those of shards are opened with them.

        Raises:
            UsageError: none can be written, or another run is writing one.
        """
        if self._place is None or self._of_shards:
            return
        if self._files:
            self.of()
            return
        folders = {self._place(job): job for job in jobs}
        self._folders = len(folders)
        for _, job in sorted(folders.items()):
            with contextlib.suppress(OutputError), self.losing(job):
                self.of(job)
        if len(self._lost) == self._folders > 0:
            first = next(iter(self._lost.values()))
            raise UsageError(first.message, hint=first.hint)

    def of(self, job: Job | None = None) -> Journal:
        """Return the journal of a clip, opened on first use; of the run without a clip.

        Raises:
            OutputError: it cannot be written any more.
        """
        path = self.path_of(job)
        if path in self._lost:
            raise self._error(self._lost[path])
        if path not in self.opened:
            if not self._read_only:
                make_folder(path.parent)
            self.opened[path] = Journal(
                path,
                overwrite=self._overwrite,
                visible=path in self._files,
                read_only=self._read_only,
                stored=lean_record if self._of_shards else self._files[path].stored if path in self._files else None,
            )
            self._known.add(self.opened[path])
        return self.opened[path]

    @contextlib.contextmanager
    def losing(self, job: Job | None = None, *, journal: Path | None = None) -> Iterator[None]:
        """Give up the journal of ``job``, or this one, after an OutputError in the block."""
        try:
            yield
        except OutputError as error:
            raise self._error(self._lost.setdefault(journal or self.path_of(job), error)) from None

    def _error(self, error: OutputError) -> OutputError:
        """Return a journal's error as one of a single clip while other journals work."""
        if len(self._lost) >= self._folders:
            return error
        return OutputError(error.message, hint=error.hint, kind=ONE_CLIP)

    @property
    def is_lost(self) -> bool:
        """True if a journal cannot be written any more."""
        return bool(self._lost)

    def end(self, job: Job) -> None:
        """Remove the journal of a shard that is done."""
        with contextlib.closing(self.opened.pop(self.path_of(job))) as journal:
            journal.path.unlink(missing_ok=True)

    def compact(self, jobs: Sequence[Job], failures: list[Exception]) -> list[str]:
        """Put the records of clips in their order; return notes for the user, and collect failures."""
        notes = []
        for path, journal in self.opened.items():
            with collecting(failures):
                if path not in self._lost:
                    with self.losing(journal=path):
                        journal.compact([clip_id(job) for job in jobs if self.path_of(job) == path])
                if journal.repaired:
                    notes.append(f"{journal.shown}: a torn last line was repaired; its clip was captioned again")
                if journal.damaged:
                    lines = counted(journal.damaged, "damaged line")
                    notes.append(f"{journal.shown}: {lines} moved to {journal.shown}.damaged")
        return notes

    def close(self, failures: list[Exception], *, complete: bool = False) -> list[str]:
        """Close all; return notes for the user, and collect failures."""
        for path, journal in self.opened.items():
            with collecting(failures):
                journal.close(complete=complete and not self._of_shards and path not in self._lost)
        replaced = [one for one in self.opened.values() if one.replaced]
        return [f"{one.shown}: the earlier file is now {one.replaced}" for one in replaced]


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
        journals: those that it writes.
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
        files = {one.path: one.form for one in renderers if isinstance(one, RunFile)}
        self.measured = any(form.measured for form in files.values())
        self.journals = RunJournals(
            _journal_place(renderers, label, self.known),
            self.known,
            files,
            of_shards=any(isinstance(one, PartFiles) for one in renderers),
            overwrite=overwrite,
            read_only=read_only,
        )
        #: Finds captions that other runs left in the clips' own folders, of a run whose journal is elsewhere.
        self._beside: JournalFinder | None = None
        each = [one for one in renderers if isinstance(one, ClipFiles)]
        beside = [one for one in each if not one.of_segments]
        self.cuts = len(beside) < len(each)
        elsewhere = files or (self.cuts and not beside)
        others = len(files) + len(each) < len(renderers)
        if elsewhere and not (overwrite or others or any(one.names[0].folder for one in beside)):
            self._beside = JournalFinder(SidecarNames(make_format("txt"), None, None, ""), self.known)

    def is_journal(self, path: Path) -> bool:
        """Return True if a file for all clips is the journal of the run."""
        return self.journals.path_of(None) == path

    def add(self, job: Job, record: RecordDict) -> None:
        """Add a record; it is on the disk on return. Raises as :meth:`RunJournals.of`."""
        if not self.journals.kept:
            return
        with self.journals.losing(job):
            journal = self.journals.of(job)
            if self._run is not None:
                journal.describe(record["job"]["settings"], self._run)
            journal.append(record)

    def mark(self, job: Job | None, path: Path, size: int, sha256: str, **about: Unpack[MarkedCaption]) -> None:
        """Note the content that a file is about to have, see :meth:`Journal.mark`. Raises as :meth:`RunJournals.of`."""
        with self.journals.losing(job):
            self.journals.of(job).mark(path, size, sha256, **about)

    def parts(self, job: Job, settings: str) -> Mapping[int | None, JournalEntry]:
        """Return the records of a clip under these settings, by segment, those in the clip's own folder too."""
        if not self.journals.kept:
            return {}
        journal, clip = self.journals.of(job), clip_id(job)
        if not journal.index.parts(clip, settings) and (beside := self._journal_beside(job)) is not None:
            journal.adopt(beside, beside.index.parts(clip, settings).values(), measured=self.measured)
        return journal.index.parts(clip, settings)

    def render_earlier(
        self,
        job: Job,
        settings: str,
        settings_with: Callable[[str | None], str],
        render: Callable[[RecordDict], RecordDict],
    ) -> None:
        """Copy a clip's records that were made with another template into its journal, rendered in the run's template.

        Args:
            job: the clip, with its content; it has no records under these settings.
            settings: of the run.
            settings_with: returns the settings of the same run with another template, or without one.
            render: returns a record under the settings of the run.
        """
        if not self.journals.kept:
            return
        clip = clip_id(job)
        for journal in filter(None, (self.journals.of(job), self._journal_beside(job))):
            if (captionings := journal.index.clips.get(clip)) is None:
                continue
            templates = {None, *(run.spec.get("template") for run in journal.index.runs.described)}
            wanted = {settings_with(None if one is None else str(one)) for one in templates}
            other = next(filter(wanted.__contains__, reversed(captionings)), None)
            entries = [] if other is None else [*captionings[other].values()]
            if entries := [one for one in entries if job.content is not None and one.content.same(job.content)]:
                if self._run is not None:
                    self.journals.of(job).describe(settings, self._run)
                rendered = zip(entries, map(render, journal.read(entries)), strict=True)
                self.journals.of(job).add_missing(rendered, measured=self.measured)
                return

    def others_count(self, settings: Collection[str]) -> int:
        """Return the number of earlier records made under other settings."""
        return sum(journal.index.other_settings_count(settings) for journal in self.journals.opened.values())

    def _journal_beside(self, job: Job) -> Journal | None:
        """Return the journal of a clip's own folder, of a run that takes captions from there; None if there is none."""
        if self._beside is None or job.shard is not None or is_url(job.path):
            return None
        return self.known.read(self._beside(job))

    def state(self, job: Job, path: Path) -> FileState:
        """Return the state of a file of a clip."""
        return self.known.state(path, [self.journals.of(job)])

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
        """Return an edited or foreign caption file of a clip or segment, no link, with its format; None without one."""
        files = self._caption_files(job).items()
        own = (one for one in files if self.state(job, one[0]) in ("edited", "foreign"))
        return next((one for one in own if not one[0].is_symlink()), None)

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
        several = [self.journals.of(job), *self.known.around(self.journals.path_of(job))] if replaced else []
        return next((one.index.existing[clip_id(job)] for one in several if clip_id(job) in one.index.existing), None)

    def current(self, *, settings: Mapping[str, str] | None = None) -> CaptionSet:
        """Return the captions of the run's journal, with the texts that hold now.

        Args:
            settings: by clip, those of which a list has the caption; None to take all captionings.
        """
        wanted = self._jobs if settings is not None else ()
        return CaptionSet(
            [self.journals.of()],
            self.known,
            ((job, path, form) for job in wanted for path, form in self._caption_files(job).items()),
            one_each=settings is not None,
            settings=settings,
            order=[*map(clip_id, self._jobs)],
        )


@contextlib.contextmanager
def collecting(failures: list[Exception]) -> Iterator[None]:
    """Go on after a failure in the block, to be raised later."""
    try:
        yield
    except Exception as error:
        failures.append(error)


def _journal_place(renderers: Sequence[Renderer], label: str, known: KnownJournals) -> JournalPlace | None:
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
