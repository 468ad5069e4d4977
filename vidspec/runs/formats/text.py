"""Captions as text: of a single clip the caption alone, of several clips a line each."""

from __future__ import annotations

from typing import ClassVar

from vidspec.escaping import escape_text, one_line
from vidspec.events.record import RecordDict
from vidspec.runs.formats.base import (
    ClipFileRule,
    LineFormat,
    clock,
    marked_caption,
    one_line_caption,
    output_formats,
    segment_of,
    time_range,
)

__all__ = ["TextFormat"]


@output_formats.register("text")
class TextFormat(LineFormat):
    """Path, tab and caption of each of several clips; a segment's times come before its caption."""

    suffix = ".txt"
    clip_files: ClassVar[ClipFileRule] = "in_folder"
    is_prose = True

    def __init__(self, several: bool = False) -> None:
        self.several = several

    def line(self, record: RecordDict) -> str | None:
        if record["caption"] is None:
            return None
        part, caption = segment_of(record) is not None, marked_caption(record)
        times = "-".join(map(clock, time_range(record)))
        timed = f"{times}\t" if part and not record.get("question") else ""
        if self.several:
            return f"{one_line(record['path'])}\t{timed}{one_line_caption(caption)}"
        return f"{timed}{one_line_caption(caption)}" if part else escape_text(caption)
