"""Destinations of records: standard output, one file, one file per clip, or several of these; files can be resumed.

A journal (``vidspec.dataset.journal``) makes a run resumable. One file of ``jsonl`` or ``json`` is its own journal;
every other file is rendered from a hidden journal next to it.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path

from vidspec.dataset.formats.base import OutputFormat, format_names, make_format
from vidspec.dataset.job import Job
from vidspec.dataset.journal import Journal, JournalEntry, is_same_file, missing_file_error, unwritable_error
from vidspec.dataset.records import clip_id
from vidspec.dataset.writers import Lines
from vidspec.errors import OutputError, UsageError
from vidspec.events.record import RecordDict
from vidspec.files import back_up, backup_of, encode_line, write_whole

__all__ = [
    "ONE_CLIP",
    "CombinedOutput",
    "JournaledOutput",
    "Output",
    "SingleFileOutput",
    "StreamOutput",
    "hidden_journal",
    "in_order",
    "journal_of",
    "make_folder",
]

#: Kind of an OutputError that concerns one clip; after any other kind nothing more can be written.
ONE_CLIP = "sidecar"


class Output:
    """Destination of records, with access to those of earlier runs; the base class keeps none.

    Each record comes with its clip, as the planned job.
    """

    def parts(self, job: Job, settings: str) -> Mapping[int | None, JournalEntry]:
        """Return the records of a clip under these settings, by segment."""
        return {}

    def same_content(self, job: Job, sha256: str, settings: str) -> JournalEntry | None:
        """Return an earlier caption of the same bytes under another name."""
        return None

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

    def add(self, job: Job, record: RecordDict) -> None:
        """Write a record; it is durable on return.

        Raises:
            OutputError: it could not be written; of kind :data:`ONE_CLIP` if those of other clips still can.
        """

    def restore(self, job: Job, settings: str) -> None:
        """Write the missing file of a clip that needs no captioning."""

    def close(self, jobs: Sequence[Job], *, complete: bool) -> list[str]:
        """Finish the output after the last record; return notes for the user."""
        return []


class StreamOutput(Output):
    """Lines on standard output or into a pipe, without memory of earlier runs.

    Args:
        lines: destination of the lines.
        form: format of the lines.
        order: clips in output order: each record is written as soon as those before it are; None for arrival order.
    """

    def __init__(
        self,
        lines: Lines,
        form: OutputFormat,
        *,
        order: Sequence[Job] | None = None,
    ) -> None:
        self.lines, self.form = lines, form
        self._header_written = False
        self._clip_order = None if order is None else deque(dict.fromkeys(map(clip_id, order)))
        self._waiting: dict[str, list[RecordDict]] = {}  # by clip

    def add(self, job: Job, record: RecordDict) -> None:
        clip = clip_id(job)
        self._waiting.setdefault(clip, []).append(record)
        if self._clip_order is None:
            self._flush(clip)
            return
        while self._clip_order and self._clip_order[0] in self._waiting:
            if not self._flush(self._clip_order[0]):
                return
            self._clip_order.popleft()

    def close(self, jobs: Sequence[Job], *, complete: bool) -> list[str]:
        for clip in self._clip_order or ():  # those after a missing one, as when interrupted
            if clip in self._waiting:
                self._flush(clip)
        self.lines.close()
        return []

    def _flush(self, clip: str) -> bool:
        """Write the records of a clip so far, a document only with its last part; True if that has arrived."""
        about = self._waiting[clip][-1]["job"]
        last: bool = about.get("segment", 0) + 1 >= about.get("segments", 1)
        texts = self.form.stream_text(self._waiting[clip], last=last)
        if texts is not None:
            del self._waiting[clip]
            if self.form.header is not None and not self._header_written:
                self.lines.write(self.form.header)
            self._header_written = True
            for text in texts:
                self.lines.write(text)
        return last


class JournaledOutput(Output):
    """Base of all outputs that can be resumed; by itself it writes only journals.

    Args:
        journal_for: returns the path of a clip's journal; each journal is opened once.
        fresh: start over.
        visible: the file that users see, if it is not its own journal.
        look: read only, without lock or repair.
    """

    def __init__(
        self,
        journal_for: Callable[[Job], Path],
        *,
        fresh: bool = False,
        visible: Path | None = None,
        look: bool = False,
    ) -> None:
        self._journal_for, self._fresh, self._visible, self._look = journal_for, fresh, visible, look
        self._journals: dict[Path, Journal] = {}
        self._lost: dict[Path, OutputError] = {}  # journals that cannot be written any more

    def journal(self, job: Job) -> Journal:
        """Return the journal of a clip.

        Raises:
            OutputError: it cannot be written any more.
        """
        path = self._journal_for(job)
        if path in self._lost:
            raise self._journal_error(self._lost[path])
        if path not in self._journals:
            self._journals[path] = Journal(path, fresh=self._fresh, visible=self._visible, look=self._look)
        return self._journals[path]

    @contextlib.contextmanager
    def _losing_journal(self, job: Job) -> Iterator[None]:
        """Mark the journal of ``job`` as lost after an OutputError in the block."""
        try:
            yield
        except OutputError as error:
            raise self._journal_error(self._lost.setdefault(self._journal_for(job), error)) from None

    def _journal_error(self, error: OutputError) -> OutputError:
        """Return the error to raise for an error of a journal."""
        return error

    def parts(self, job: Job, settings: str) -> Mapping[int | None, JournalEntry]:
        return self.journal(job).parts(clip_id(job), settings)

    def records(self) -> Iterator[RecordDict]:
        """Yield the records of all opened journals."""
        for journal in self._journals.values():
            yield from journal.records()

    def same_content(self, job: Job, sha256: str, settings: str) -> JournalEntry | None:
        return self.journal(job).by_hash(sha256, settings)

    def file_changes(self, job: Job, settings: str, *, captioned: bool) -> Mapping[Path, str]:
        """Return the effect of a run on existing files, for a clip that it would caption or, if not, finds done."""
        return {}

    def others(self, settings: Collection[str]) -> int:
        return sum(journal.other_settings_count(settings) for journal in self._journals.values())

    def add(self, job: Job, record: RecordDict) -> None:
        with self._losing_journal(job):
            self.journal(job).append(record)

    def close(self, jobs: Sequence[Job], *, complete: bool) -> list[str]:
        notes = []
        try:
            for path, journal in self._journals.items():
                if path not in self._lost:
                    journal.compact([clip_id(job) for job in jobs if self._journal_for(job) == path])
                if journal.repaired:
                    notes.append(f"{journal.shown}: a torn last line was repaired; its clip was captioned again")
                if journal.damaged:
                    notes.append(f"{journal.shown}: {journal.damaged} damaged lines are now in {journal.shown}.damaged")
            notes += self._render(complete=complete)
        finally:
            for path, journal in self._journals.items():
                journal.close(complete=complete and path not in self._lost)
        replaced = [one for one in self._journals.values() if one.replaced]
        return notes + [f"{one.shown}: the earlier file is now {one.replaced}" for one in replaced]

    def _render(self, *, complete: bool) -> list[str]:
        """Write the files that are rendered once, from the compacted journals; return notes."""
        return []


class SingleFileOutput(JournaledOutput):
    """One file for all clips.

    Raises:
        UsageError: the file is not as a run wrote it and ``fresh`` is not set, or another run is writing it.
    """

    def __init__(
        self,
        path: Path,
        form: OutputFormat,
        *,
        fresh: bool = False,
        look: bool = False,
    ) -> None:
        own = form.is_journal
        super().__init__(lambda _: journal_of(path, form), fresh=fresh, visible=path, look=look)
        self.path, self.form, self._is_journal = path, form, own
        self._last_status: os.stat_result | None = None  # the file as this run last left it
        self._digest, self._size = hashlib.sha256(), 0  # of the bytes this run wrote
        journal = self.journal(Job(""))  # the lock is taken and the file repaired before a model is loaded
        self._ours = own or (not fresh and self._is_ours(journal))
        self._backup: Path | None = None
        try:
            if not fresh:
                self._reject_foreign(journal)
        except UsageError:
            journal.close()
            raise

    def _reject_foreign(self, journal: Journal) -> None:
        """Reject a file that this run may neither continue nor replace."""
        keeping = f"--overwrite replaces it, keeping {backup_of(self.path)}"
        if not self._ours and journal.latest_mark(self.path) is not None:
            hint = f"{keeping}, and begins anew; or move it away: it is written again without captioning"
            raise UsageError(f"{self.path}: was edited since a run wrote it, and is left alone", hint=hint)
        if not self._ours or (self._is_journal and journal.foreign):
            hint = f"{keeping}; or name another file"
            raise UsageError(f"{self.path}: is there already, and no such run wrote it", hint=hint)
        first = next(journal.records(), None)
        if self._is_journal and first is not None and ("timings" in first) != self.form.measured:
            others = map(make_format, format_names())
            other = next(one.name for one in others if one.is_journal and one.measured != self.form.measured)
            raise UsageError(f"{self.path}: holds records of --format {other}", hint="go on with that, or --overwrite")

    def _is_ours(self, journal: Journal) -> bool:
        """Return True if the file is as an earlier run, even a killed one, left it, or is missing or empty."""
        if not self.path.is_file():
            return True
        content = self.path.read_bytes()
        if journal.latest_mark(self.path) is None:  # none, or one of version 0.2.0, which made no marks
            return self._content().startswith(content)
        # After the marked bytes come lines of later records; the last may be torn.
        return not content or any(
            b"".join(map(self._line, journal.records_after(mark))).startswith(content[mark.size :])
            for mark in journal.marks_of(self.path, content)
        )

    def file_changes(self, job: Job, settings: str, *, captioned: bool) -> Mapping[Path, str]:
        if not (captioned and self._fresh and self.path.is_file() and self.path.stat().st_size):
            return {}
        return {self.path: f"replaced, kept as {backup_of(self.path)}"}

    def add(self, job: Job, record: RecordDict) -> None:
        if self._look:
            return
        with self._losing_journal(job):
            if not self._is_journal:
                self._back_up_foreign()  # before the record: a file next to a journal always belongs to it
            super().add(job, self.form.stored(record))
            if not self._is_journal:
                self._append(record)

    def _append(self, record: RecordDict) -> None:
        if self.form.update == "end":
            return
        if self._last_status is None or self.form.update == "rewrite":
            self._rewrite()
            return
        if text := self._line(record):
            self._check()
            try:
                with open(self.path, "ab") as file:
                    file.write(text)
            except OSError as error:
                raise unwritable_error(self.path, error) from None
            self._digest.update(text)
            self._size += len(text)

    def _line(self, record: RecordDict) -> bytes:
        """Return a record as appended to the file; empty for formats that are written whole."""
        text = self.form.line(record)
        return b"" if text is None else encode_line(text + "\n")

    def _check(self) -> None:
        """Check that the file is still the one that this run began."""
        if self._last_status is not None and not is_same_file(self.path, self._last_status):
            raise missing_file_error(self.path)

    def _back_up_foreign(self) -> None:
        """Back up a foreign file before it is replaced."""
        if not self._ours:
            try:
                self._backup = back_up(self.path)
            except OSError as error:
                raise unwritable_error(self.path, error) from None
        self._ours = True

    def _rewrite(self) -> None:
        """Rewrite the file from its journal."""
        self._check()
        content = self._content()
        self._digest, self._size = hashlib.sha256(content), len(content)
        self._mark()
        write_whole(self.path, content)
        self._last_status = self.path.stat()

    def _content(self) -> bytes:
        """Return the content of the file according to its journal."""
        return self.form.content(self.records())

    def _mark(self) -> None:
        self.journal(Job("")).mark(self.path, self._size, self._digest.hexdigest())

    def close(self, jobs: Sequence[Job], *, complete: bool) -> list[str]:
        if self._last_status is not None and not self._lost:
            with contextlib.suppress(OutputError):  # a lost journal is reported below
                self._mark()  # for the appended lines, before their records are reordered
        return super().close(jobs, complete=complete)

    def _render(self, *, complete: bool) -> list[str]:
        if self._is_journal or self._lost or not (complete or self._last_status):
            return []
        if self._last_status is not None:
            self._check()
            if hashlib.sha256(self.path.read_bytes()).digest() != self._digest.digest():  # edited under this run
                self._ours, self._last_status = False, None
        self._back_up_foreign()
        self._rewrite()
        return [f"{self.path}: the earlier file is now {self._backup}"] if self._backup else []


class CombinedOutput(Output):
    """Several outputs: a part is done if every journaled one has it; streams get earlier records again.

    Args:
        outputs: at most one stream, combined with an output of complete records; sidecar files last, as a write to
            them may fail for a single clip.
    """

    def __init__(self, outputs: Sequence[Output]) -> None:
        self.outputs = outputs
        self._journaled = [one for one in outputs if not isinstance(one, StreamOutput)]
        self._streams = [one for one in outputs if isinstance(one, StreamOutput)]

    def parts(self, job: Job, settings: str) -> Mapping[int | None, JournalEntry]:
        first, *others = [one.parts(job, settings) for one in self._journaled] or [{}]
        return {
            key: stored
            for key, stored in first.items()
            if all(key in other and other[key].content.same(stored.content) for other in others)
        }

    def same_content(self, job: Job, sha256: str, settings: str) -> JournalEntry | None:
        # One output may store less than another needs, so a record is reused only from a single output.
        return self._journaled[0].same_content(job, sha256, settings) if len(self._journaled) == 1 else None

    def others(self, settings: Collection[str]) -> int:
        return max(one.others(settings) for one in self._journaled)

    def check(self, job: Job) -> None:
        for one in self.outputs:
            one.check(job)

    def leaves(self, job: Job) -> bool:
        return bool(self.outputs) and all([one.leaves(job) for one in self.outputs])

    def add(self, job: Job, record: RecordDict) -> None:
        for one in self.outputs:
            one.add(job, record)

    def restore(self, job: Job, settings: str) -> None:
        stored = in_order(self.parts(job, settings))
        for one in self._journaled:
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


def hidden_journal(path: Path) -> Path:
    """Return the path of the hidden journal of a file that cannot be its own."""
    return path.with_name(f".{path.name}.vidspec.jsonl")


def journal_of(path: Path, form: OutputFormat) -> Path:
    """Return the path of the journal of one file for all clips: the file itself if it holds complete records."""
    return path if form.is_journal else hidden_journal(path)


def in_order(parts: Mapping[int | None, JournalEntry]) -> list[JournalEntry]:
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
