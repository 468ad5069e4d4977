"""Merge records of several runs into one file: each clip once, captions preferred over failures. Captions nothing."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from vidspec.dataset.file_marks import is_mark
from vidspec.dataset.formats.base import OutputFormat
from vidspec.dataset.journal import parse_record
from vidspec.errors import UsageError
from vidspec.events.record import RecordDict
from vidspec.files import encode_line

__all__ = ["MergedRecords", "merge_records", "render_records"]


@dataclass
class MergedRecords:
    """Merged records ordered by path and time, and counts of the rest.

    ``duplicates`` were superseded, ``torn`` lines were cut off by a crash; ``failed`` records are among ``records``.
    """

    records: list[RecordDict] = field(default_factory=list)
    duplicates: int = 0
    torn: int = 0

    @property
    def data(self) -> dict[str, object]:
        """Properties of the answers in JSON, each with a schema that permits any value."""
        answers = (record.get("data") for record in self.records)
        return {name: True for answer in answers if isinstance(answer, dict) for name in answer}

    @property
    def failed(self) -> int:
        return sum(record.get("error") is not None for record in self.records)


def merge_records(paths: Iterable[Path]) -> MergedRecords:
    """Merge the records of all ``paths``; per captioning the last success wins, else the last failure.

    Raises:
        UsageError: a file cannot be read or holds anything other than records.
    """
    merged = MergedRecords()
    best: dict[tuple[str, str, int | None], RecordDict] = {}
    for path in paths:
        for record in _iter_records(path, merged):
            job = record["job"]
            key = (job["clip"], job["settings"], job.get("segment"))
            old = best.get(key)
            merged.duplicates += old is not None
            if old is None or record.get("error") is None or old.get("error") is not None:
                best[key] = record
    cut_clips = {(clip, settings) for clip, settings, segment in best if segment is not None}
    # A failure to cut a clip is void once it has been cut.
    void = {(*whole, None) for whole in cut_clips}
    merged.records = sorted((one for key, one in best.items() if key not in void), key=_sort_key)
    return merged


def render_records(records: Sequence[RecordDict], form: OutputFormat) -> bytes:
    """Return all records as the content of one file.

    Raises:
        UsageError: the format takes one clip only, or needs more than the records have.
    """
    if form.one_clip:
        if len({record["job"]["clip"] for record in records}) > 1:
            raise UsageError(f"--format {form.name}: several clips need a file each")
        return encode_line(form.document(records) or "")
    if form.measured and any("timings" not in record for record in records):
        raise UsageError(f"--format {form.name}: these records hold no measurements", hint="--format jsonl")
    return form.content(records)


def _iter_records(path: Path, merged: MergedRecords) -> Iterable[RecordDict]:
    try:
        if path.is_char_device():
            raise UsageError(f"{path}: is no regular file", hint="merge what --format jsonl or json wrote")
        with path.open("rb") as file:
            for number, text in enumerate(file, start=1):
                record = parse_record(text)
                if record is not None:
                    yield record
                elif is_mark(text):
                    continue
                elif not text.endswith(b"\n") and not _is_json(text):
                    merged.torn += 1
                else:
                    raise UsageError(
                        f"{path}, line {number}: is no record of vidspec",
                        hint="merge what --format jsonl or json wrote",
                    )
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror or error}") from None


def _is_json(text: bytes) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def _sort_key(record: RecordDict) -> tuple[str, float, float, str]:
    job = {**record, **record["job"]}
    return (record["path"], job.get("start") or 0.0, job.get("end") or float("inf"), job["settings"])
