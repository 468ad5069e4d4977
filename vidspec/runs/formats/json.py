"""Records as JSON with every measurement: an object per line, or an indented file per clip."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from vidspec.escaping import json_text
from vidspec.events.record import RecordDict
from vidspec.files import FileKind
from vidspec.runs.formats.base import ClipFileRule, LineFormat, has_caption, output_formats, segment_of


@output_formats.register("json")
class JsonFormat(LineFormat):
    """One object per record, failed clips included."""

    suffix = ".json"
    clip_files: ClassVar[ClipFileRule] = "in_folder"
    is_journal = True
    measured = True
    replaceable = FileKind("file of records of vidspec", rb'\A\{"path": [^\n]*"job": \{"clip": "')

    def line(self, record: RecordDict) -> str:
        return json_text(self.stored(record))

    def document(self, records: Sequence[RecordDict]) -> str | None:
        if not has_caption(records):
            return None
        return json_text(records[0] if segment_of(records[0]) is None else list(records), indent=1) + "\n"
