"""One file for all clips, rendered from the run's journal, or itself the journal."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from vidspec.errors import UsageError, option
from vidspec.events.record import RecordDict
from vidspec.files import NamedPath, back_up, backup_of, behind_link, encode_line, open_own, replacing
from vidspec.runs.formats.base import OutputFormat, format_names, make_format
from vidspec.runs.job import Job
from vidspec.runs.renderers import OUTPUT, Renderer
from vidspec.runs.store.journal import Journal, hidden_journal, is_same_file, missing_file_error, unwritable_error
from vidspec.runs.store.known_journals import FileState
from vidspec.runs.store.records import clip_id

if TYPE_CHECKING:
    from vidspec.runs.run_captions import RunCaptions


class RunFile(Renderer):
    """One file for all clips. If it is the run's journal, the store writes it, and this class only checks it.

    Edited captions in a file of records count, as they do in a journal.
    """

    path: Path

    def __init__(self, path: Path, form: OutputFormat) -> None:
        self.path, self.form = path, form
        self._target = behind_link(path)
        self._written: os.stat_result | None = None  # the file as this run last left it
        self._digest, self._size = hashlib.sha256(), 0  # of the bytes this run wrote
        self._backup: Path | None = None
        self._replaceable = True
        self._settings: dict[str, str] = {}  # of this run's clips, for a list of files

    @property
    def place(self) -> str:
        return f"into {self.path}"

    def outputs(self, jobs: Iterable[Job]) -> Iterator[NamedPath]:
        yield OUTPUT, self.path
        if not self.form.is_journal:
            yield "the journal of the output", hidden_journal(self.path)

    @property
    def _is_journal(self) -> bool:
        return self.captions.is_journal(self.path)

    def open(self, captions: RunCaptions) -> None:
        super().open(captions)
        journal, overwrite, measured = captions.journals.of(), captions.overwrite, captions.measured
        if self._is_journal:
            if not overwrite:
                self._reject_other_records(journal)
            return
        earlier = hidden_journal(self.path)  # of a run with fewer formats
        old = None if captions.is_journal(earlier) else captions.known.read(earlier)
        state = captions.known.state(self.path, [journal], self.form, named=True)
        self._replaceable = not overwrite and state in ("free", "written")
        if not (self._replaceable or overwrite or self._is_torn(journal)):
            file = Journal(self.path, visible=True, read_only=True) if self.form.is_journal else None
            if file is None or file.foreign:
                raise self._refusal(state)
            self._replaceable = not journal.adopt(file, measured=measured, edits=True)
        if old is not None and old.index.entries:
            if not overwrite:
                journal.adopt(old, measured=measured)
                journal.sync()
            if not captions.read_only:
                back_up(earlier)

    def _is_torn(self, journal: Journal) -> bool:
        """Return True if the file shows the records of its journal, but for a last line of either that a crash tore."""
        found, shown = self._target.read_bytes(), self._content()
        if journal.repaired:
            return bool(shown) and (shown.startswith(found) or found.startswith(shown))
        return shown.startswith(found) and not found.endswith(b"\n")

    def _refusal(self, state: FileState) -> UsageError:
        """Return the error of a file that this run may neither continue nor replace."""
        keeping = f"--overwrite replaces it, keeping {backup_of(self._target)}"
        if state == "edited":
            hint = (
                f"{keeping}, and starts over; or move it away, and the same command writes it again without captioning"
            )
            return edited_error(self.path, hint)
        hint = f"{keeping}; or name another file"
        return UsageError(f"{self.path}: exists already, and no such run wrote it", hint=hint)

    def _reject_other_records(self, journal: Journal) -> None:
        """Reject a file that is no journal, or one of records with or without measurements, unlike this format."""
        if journal.foreign:
            raise self._refusal("foreign")
        first = next(journal.records(), None)
        if first is not None and ("timings" in first) != self.form.measured:
            others = map(make_format, format_names())
            other = next(one.name for one in others if one.is_journal and one.measured != self.form.measured)
            raise UsageError(
                f"{self.path}: holds records of {option('format', other)}",
                hint=f"keep to that format, or start over with {option('overwrite')}",
            )

    def leaves(self, job: Job) -> bool:
        kept = self.form.lists_files and not self.captions.overwrite and job.shard is None
        return kept and self.captions.own_file(job) is not None

    def file_changes(self, job: Job, settings: str, *, captioned: bool) -> Mapping[Path, str]:
        if not (captioned and self.captions.overwrite and self.path.is_file() and self.path.stat().st_size):
            return {}
        return {self.path: f"replaced, kept as {backup_of(self._target)}"}

    def prepare(self, job: Job, record: RecordDict) -> None:
        if not self._is_journal:
            self._back_up_foreign()  # before the record: a file next to a journal always belongs to it

    def restore(self, job: Job, settings: str) -> None:
        if self.form.lists_files:
            self._settings[clip_id(job)] = settings

    def add(self, job: Job, record: RecordDict) -> None:
        self.restore(job, record["job"]["settings"])
        if self._is_journal or self.form.update == "end":
            return
        with self.captions.journals.losing():
            if self._written is None or self.form.update == "rewrite":
                self._rewrite()
            else:
                self._append(self.form.line(record))

    def _append(self, text: str | None) -> None:
        line = b"" if text is None else encode_line(text + "\n")
        self._check()
        try:
            with open_own(self._target, "ab") as file:
                file.write(line)
        except OSError as error:
            raise unwritable_error(self.path, error) from None
        self._digest.update(line)
        self._size += len(line)

    def _check(self) -> None:
        """Check that the file is still the one that this run began."""
        if self._written is not None and not is_same_file(self.path, self._written):
            raise missing_file_error(self.path)

    def _back_up_foreign(self) -> None:
        """Back up a file that was edited or that no run wrote, before it is replaced."""
        if not self._replaceable:
            try:
                self._backup = back_up(self._target)
            except OSError as error:
                raise unwritable_error(self.path, error) from None
        self._replaceable = True

    def _rewrite(self) -> None:
        """Rewrite the file from its journal."""
        self._check()
        content = self._content()
        self._digest, self._size = hashlib.sha256(content), len(content)
        write_marked(self._target, [content], lambda part, size, digest: self._mark(), self.path)
        self._written = self.path.stat()

    def _content(self) -> bytes:
        """Return the content of the file: the captions of its journal, with the texts that hold now."""
        if self.form.lists_files:
            return self.form.content(
                self.captions.current(settings=self._settings).records.listed(cut=self.captions.cuts)
            )
        return self.form.content(self.captions.current().records)

    def _mark(self) -> None:
        self.captions.mark(None, self.path, self._size, self._digest.hexdigest())

    def settle(self) -> None:
        if self._written is not None and not self.captions.journals.is_lost:
            self._mark()  # for the appended lines, before their records are reordered

    def finish(self, *, complete: bool) -> list[str]:
        if self._is_journal or self.captions.journals.is_lost or not (complete or self._written):
            return []
        if self._written is not None:
            self._check()
            if hashlib.sha256(self.path.read_bytes()).digest() != self._digest.digest():  # edited under this run
                self._replaceable, self._written = False, None
        self._back_up_foreign()
        self._rewrite()
        return [f"{self.path}: the earlier file is now {self._backup}"] if self._backup else []


def write_marked(path: Path, pieces: Iterable[bytes], mark: Callable[[Path, int, str], None], shown: Path) -> None:
    """Write or replace a file for all clips, which is marked before it is shown.

    Args:
        path: the file, no link.
        pieces: its content.
        mark: marks it; gets the new file before it replaces the old one, its size, and the hash of its bytes.
        shown: name of the file in messages.

    Raises:
        OutputError: it cannot be written.
    """
    try:
        with replacing(path) as file:
            digest, size = hashlib.sha256(), 0
            for piece in pieces:
                digest.update(piece)
                size += file.write(piece)
            file.flush()
            mark(Path(file.name), size, digest.hexdigest())
    except OSError as error:
        raise unwritable_error(shown, error) from None


def edited_error(path: Path, hint: str) -> UsageError:
    """Return the error of a file for all clips that was edited."""
    return UsageError(f"{path}: was edited since a run wrote it, and is left alone", hint=hint)
