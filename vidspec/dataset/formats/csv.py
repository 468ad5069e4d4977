"""Records as CSV: a row each, failed clips included."""

from __future__ import annotations

import csv
import io

from vidspec.dataset.formats.base import LineFormat, flat_record, output_formats, time_range
from vidspec.escaping import cell
from vidspec.events.record import RecordDict
from vidspec.files import FileKind

__all__ = ["CSV_COLUMNS", "CsvFormat"]

CSV_COLUMNS = (
    "path",
    "id",
    "start",
    "end",
    "caption",
    "profile",
    "target",
    "draft",
    "lossless",
    "demo",
    "tokens",
    "ended",
    "error_stage",
    "error_kind",
    "error_message",
    "settings",
    "prompt",
)
#: Columns whose values may have several lines; names, messages and paths have one.
_PROSE = ("caption", "prompt")


@output_formats.register("csv")
class CsvFormat(LineFormat):
    """Cells are guarded against formulas unless ``raw_csv``."""

    suffix = ".csv"
    clip_files = "never"
    header = ",".join(CSV_COLUMNS)
    replaceable = FileKind("table of vidspec", rb"\A" + ",".join(CSV_COLUMNS[:5]).encode())

    def __init__(self, raw_csv: bool = False) -> None:
        self.raw_csv = raw_csv

    def line(self, record: RecordDict) -> str:
        start, end = time_range(record) if record["error"] is None else (None, None)
        error = record["error"] or {}
        values = {
            "path": record["path"],
            "id": flat_record(record).get("id"),
            "start": start,
            "end": end,
            "caption": record["caption"],
            "profile": record["profile"],
            "target": record["models"].get("target"),
            "draft": record["models"].get("draft"),
            "lossless": record["lossless"],
            "demo": record.get("demo"),
            "tokens": len(record["token_ids"]) if record["caption"] is not None else None,
            "ended": record.get("ended"),
            "settings": (record.get("job") or {}).get("settings"),
            "prompt": flat_record(record).get("prompt"),
            **{f"error_{key}": error.get(key) for key in ("stage", "kind", "message")},
        }
        buffer = io.StringIO()
        # Line breaks inside a value are quoted only if they are among those of the terminator.
        csv.writer(buffer, lineterminator="\r\n").writerow(
            cell(value, raw=self.raw_csv, lines=column in _PROSE) if isinstance(value := values[column], str) else value
            for column in CSV_COLUMNS
        )
        return buffer.getvalue().removesuffix("\r\n")
