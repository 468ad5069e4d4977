"""The journals of a run: one, or one for each folder of clips or each shard."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from pathlib import Path

from vidspec.errors import OutputError, UsageError
from vidspec.events.record import RecordDict
from vidspec.events.tally import counted
from vidspec.runs.job import Job
from vidspec.runs.renderers import ONE_CLIP, make_folder
from vidspec.runs.store.journal import Journal
from vidspec.runs.store.journal_index import JournalEntry
from vidspec.runs.store.known_journals import KnownJournals
from vidspec.runs.store.records import FileContent, clip_id


class RunJournals:
    """Opens the journals of a run, and gives those up that cannot be written any more.

    Args:
        find: finds the path of the journal of a clip, or of the run; None if no records are kept.
        known: gets each.
        visible: files that users see.
        measured: records without measurements do not count.
        stored: returns a record as the run's journal keeps it.
        overwrite: start over; earlier files are kept as ``NAME~``.
        read_only: lock and write nothing, also while another run writes.
    """

    def __init__(
        self,
        find: Callable[[Job | None], Path] | None,
        known: KnownJournals,
        *,
        visible: Collection[Path],
        measured: bool,
        stored: Callable[[RecordDict], RecordDict],
        overwrite: bool,
        read_only: bool,
    ) -> None:
        self._find, self._known, self._visible, self._measured = find, known, visible, measured
        self._stored = stored
        self._overwrite, self._read_only = overwrite, read_only
        self._journals: dict[Path, Journal] = {}
        self._lost: dict[Path, OutputError] = {}  # journals that cannot be written any more
        self._folders = 0  # with a journal

    def __bool__(self) -> bool:
        return self._find is not None

    def open(self, jobs: Iterable[Job]) -> None:
        """Open the journals of clips; one that cannot be written fails its own clips only.

        Raises:
            UsageError: none can be written, or another run is writing one.
        """
        folders = {self.path(job): job for job in jobs}
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
        path = self.path(job)
        if path in self._lost:
            raise self._error(self._lost[path])
        if path not in self._journals:
            if not self._read_only:
                make_folder(path.parent)
            self._journals[path] = Journal(
                path, overwrite=self._overwrite, visible=path in self._visible, read_only=self._read_only
            )
            self._known.add(self._journals[path])
        return self._journals[path]

    def path(self, job: Job | None = None) -> Path:
        """Return the path of the journal of a clip."""
        assert self._find is not None
        return self._find(job)

    @contextlib.contextmanager
    def losing(self, job: Job | None = None, *, journal: Path | None = None) -> Iterator[None]:
        """Mark the journal of ``job``, or this one, as lost after an OutputError in the block."""
        try:
            yield
        except OutputError as error:
            raise self._error(self._lost.setdefault(journal or self.path(job), error)) from None

    def _error(self, error: OutputError) -> OutputError:
        """Return a journal's error as one of a single clip while other journals work."""
        if len(self._lost) >= self._folders:
            return error
        return OutputError(error.message, hint=error.hint, kind=ONE_CLIP)

    @property
    def is_lost(self) -> bool:
        """True if a journal cannot be written any more."""
        return bool(self._lost)

    def adopt(self, source: Journal, entries: Iterable[JournalEntry] | None = None) -> bool:
        """Copy records of another journal, by default all; see :meth:`add_missing`."""
        wanted = [*(source.index.current() if entries is None else entries)]
        return self.add_missing(zip(wanted, source.read(wanted), strict=True), edits=source.shown in self._visible)

    def add_missing(
        self, found: Iterable[tuple[JournalEntry | None, RecordDict]], job: Job | None = None, *, edits: bool = False
    ) -> bool:
        """Copy to a journal the records that it lacks; return True if one holds a caption that it will not have.

        That is another caption, or one without measurements where these are needed.

        Args:
            found: records, each with its place in another journal if it is there.
            job: clip or shard of the journal; None for the run's.
            edits: captions that differ are edits, and count.
        """
        journal, differ = self.of(job), False
        stored: dict[tuple[str, str], dict[int | None, JournalEntry]] = {}  # of all parts of a clip before any is added
        for entry, record in found:
            about = record["job"]
            clip, segment, segments = (about["clip"], about["settings"]), about.get("segment"), about.get("segments")
            content = FileContent(*(about.get(key) for key in FileContent._fields))
            known = stored.setdefault(clip, dict(journal.index.parts(*clip)))
            if (same := known.get(segment)) is not None and same.content.same(content):
                if (whole := same.record())["caption"] != record["caption"] is not None:
                    differ = True
                    if edits:
                        journal.append({**whole, "caption": record["caption"]})
            elif all(one.segments == segments and one.content.same(content) for one in known.values()):
                if self._measured and "timings" not in record:
                    differ |= record["caption"] is not None
                elif self._read_only and entry is not None:
                    journal.index.add(entry.journal, entry.offset, entry.length, record)
                else:
                    if entry is not None and (run := entry.journal.runs.of(clip[1])) is not None:
                        journal.describe(clip[1], run)
                    journal.append(self._stored(record), sync=False)  # it is kept elsewhere too
        return differ

    def end(self, job: Job) -> None:
        """Remove the journal of a shard that is done."""
        with contextlib.closing(self._journals.pop(self.path(job))) as journal:
            journal.path.unlink(missing_ok=True)

    def records(self) -> Iterator[RecordDict]:
        """Yield the records of all opened journals."""
        for journal in self._journals.values():
            yield from journal.records()

    def others_count(self, settings: Collection[str]) -> int:
        """Return the number of earlier records made under other settings."""
        return sum(journal.index.other_settings_count(settings) for journal in self._journals.values())

    def compact(self, jobs: Sequence[Job], failures: list[Exception]) -> list[str]:
        """Put the records of clips in their order; return notes for the user, and collect failures."""
        notes = []
        for path, journal in self._journals.items():
            with collecting(failures):
                if path not in self._lost:
                    with self.losing(journal=path):
                        journal.compact([clip_id(job) for job in jobs if self.path(job) == path])
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
                journal.close(complete=complete and path not in self._lost)
        replaced = [one for one in self._journals.values() if one.replaced]
        return [f"{one.shown}: the earlier file is now {one.replaced}" for one in replaced]


@contextlib.contextmanager
def collecting(failures: list[Exception]) -> Iterator[None]:
    """Go on after a failure in the block, to be raised later."""
    try:
        yield
    except Exception as error:
        failures.append(error)
