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


@output_formats.register("text")
class TextFormat(LineFormat):
    """Path, tab and caption of each of several clips; a segment's times come before its caption.

    A summary follows the last segment, without times.
    """

    suffix = ".txt"
    holds = "text"
    clip_files: ClassVar[ClipFileRule] = "in_folder"
    is_prose: ClassVar[bool] = True

    def __init__(self, several: bool = False) -> None:
        self.several = several

    def line(self, record: RecordDict) -> str | None:
        part, caption, summary = segment_of(record) is not None, record["caption"], record.get("summary")
        path = f"{one_line(record['path'])}\t" if self.several else ""
        lines = []
        if caption is not None:
            times = "-".join(map(clock, time_range(record)))
            timed = f"{times}\t" if part and not record.get("question") else ""
            one = part or self.several or not self.is_prose
            marked = marked_caption(record)
            lines.append(f"{path}{timed}{one_line_caption(marked)}" if one else escape_text(marked))
        if summary is not None:
            lines.append(f"{path}{one_line_caption(marked_caption({**record, 'caption': summary}))}")
        return "\n".join(lines) if lines else None
