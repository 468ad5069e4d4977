"""Append-only file of records that a run resumes from: one JSON object per line, each line written atomically.

Marks between the records hold the hashes of files written from them: a file with other bytes was edited by someone
else. Descriptions of the runs that made the records stand before them (``vidspec.runs.store.journal_lines``).

Each line is appended in one write and flushed to the disk before the run continues. A line torn by a crash is repaired
on the next open. A lock excludes a second run; a file moved or deleted during the run is detected with the next record.
Independent of captioning and formats. Not SQLite, whose locks fail on network file systems and whose file other tools
cannot read as a list of records.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, Unpack

from vidspec.errors import OutputError, UsageError
from vidspec.escaping import json_text
from vidspec.events.record import RecordDict
from vidspec.files import FileLock, back_up, copy_to_backup, encode_line, held_file, open_own, replacing, write_whole
from vidspec.runs.store.journal_lines import (
    CaptionRun,
    FileMark,
    JournalEntry,
    JournalIndex,
    MarkedCaption,
    RunLines,
    is_in_place,
    mark_line,
    parse_record,
)
from vidspec.runs.store.records import FileContent


class Journal:
    """Journal of records.

    Args:
        path: the file; created with the first record, so that a run that fails early leaves nothing.
        overwrite: start over. An earlier file, even one without records, is kept as ``NAME~``; its marks stay known.
        visible: True if users name and see the file: it may be a link, no caption is dropped from it without a backup,
            and it holds records only, with the descriptions of their runs in the hidden file beside it.
        read_only: no lock, no repair, no new records; also while another run writes.
        stored: returns a record as this journal keeps it; None to keep all of it.

    Attributes:
        index: the records and marks that count, and descriptions of the runs that made them.
        foreign: True if the file holds anything other than records.
        replaced: backup path of an earlier file, or None.
        repaired: bytes of a torn last line that were cut off on opening.
        damaged: number of lines that are no records; they are kept in ``NAME.damaged``.
        gone: error once the file was moved or deleted during the run, after which nothing is written; else None.

    Raises:
        UsageError: another run is writing the file.
        OutputError: it cannot be read or written, or is a link that no user named.
    """

    def __init__(
        self,
        path: Path,
        *,
        overwrite: bool = False,
        visible: bool = False,
        read_only: bool = False,
        stored: Callable[[RecordDict], RecordDict] | None = None,
    ) -> None:
        self.path = Path(os.path.realpath(path))
        if (hidden := hidden_journal(self.path) if visible else path).is_symlink():
            raise OutputError(f"{hidden}: is a link, and no journal of a run", hint="remove it, or move it away")
        self.shown, self.read_only, self._stored = path, read_only, stored
        self.replaced: Path | None = None
        self.repaired = 0
        self.damaged = 0
        self.gone: OutputError | None = None
        self._file: BinaryIO | None = None
        self._user_visible = visible
        self.index: JournalIndex
        self._lock = None if read_only else lock_file(self.path, path)
        try:
            self.foreign = not self._load()
        except OSError as error:
            self._unlock()
            raise self._failure(error) from None
        self._needs_backup = self.foreign or overwrite
        if self._needs_backup:
            self.index = self._empty_index(self.index)

    def _empty_index(self, earlier: JournalIndex | None = None) -> JournalIndex:
        """Return the index before the file is read; the runs of one that users see are described beside it."""
        runs = RunLines.read(hidden_journal(self.path)) if self._user_visible else RunLines(self.path)
        return JournalIndex(self, runs, earlier)

    def records(self) -> Iterator[RecordDict]:
        """Return the current records in file order; raises as :meth:`read` does."""
        return self.read([entry for entry in self.index.current() if entry.journal is self])

    def read(self, wanted: Sequence[JournalEntry]) -> Iterator[RecordDict]:
        """Yield the records of these entries.

        Raises:
            OutputError: they cannot be read any more.
        """
        if not wanted:
            return
        try:
            with self.path.open("rb") as file:
                for entry in wanted:
                    file.seek(entry.offset)
                    yield parse_record(file.read(entry.length)) or {}
        except OSError as error:
            raise self._failure(error) from None

    def records_after(self, mark: FileMark) -> Iterator[RecordDict]:
        """Return the records added after a mark, including superseded ones."""
        return self.read([entry for entry in self.index.entries if entry.offset > mark.offset and entry.clip])

    def append(self, record: RecordDict, *, sync: bool = True) -> None:
        """Append a record with its ``job``; with ``sync`` it is on the disk on return.

        Raises:
            OutputError: it cannot be written, and the file is unchanged; or (kind ``gone``) the record went to a file
                that has been moved or deleted.
        """
        if not self.read_only:
            kept = record if self._stored is None else self._stored(record)
            self._append(encode_line(json_text(kept) + "\n"), kept, sync=sync)
            self._check()

    def adopt(
        self,
        source: Journal,
        entries: Iterable[JournalEntry] | None = None,
        *,
        measured: bool = False,
        edits: bool = False,
    ) -> bool:
        """Copy records of another journal, by default all; see :meth:`add_missing`."""
        wanted = [*(source.index.current() if entries is None else entries)]
        return self.add_missing(zip(wanted, source.read(wanted), strict=True), measured=measured, edits=edits)

    def add_missing(
        self, found: Iterable[tuple[JournalEntry | None, RecordDict]], *, measured: bool = False, edits: bool = False
    ) -> bool:
        """Copy the records that are not here; return True if one holds a caption that this journal will not have.

        That is another caption, or one without measurements where these are needed.

        Args:
            found: records, each with its place in another journal if it is there.
            measured: records without measurements do not count.
            edits: captions that differ are edits, and count.
        """
        differ = False
        stored: dict[tuple[str, str], dict[int | None, JournalEntry]] = {}  # of all parts of a clip before any is added
        for entry, record in found:
            about = record["job"]
            clip, segment, segments = (about["clip"], about["settings"]), about.get("segment"), about.get("segments")
            content = FileContent.of_job(about)
            known = stored.setdefault(clip, dict(self.index.parts(*clip)))
            if (same := known.get(segment)) is not None and same.content.same(content):
                if (whole := same.record())["caption"] != record["caption"] is not None:
                    differ = True
                    if edits:
                        self.append({**whole, "caption": record["caption"]})
            elif all(one.segments == segments and one.content.same(content) for one in known.values()):
                if measured and "timings" not in record:
                    differ |= record["caption"] is not None
                elif self.read_only and entry is not None:
                    self.index.add(entry.journal, entry.offset, entry.length, record)
                else:
                    if entry is not None and (run := entry.journal.index.runs.of(clip[1])) is not None:
                        self.describe(clip[1], run)
                    self.append(record, sync=False)  # it is kept elsewhere too
        return differ

    def sync(self) -> None:
        """Put what was appended on the disk; raises as :meth:`append` does."""
        if self._file is not None:
            try:
                os.fsync(self._file.fileno())
            except OSError as error:
                raise self._failure(error) from None

    def describe(self, settings: str, run: CaptionRun) -> None:
        """Record how captions with these settings are made, unless that is known; call it before their first record.

        Raises:
            OutputError: as :meth:`append` does.
        """
        if self.read_only or settings in self.index.runs:
            return
        if not self._user_visible:
            self._append(self.index.runs.line(settings, run), sync=False)
            return
        try:
            self.index.runs.append(settings, run)
        except OSError as error:
            raise self._failure(error) from None

    def mark(self, path: Path, size: int, sha256: str, **about: Unpack[MarkedCaption]) -> None:
        """Record the content a file is about to have, and ``about`` which caption it is; it is on the disk on return.

        Raises:
            OutputError: as :meth:`append` does.
        """
        marks = self.index.marks
        latest, new = marks.latest(path), FileMark(0, 0, marks.name(path), size, sha256, **about)
        if latest is not None and latest[2:] == new[2:]:
            return
        self._append(mark_line(new), sync=True)
        self._check()

    def _append(self, line: bytes, record: RecordDict | None = None, *, sync: bool) -> None:
        if self.gone is not None:
            raise self.gone
        try:
            file = self._open_file().fileno()
            try:
                written = os.write(file, line)
                while written < len(line):  # a full disk writes less, and then raises
                    written += os.write(file, line[written:])
                if sync:
                    os.fsync(file)
            except OSError:
                os.ftruncate(file, self.index.size)
                raise
        except OSError as error:
            raise self._failure(error) from None
        self.index.add_line(line, record)

    def _check(self) -> None:
        """Check that the written bytes are in the file of this path."""
        if self._file is None:
            return
        status = os.fstat(self._file.fileno())
        if not is_same_file(self.path, status) or status.st_size != self.index.size:
            self._release_file()
            self.gone = missing_file_error(self.shown)
            raise self.gone

    def compact(self, clips: Sequence[str]) -> None:
        """Rewrite the file with current records only, those of ``clips`` last and in this order.

        Superseded records and outdated marks are dropped; the other marks come last. Records of other clips or
        settings keep their order. A file already in order, or gone, is left alone. If a caption is dropped from a file
        that users see (they may have edited it), the file is kept as ``NAME~``.

        Raises:
            OutputError: it cannot be written, or has gone since the last record.
        """
        if self.gone is not None:
            return
        self._check()
        lines = self.index.in_order(clips)
        if is_in_place(lines, self.index.size):
            return
        try:
            with replacing(self.path) as new:
                with self.path.open("rb") as old:
                    for item in lines:
                        old.seek(item.offset)
                        new.write(old.read(item.length))
                new.flush()  # raises on a full disk, before anything else is changed
                self._release_file()
                if self._loses_captions():
                    self.replaced = self._backup_as_named(copy_to_backup(self.path))
            self._load()
        except OSError as error:
            raise self._failure(error) from None

    def _backup_as_named(self, backup: Path | None) -> Path | None:
        """Return a backup's path relative to the path the user gave."""
        return backup if backup is None or self.shown.is_symlink() else self.shown.with_name(backup.name)

    def _loses_captions(self) -> bool:
        """Return True if compaction drops a caption from a file that users see."""
        if not self._user_visible:
            return False
        return any(record.get("caption") is not None for record in self.read([*self.index.void()]))

    def close(self, *, complete: bool = False) -> None:
        """Close the file and release the lock. A ``complete`` run without records leaves an empty file."""
        try:
            if complete and self.gone is None:
                self._open_file()
        except OSError as error:
            raise self._failure(error) from None
        finally:
            self._release_file()
            self._unlock()

    def _load(self) -> bool:
        """Read and repair the file; False if it holds anything other than records."""
        self.index = self._empty_index()
        if not self.path.is_file():  # a device has no records and may have no end
            return True
        bad: list[bytes] = []
        with self.path.open("rb") as file:
            for line in file:
                ended = line.endswith(b"\n")
                whole = line if ended else line + b"\n"
                record = None if ended else parse_record(line)
                is_known = (ended or record is not None) and self.index.add_line(whole, record)
                if not is_known and not self.index.size and (ended or not line.startswith(b"{")):
                    return False
                if not is_known and not ended:  # torn by a crash
                    self.repaired = len(line)
                    if not self.read_only:
                        os.truncate(self.path, self.index.size)
                    break
                if not ended and not self.read_only:  # only the newline is missing
                    with open_own(self.path, "ab") as end:
                        end.write(b"\n")
                if not is_known:
                    bad.append(line)
                    self.index.add_damaged(line)
        if bad and not self.read_only:  # disk damage, not a crash: keep the bytes
            with open_own(self.path.with_name(f"{self.path.name}.damaged"), "ab") as damaged_file:
                damaged_file.writelines(bad)
            self.damaged = len(bad)
        return True

    def _open_file(self) -> BinaryIO:
        if self._file is None:
            if self._needs_backup:
                self.replaced = self._backup_as_named(back_up(self.path))
                self._needs_backup = False
                if marks := [*self.index.marks]:  # needed if this run is interrupted and resumed
                    write_whole(self.path, b"".join(map(mark_line, marks)))
                    self._load()
            self._file = open_own(self.path, "ab")
        return self._file

    def _release_file(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _unlock(self) -> None:
        if self._lock is not None:
            self._lock.release()

    def _failure(self, error: OSError) -> OutputError:
        if self.read_only:
            return OutputError(f"{self.shown}: cannot be read: {error.strerror or error}")
        return unwritable_error(self.shown, error)


def hidden_journal(path: Path) -> Path:
    """Return the path of the hidden journal of a file that cannot be its own."""
    return path.with_name(f".{path.name}.vidspec.jsonl")


def unwritable_error(path: Path | str, error: OSError, kind: str | None = None) -> OutputError:
    """Return the error of a file that cannot be written."""
    return OutputError(f"{path}: cannot be written: {error.strerror or error}", kind=kind)


def is_same_file(path: Path, status: os.stat_result) -> bool:
    """Return True if ``path`` still names the file with this status."""
    try:
        return os.path.samestat(path.stat(), status)
    except OSError:
        return False


def missing_file_error(path: Path) -> OutputError:
    """Return the error of a file that was moved, replaced or deleted during the run."""
    return OutputError(
        f"{path}: was moved, replaced or deleted while the run was writing it",
        hint="put it back if it was moved, and run the same command again to resume",
        kind="gone",
    )


def lock_file(path: Path, shown: Path) -> FileLock:
    """Lock a file that a run writes.

    Args:
        path: the file, without links.
        shown: its name in messages.

    Raises:
        UsageError: another run is writing it.
        OutputError: it cannot be locked.
    """
    try:
        return FileLock(path)
    except TimeoutError:
        hint = "wait for it to end, or name another file"
        if (held := held_file(path)).exists():
            hint += f"; if no run is, delete {held}"
        raise UsageError(f"{shown}: another run is writing it", hint=hint) from None
    except OSError as error:
        raise OutputError(f"{shown}: cannot be locked: {error.strerror or error}") from None
