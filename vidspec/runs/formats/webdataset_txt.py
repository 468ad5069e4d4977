"""Captions for WebDataset, which groups the files of a sample by the name up to the first dot."""

from __future__ import annotations

from collections.abc import Sequence

from vidspec.events.record import RecordDict
from vidspec.runs.formats.base import LineFormat, marked_caption, one_line_caption, output_formats


@output_formats.register("webdataset-txt")
class WebDatasetFormat(LineFormat):
    """One line; a clip's file joins the captions of its segments."""

    suffix = ".txt"
    holds = "text"
    clip_files = "always"
    one_clip = True
    clip_name = "{key}{suffix}"

    def line(self, record: RecordDict) -> str | None:
        return None if record["caption"] is None else one_line_caption(marked_caption(record))

    def document(self, records: Sequence[RecordDict]) -> str | None:
        lines = [text for text in map(self.line, records) if text is not None]
        return " ".join(lines) + "\n" if lines else None
