"""Merge records of several runs: each clip once, captions preferred over failures. Captions nothing.

Files are read twice: for the key and the place of each record, and for the records that count, in their order. So a
million records take some hundred bytes each. Records of files that have no lines are copied, as lines, to a temporary
file.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from io import SEEK_END
from itertools import chain
from pathlib import Path
from sys import intern
from tempfile import TemporaryFile
from typing import BinaryIO, NamedTuple, cast, overload

from vidspec.errors import UsageError, option
from vidspec.escaping import one_line
from vidspec.events.record import RecordDict, checking_records
from vidspec.files import encode_line
from vidspec.runs.formats.base import SECOND_TEXTS, OutputFormat, PartFormat, make_format
from vidspec.runs.store.file_states import FileMarks, is_mark
from vidspec.runs.store.journal import parse_record
from vidspec.runs.store.run_lines import is_run_line

__all__ = ["MergedRecords", "is_part", "merge_records", "read_document", "render_records"]

_HINT = "name what --format jsonl, json, parquet or webdataset wrote"
#: Formats of files that hold the records of a shard or a run as a whole, by suffix.
_PARTS = {".parquet": "parquet", ".tar": "webdataset"}
#: Files that are open at a time.
_MAX_OPEN = 64
#: Source of records in the temporary file.
_COPY = -1
#: Keys of a record of any version.
_KEYS = ("path", "caption", "token_ids", "error")


class _Place(NamedTuple):
    """Place of a record, in the order of the output.

    ``at`` and ``length`` are bytes of a line of the file ``source``, or of the copy if that is :data:`_COPY`.
    """

    path: str
    start: float
    end: float
    settings: str
    source: int
    at: int
    length: int
    failed: bool


@dataclass
class MergedRecords(Sequence[RecordDict]):
    """Merged records ordered by path and time, read from their files as they are needed; and counts of the rest.

    ``duplicates`` were superseded, ``torn`` lines were cut off by a crash. ``data`` names the properties of answers in
    JSON, each with a schema that permits any value, ``texts`` those of ``SECOND_TEXTS`` that a record has; ``measured``
    is True if all records have measurements.
    """

    sources: list[Path] = field(default_factory=list)
    places: list[_Place] = field(default_factory=list)
    duplicates: int = 0
    torn: int = 0
    data: dict[str, object] = field(default_factory=dict)
    texts: set[str] = field(default_factory=set)
    measured: bool = True
    copy: BinaryIO = field(default_factory=lambda: cast("BinaryIO", TemporaryFile()))  # noqa: SIM115 (closed with it)

    @property
    def failed(self) -> int:
        return sum(place.failed for place in self.places)

    def __len__(self) -> int:
        return len(self.places)

    @overload
    def __getitem__(self, index: int) -> RecordDict: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[RecordDict]: ...
    def __getitem__(self, index: int | slice) -> RecordDict | Sequence[RecordDict]:
        if isinstance(index, slice):
            return [*self._read(self.places[index])]
        return next(self._read([self.places[index]]))

    def __iter__(self) -> Iterator[RecordDict]:
        return self._read(self.places)

    def listed(self) -> Iterator[RecordDict]:
        """Yield the records for a list of files: of a film that ``--cut`` cut, the segments whose videos are there."""
        from vidspec.runs.segment_files import SegmentVideos

        videos = SegmentVideos((path.parent, mark) for path in self.sources for mark in FileMarks.read(path))
        for record in self:
            if not videos.was_cut(record):
                yield record
            elif (clip := videos.clip(record)) is not None:
                yield clip

    def _read(self, places: Iterable[_Place]) -> Iterator[RecordDict]:
        opened: dict[int, BinaryIO] = {}
        try:
            for place in places:
                path = self.sources[place.source]
                if place.source == _COPY:
                    file = self.copy
                elif (found := opened.get(place.source)) is not None:
                    file = found
                else:
                    if len(opened) >= _MAX_OPEN:
                        opened.pop(next(iter(opened))).close()
                    file = opened[place.source] = path.open("rb")
                file.seek(place.at)
                record = parse_record(file.read(place.length))
                if record is None:
                    raise UsageError(f"{path}: was changed while it was read", hint="merge it when its run has ended")
                yield record
        except OSError as error:
            raise UsageError(f"{path}: cannot be read: {error.strerror or error}") from None
        finally:
            for file in opened.values():
                file.close()


def merge_records(paths: Iterable[Path], *, one_each: bool = False) -> MergedRecords:
    """Merge the records of all ``paths``; per captioning the last success wins, else the last failure.

    Args:
        paths: files of records.
        one_each: of a clip that was captioned in several ways, take the last one.

    Raises:
        UsageError: a file cannot be read or holds anything other than records.
    """
    merged = MergedRecords()
    best: dict[tuple[str, str, int | None], _Place] = {}
    for path in paths:
        merged.sources.append(path)
        for source, at, length, record in _iter_records(path, merged):
            key, place = _index(path, record, source, at, length)
            old = best.get(key)
            merged.duplicates += old is not None
            if old is None or not place.failed or old.failed:
                best[key] = place
                merged.measured &= "timings" in record
                merged.texts.update(key for key in SECOND_TEXTS if record.get(key) is not None)
                merged.data |= dict.fromkeys(answer, True) if isinstance(answer := record.get("data"), dict) else {}
    cut_clips = {(clip, settings) for clip, settings, segment in best if segment is not None}
    # A failure to cut a clip is void once it has been cut.
    void: set[tuple[str, str, int | None]] = {(*whole, None) for whole in cut_clips}
    if one_each:
        latest = _latest_settings(best)
        void |= {key for key in best if key[1] != latest[key[0]]}
    merged.places = sorted((one for key, one in best.items() if key not in void), key=lambda place: place[:4])
    return merged


def _latest_settings(places: Mapping[tuple[str, str, int | None], _Place]) -> dict[str, str]:
    """Return the settings of the last success of each clip, else of its last failure, by their first records."""
    failures = dict.fromkeys(key[:2] for key, place in places.items() if place.failed)
    successes = dict.fromkeys(key[:2] for key, place in places.items() if not place.failed)
    return dict(chain(failures, successes))


def render_records(records: MergedRecords, form: OutputFormat, *, measured: bool = True) -> Iterator[bytes]:
    """Yield the content of one file of all records, piece by piece if the format has lines.

    Args:
        records: the records.
        form: format of the file.
        measured: all of them have measurements.

    Raises:
        UsageError: the format takes one clip only, or needs more than the records have.
    """
    with checking_records("merge"):
        if form.one_clip:
            if len({record["job"]["clip"] for record in records}) > 1:
                raise UsageError(f"{option('format', form.name)}: several clips need a file each")
            yield encode_line(form.document(records) or "")
        elif form.measured and not measured:
            raise UsageError(
                f"{option('format', form.name)}: these records hold no measurements", hint=option("format", "jsonl")
            )
        elif form.update == "append":
            for line in chain((form.header,), map(form.line, records)):
                if line is not None:
                    yield encode_line(f"{line}\n")
        else:
            yield form.content(records.listed() if form.lists_files else records)


def is_part(path: Path) -> bool:
    """Return True if a file is one for a shard or a run, as ``--format parquet`` or ``webdataset`` writes it."""
    if path.suffix not in _PARTS or not path.is_file():
        return False
    with path.open("rb") as file:
        return _part_format(path).read_summary(file) is not None


def read_document(path: Path) -> list[RecordDict] | None:
    """Return the records of one clip's file, as ``--output-dir --format json`` writes it; None if it is none."""
    if path.suffix != ".json" or not path.is_file():
        return None
    try:
        content = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return None
    records = content if isinstance(content, list) else [content]
    return records if records and all(isinstance(one, dict) and {*_KEYS} <= one.keys() for one in records) else None


def _part_format(path: Path) -> PartFormat:
    return cast("PartFormat", make_format(_PARTS[path.suffix]))


def _iter_records(path: Path, merged: MergedRecords) -> Iterator[tuple[int, int, int, RecordDict]]:
    """Yield source, place and length of each record, as :class:`_Place` has them, and the record."""
    try:
        if path.is_char_device():
            raise UsageError(f"{path}: is not a regular file", hint=_HINT)
        if path.suffix in _PARTS:
            if not is_part(path):
                raise UsageError(f"{path}: holds no records of vidspec", hint=_HINT)
            with path.open("rb") as file:
                yield from _copied(_part_format(path).read_records(file), merged.copy)
            return
        at = 0
        with path.open("rb") as file:
            for number, text in enumerate(file, start=1):
                record = parse_record(text)
                if record is not None:
                    yield len(merged.sources) - 1, at, len(text), record
                elif is_mark(text) or is_run_line(text):
                    pass
                elif not text.endswith(b"\n") and not _is_json(text):
                    merged.torn += 1
                elif number == 1 and (records := read_document(path)) is not None:
                    yield from _copied(records, merged.copy)
                    return
                else:
                    raise UsageError(f"{path}, line {number}: is not a record of vidspec", hint=_HINT)
                at += len(text)
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror or error}") from None


def _copied(records: Iterable[RecordDict], copy: BinaryIO) -> Iterator[tuple[int, int, int, RecordDict]]:
    """Append records to the copy as lines."""
    for record in records:
        text = encode_line(json.dumps(record) + "\n")
        yield _COPY, copy.seek(0, SEEK_END), copy.write(text), record


def _is_json(text: bytes) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def _index(
    source: Path, record: RecordDict, number: int, at: int, length: int
) -> tuple[tuple[str, str, int | None], _Place]:
    """Return the key of a captioning and its place.

    Raises:
        UsageError: the record has another path, time or segment than a record can have.
    """
    job = {} if record.get("job") is None else record["job"]
    if not isinstance(job, dict):
        raise UsageError(f"{source}: a record's job is not an object", hint=_HINT)
    job = {**record, **job}
    path, start, end, segment = record.get("path"), job.get("start"), job.get("end"), job.get("segment")
    if not (isinstance(path, str) and isinstance(start, int | float | None) and isinstance(end, int | float | None)):
        raise UsageError(f"{source}: a record has no path, or another start or end than seconds", hint=_HINT)
    clip, settings, failed = job.get("clip", path), job.get("settings", ""), record.get("error") is not None
    if not (isinstance(clip, str) and isinstance(settings, str) and isinstance(segment, int | None)):
        message = f"{source}: the record of {one_line(path)} has another clip, settings or segment than any"
        raise UsageError(message, hint=_HINT)
    settings = intern(settings)
    place = _Place(path, start or 0.0, float("inf") if end is None else end, settings, number, at, length, failed)
    return (clip, settings, segment), place
