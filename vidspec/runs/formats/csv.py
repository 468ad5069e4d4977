"""Records as CSV: a row each, failed clips included."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence

from vidspec.escaping import cell, json_text
from vidspec.events.record import RecordDict
from vidspec.files import FileKind
from vidspec.runs.formats.base import (
    LineFormat,
    data_column,
    data_value,
    flat_record,
    output_formats,
    second_text,
    time_range,
)

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
    """Cells are guarded against formulas.

    Texts beside the caption and properties of answers in JSON have columns at the end.
    """

    suffix = ".csv"
    clip_files = "never"
    replaceable = FileKind("table of vidspec", rb"\A" + ",".join(CSV_COLUMNS[:5]).encode())

    def __init__(self, data: Mapping[str, object] | None = None, texts: Sequence[str] = ()) -> None:
        self.data, self.texts = tuple(data or ()), texts
        self.header = self._row(
            [*CSV_COLUMNS, *texts, *(self._cell(data_column(name), lines=False) for name in self.data)]
        )

    def line(self, record: RecordDict) -> str:
        start, end = time_range(record) if record["error"] is None else (None, None)
        error = record["error"] or {}
        values: dict[str, object] = {
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
        cells = [self._cell(values[column], lines=column in _PROSE) for column in CSV_COLUMNS]
        cells += [self._cell(second_text(record, name), lines=True) for name in self.texts]
        return self._row([*cells, *(self._cell(data_value(record, name), lines=True) for name in self.data)])

    def _cell(self, value: object, *, lines: bool) -> object:
        if isinstance(value, dict | list):
            value = json_text(value)
        return cell(value, lines=lines) if isinstance(value, str) else value

    def _row(self, cells: Iterable[object]) -> str:
        buffer = io.StringIO()
        # Line breaks inside a value are quoted only if they are among those of the terminator.
        csv.writer(buffer, lineterminator="\r\n").writerow(cells)
        return buffer.getvalue().removesuffix("\r\n")
