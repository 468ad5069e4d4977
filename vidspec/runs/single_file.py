"""One file for all clips, rendered from the journal next to it, or itself the journal."""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from vidspec.errors import OutputError, UsageError
from vidspec.events.record import RecordDict
from vidspec.files import back_up, backup_of, encode_line, write_whole
from vidspec.runs.file_marks import FileMark, FileMarks
from vidspec.runs.file_states import file_state, hidden_journal
from vidspec.runs.formats.base import OutputFormat, format_names, make_format
from vidspec.runs.job import Job
from vidspec.runs.journal import Journal, is_same_file, missing_file_error, unwritable_error
from vidspec.runs.outputs import FileOutput

__all__ = ["SingleFileOutput", "journal_of"]


def journal_of(path: Path, form: OutputFormat) -> Path:
    """Return the path of the journal of one file for all clips: the file itself if its format is a journal."""
    return path if form.is_journal else hidden_journal(path)


class SingleFileOutput(FileOutput):
    """One file for all clips.

    Raises:
        UsageError: the file is not as a run wrote it and ``fresh`` is not set, or another run is writing it.
    """

    def __init__(self, path: Path, form: OutputFormat, *, fresh: bool = False, look: bool = False) -> None:
        super().__init__(fresh=fresh, look=look)
        self.path, self.form = path, form
        self._written: os.stat_result | None = None  # the file as this run last left it
        self._digest, self._size = hashlib.sha256(), 0  # of the bytes this run wrote
        self._backup: Path | None = None
        journal = self.journal(Job(""))  # the lock is taken and the file repaired before a model is loaded
        self._replaceable = True
        if not form.is_journal:
            state = file_state(path, [journal.index.marks], self._appended)
            self._replaceable = not fresh and state in ("free", "written")
        try:
            if not fresh:
                self._reject_foreign(journal)
        except UsageError:
            journal.close()
            raise

    def journal_path(self, job: Job) -> Path:
        return journal_of(self.path, self.form)

    def visible_file(self) -> Path:
        return self.path

    def _appended(self, marks: FileMarks, mark: FileMark) -> bytes:
        """Return what was appended to the file after a mark."""
        return b"".join(map(self._line, self.journal(Job("")).records_after(mark)))

    def _reject_foreign(self, journal: Journal) -> None:
        """Reject a file that this run may neither continue nor replace."""
        keeping = f"--overwrite replaces it, keeping {backup_of(self.path)}"
        if not self._replaceable and journal.index.marks.latest(self.path) is not None:
            hint = f"{keeping}, and begins anew; or move it away: it is written again without captioning"
            raise UsageError(f"{self.path}: was edited since a run wrote it, and is left alone", hint=hint)
        if not self._replaceable or (self.form.is_journal and journal.foreign):
            hint = f"{keeping}; or name another file"
            raise UsageError(f"{self.path}: is there already, and no such run wrote it", hint=hint)
        first = next(journal.records(), None)
        if self.form.is_journal and first is not None and ("timings" in first) != self.form.measured:
            others = map(make_format, format_names())
            other = next(one.name for one in others if one.is_journal and one.measured != self.form.measured)
            raise UsageError(f"{self.path}: holds records of --format {other}", hint="go on with that, or --overwrite")

    def file_changes(self, job: Job, settings: str, *, captioned: bool) -> Mapping[Path, str]:
        if not (captioned and self._fresh and self.path.is_file() and self.path.stat().st_size):
            return {}
        return {self.path: f"replaced, kept as {backup_of(self.path)}"}

    def add(self, job: Job, record: RecordDict) -> None:
        with self.losing_journal(job):
            if not self.form.is_journal:
                self._back_up_foreign()  # before the record: a file next to a journal always belongs to it
            self.journal(job).append(self.form.stored(record))
            if not self.form.is_journal and self.form.update != "end":
                if self._written is None or self.form.update == "rewrite":
                    self._rewrite()
                else:
                    self._append(self._line(record))

    def _append(self, line: bytes) -> None:
        self._check()
        try:
            with open(self.path, "ab") as file:
                file.write(line)
        except OSError as error:
            raise unwritable_error(self.path, error) from None
        self._digest.update(line)
        self._size += len(line)

    def _line(self, record: RecordDict) -> bytes:
        """Return a record as appended to the file; empty for formats that are written whole."""
        text = self.form.line(record)
        return b"" if text is None else encode_line(text + "\n")

    def _check(self) -> None:
        """Check that the file is still the one that this run began."""
        if self._written is not None and not is_same_file(self.path, self._written):
            raise missing_file_error(self.path)

    def _back_up_foreign(self) -> None:
        """Back up a file that was edited or that no run wrote, before it is replaced."""
        if not self._replaceable:
            try:
                self._backup = back_up(self.path)
            except OSError as error:
                raise unwritable_error(self.path, error) from None
        self._replaceable = True

    def _rewrite(self) -> None:
        """Rewrite the file from its journal."""
        self._check()
        content = self._content()
        self._digest, self._size = hashlib.sha256(content), len(content)
        self._mark()
        write_whole(self.path, content)
        self._written = self.path.stat()

    def _content(self) -> bytes:
        """Return the content of the file according to its journal."""
        return self.form.content(self.records())

    def _mark(self) -> None:
        self.journal(Job("")).mark(self.path, self._size, self._digest.hexdigest())

    def close(self, jobs: Sequence[Job], *, complete: bool) -> list[str]:
        if self._written is not None and not self._lost:
            with contextlib.suppress(OutputError):  # a lost journal is reported below
                self._mark()  # for the appended lines, before their records are reordered
        return super().close(jobs, complete=complete)

    def render_all(self, *, complete: bool) -> list[str]:
        if self.form.is_journal or self._lost or not (complete or self._written):
            return []
        if self._written is not None:
            self._check()
            if hashlib.sha256(self.path.read_bytes()).digest() != self._digest.digest():  # edited under this run
                self._replaceable, self._written = False, None
        self._back_up_foreign()
        self._rewrite()
        return [f"{self.path}: the earlier file is now {self._backup}"] if self._backup else []
