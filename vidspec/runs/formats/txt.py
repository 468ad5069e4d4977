"""Captions as text, in a file beside each clip."""

from __future__ import annotations

from collections.abc import Sequence

from vidspec.events.record import RecordDict
from vidspec.runs.formats.base import output_formats
from vidspec.runs.formats.text import TextFormat


@output_formats.register("txt")
class TextFileFormat(TextFormat):
    """The lines of :class:`TextFormat`, each caption on one; of a clip with a summary, beside it, the summary alone."""

    clip_files = "always"
    is_prose = False  # for trainers, which take a line for a caption

    def document(self, records: Sequence[RecordDict]) -> str | None:
        last = next((record for record in reversed(records) if record.get("summary") is not None), None)
        if last is None:
            return super().document(records)
        job = {key: value for key, value in (last.get("job") or {}).items() if key != "segment"}
        return super().document([{**last, "caption": last["summary"], "summary": None, "job": job}])
