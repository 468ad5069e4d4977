"""Captions as the metadata file of kohya's sd-scripts: ``{path: {"caption": text}}``, for fine-tuning."""

from __future__ import annotations

from collections.abc import Iterable

from vidspec.escaping import json_text
from vidspec.events.record import RecordDict
from vidspec.files import encode_line
from vidspec.runs.formats.base import RunFormat, marked_caption, output_formats


@output_formats.register("kohya")
class KohyaFormat(RunFormat):
    """The trainer takes a caption's lines for alternatives, so only several answers about a clip are several lines."""

    suffix = ".json"
    lists_files = True

    def content(self, records: Iterable[RecordDict]) -> bytes:
        metadata: dict[str, dict[str, str]] = {}
        for record in records:
            if record["caption"] is None:
                continue
            clip = metadata.setdefault(record["path"], {"caption": ""})
            separator = "\n" if record.get("question") else " "
            clip["caption"] += (separator if clip["caption"] else "") + " ".join(marked_caption(record).split())
        return encode_line(json_text(metadata, indent=2) + "\n")
