"""The append-only file of records that a run can be resumed from: one JSON object a line, whole or not there at all.

A line is appended in one write and flushed to the disk before the run goes on. A line that a crash tore is repaired
when the file is opened again. A lock keeps a second run out; a file that is moved or deleted while it is written is
noticed with the next record. Knows nothing of captioning or of formats. Not SQLite, whose locks do not hold on network
file systems and whose file is no list of records for other tools.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from vidspec.dataset.records import Content
from vidspec.errors import OutputError, UsageError
from vidspec.escaping import json_text
from vidspec.events.record import Record
from vidspec.files import Lock, encoded

__all__ = ["Journal", "Stored", "gone", "is_at", "parsed", "set_aside", "unwritable"]


class Stored(NamedTuple):
    """A record in a journal: where it lies in the file (bytes), and what it is about.

    ``segment`` of ``segments`` is None for a whole clip; ``failed`` is whether it is an error record.
    """

    journal: Journal
    offset: int
    length: int
    clip: str = ""
    settings: str = ""
    segment: int | None = None
    segments: int | None = None
    content: Content = Content(None, None)
    failed: bool = True

    def record(self) -> Record:
        """The record itself.

        Raises:
            OutputError: it cannot be read any more.
        """
        return next(self.journal.read([self]))


class Journal:
    """Records by clip and settings.

    Args:
        path: the file; made with the first record, so that a run that fails early leaves nothing.
        fresh: whether to begin anew. An earlier file, one that is no file of records too, is kept as ``NAME~``.
        visible: the file that users know it by, whose lock is the run's whatever it is written as; ``path`` if None.
        look: only to read it, also while another run writes it: it is neither locked nor repaired, and takes no record.

    Attributes:
        replaced: where an earlier file was moved to, or None.
        repaired: bytes of a torn last line that were cut off when the file was opened.
        damaged: lines that are no records; they are kept in ``NAME.damaged``.
        gone: that the file was taken away while it was written, after which nothing is written any more; None else.

    Raises:
        UsageError: another run is writing the file.
        OutputError: it cannot be read or written.
    """

    def __init__(self, path: Path, *, fresh: bool = False, visible: Path | None = None, look: bool = False) -> None:
        self.path = Path(os.path.realpath(path))
        self.shown, self.look = path, look
        self.replaced: Path | None = None
        self.repaired = 0
        self.damaged = 0
        self.gone: OutputError | None = None
        self._file: int | None = None
        self._forget()
        shown = visible or path
        self._lock = None if look else _locked(Path(os.path.realpath(shown)), shown)
        try:
            self._set_aside = not self._load() or fresh
        except OSError as error:
            self._unlock()
            raise self._failure(error) from None
        if self._set_aside:
            self._forget()

    def parts(self, clip: str, settings: str) -> Mapping[int | None, Stored]:
        """The records of a clip under these settings, by segment (None for the whole clip)."""
        return self._index.get(clip, {}).get(settings, {})

    def knows(self, clip: str) -> bool:
        """Whether there is a record of the clip under any settings."""
        return clip in self._index

    def by_hash(self, sha256: str, settings: str) -> Stored | None:
        """A caption of the same content under the same settings, whatever its file was called."""
        return self._hashes.get((sha256, settings))

    def others(self, settings: Collection[str]) -> int:
        """How many records were made under other settings than these."""
        named = (item for by_settings in self._index.values() for item in by_settings.items())
        return sum(len(parts) for other, parts in named if other not in settings)

    def records(self) -> Iterator[Record]:
        """The records that count, in the order of the file; raises as :meth:`read` does."""
        return self.read([stored for stored in self._order if self._counts(stored)])

    def read(self, wanted: Sequence[Stored]) -> Iterator[Record]:
        """Some of the records.

        Raises:
            OutputError: they cannot be read any more.
        """
        if not wanted:
            return
        try:
            with self.path.open("rb") as file:
                for stored in wanted:
                    file.seek(stored.offset)
                    yield parsed(file.read(stored.length)) or {}
        except OSError as error:
            raise self._failure(error) from None

    def append(self, record: Record) -> None:
        """Add a record with its ``job``; when this returns it is on the disk.

        Raises:
            OutputError: it cannot be written, and the file is as it was before; or (kind ``gone``) the record is in a
                file that is not under its name any more.
        """
        if self.look:
            return
        if self.gone is not None:
            raise self.gone
        line = encoded(json_text(record) + "\n")
        try:
            file = self._opened()
            try:
                written = os.write(file, line)
                while written < len(line):  # a full disk writes less, and then raises
                    written += os.write(file, line[written:])
                os.fsync(file)
            except OSError:
                os.ftruncate(file, self._size)
                raise
        except OSError as error:
            raise self._failure(error) from None
        self._add(self._size, line, record)
        self._check()

    def _check(self) -> None:
        """Find out whether what was written is where it was to be."""
        if self._file is not None and not is_at(self.path, os.fstat(self._file)):
            self._release_file()
            self.gone = gone(self.shown)
            raise self.gone

    def tidy(self, clips: Sequence[str]) -> None:
        """Leave one record for each clip, those of ``clips`` last and in this order; replaces the file whole.

        Records that a later one made void go; what is about other clips or other settings stays where it is. A file
        that is in order already is not touched, nor is one that is gone.

        Raises:
            OutputError: it cannot be written, or is gone since the last record.
        """
        if self.gone is not None:
            return
        self._check()
        rank = {clip: place for place, clip in enumerate(clips)}
        kept = [stored for stored in self._order if self._counts(stored)]
        tidy = sorted(kept, key=lambda one: (rank.get(one.clip, -1), -1 if one.clip not in rank else one.segment or 0))
        if tidy == self._order:
            return
        part = self.path.with_name(self.path.name + ".part")
        try:
            with self.path.open("rb") as old, part.open("wb") as new:
                for stored in tidy:
                    old.seek(stored.offset)
                    new.write(old.read(stored.length))
                new.flush()
                os.fsync(new.fileno())
            shutil.copymode(self.path, part)
            self._release_file()
            part.replace(self.path)
            self._forget()
            self._load()
        except OSError as error:
            raise self._failure(error) from None

    def close(self, *, complete: bool = False) -> None:
        """Let go of file and lock. A ``complete`` run without records leaves an empty file."""
        try:
            if complete and self.gone is None:
                self._opened()
        except OSError as error:
            raise self._failure(error) from None
        finally:
            self._release_file()
            self._unlock()

    def _load(self) -> bool:
        """Read and repair the file. False if it holds something else than records."""
        if not self.path.is_file():  # a device has no records, and perhaps no end
            return True
        bad: list[bytes] = []
        offset = 0
        with self.path.open("rb") as file:
            for line in file:
                record, ended = parsed(line), line.endswith(b"\n")
                if record is None and not self._order and (ended or not line.startswith(b"{")):
                    return False
                if record is None and not ended:  # a crash tore it
                    self.repaired = len(line)
                    if not self.look:
                        os.truncate(self.path, offset)
                    break
                if not ended:  # only its end is missing
                    line += b"\n"
                    if not self.look:
                        with self.path.open("ab") as end:
                            end.write(b"\n")
                if record is None:
                    bad.append(line)
                    self._order.append(Stored(self, offset, len(line)))
                else:
                    self._add(offset, line, record)
                offset += len(line)
        self._size = offset
        if bad and not self.look:  # the disk did this, not a crash: nothing is thrown away
            with self.path.with_name(self.path.name + ".damaged").open("ab") as aside:
                aside.writelines(bad)
            self.damaged = len(bad)
        return True

    def _add(self, offset: int, line: bytes, record: Record) -> None:
        job = record["job"]
        content = Content(job.get("size"), job.get("mtime_ns"), job.get("sha256"))
        part = job.get("segment"), job.get("segments")
        failed = record.get("error") is not None
        stored = Stored(self, offset, len(line), job["clip"], job["settings"], *part, content, failed)
        parts = self._index.setdefault(stored.clip, {}).setdefault(stored.settings, {})
        for key in [key for key, old in parts.items() if not _belong(old, stored)]:
            del parts[key]
        parts[stored.segment] = stored
        if content.sha256 is not None and not failed and stored.segment is None:
            self._hashes[content.sha256, stored.settings] = stored
        self._order.append(stored)
        self._size = offset + len(line)

    def _counts(self, stored: Stored) -> bool:
        return self.parts(stored.clip, stored.settings).get(stored.segment) is stored

    def _opened(self) -> int:
        if self._file is None:
            if self._set_aside:
                self.replaced = set_aside(self.path)
                self._set_aside = False
            self._file = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
        return self._file

    def _release_file(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _unlock(self) -> None:
        if self._lock is not None:
            self._lock.release()

    def _forget(self) -> None:
        self._index: dict[str, dict[str, dict[int | None, Stored]]] = {}  # by clip, settings, segment
        self._hashes: dict[tuple[str, str], Stored] = {}
        self._order: list[Stored] = []
        self._size = 0

    def _failure(self, error: OSError) -> OutputError:
        if self.look:
            return OutputError(f"{self.shown}: cannot be read: {error.strerror or error}")
        return unwritable(self.shown, error)


def set_aside(path: Path) -> Path | None:
    """Keep a file that is there as ``NAME~``; returns that, or None where there was nothing to keep."""
    if not path.is_file() or path.stat().st_size == 0:
        return None
    return path.replace(path.with_name(path.name + "~"))


def unwritable(path: Path, error: OSError, kind: str | None = None) -> OutputError:
    """What to say of a file that the system does not let us write."""
    return OutputError(f"{path}: cannot be written: {error.strerror or error}", kind=kind)


def is_at(path: Path, status: os.stat_result) -> bool:
    """Whether ``path`` still leads to the file that this is the status of."""
    try:
        return os.path.samestat(path.stat(), status)
    except OSError:
        return False


def gone(path: Path) -> OutputError:
    """What to say of a file that was taken away in the middle of a run."""
    return OutputError(
        f"{path}: was moved, replaced or deleted while the run was writing it",
        hint="put it back if it was moved, and give the same command again to go on",
        kind="gone",
    )


def parsed(line: bytes) -> Record | None:
    """The record in ``line``; None if it is none."""
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(value, dict):
        return None
    job = value.get("job")
    known = isinstance(job, dict) and isinstance(job.get("clip"), str) and isinstance(job.get("settings"), str)
    return value if known else None


def _belong(old: Stored, new: Stored) -> bool:
    """Whether ``old`` still stands beside ``new``: another segment of the same content and division."""
    return (
        old.segment is not None
        and new.segment is not None
        and (old.segments == new.segments and old.content.same(new.content) and old.segment != new.segment)
    )


def _locked(path: Path, shown: Path) -> Lock:
    try:
        return Lock(path)
    except TimeoutError:
        raise UsageError(
            f"{shown}: another run is writing it", hint="wait for it to end, or name another file"
        ) from None
    except OSError as error:
        raise OutputError(f"{shown}: cannot be locked: {error.strerror or error}") from None
