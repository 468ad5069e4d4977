"""Records as JSON without measurements, so that the same captions give the same bytes."""

from __future__ import annotations

from vidspec.events.record import RecordDict
from vidspec.runs.formats.base import output_formats
from vidspec.runs.formats.json import JsonFormat
from vidspec.runs.store.records import lean_record


@output_formats.register("jsonl")
class JsonLinesFormat(JsonFormat):
    """One object per line, also in a folder."""

    suffix = ".jsonl"
    clip_files = "never"
    measured = False

    def stored(self, record: RecordDict) -> RecordDict:
        return lean_record(record)
