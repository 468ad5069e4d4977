"""Rows of a bench as CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence

from vidspec.bench.rows import BenchRow
from vidspec.escaping import cell as csv_cell
from vidspec.files import FileKind

__all__ = ["CSV", "csv_table"]

CSV = FileKind("CSV of `vidspec bench`", rb"\Amethod,same_tokens,clips,")

#: Columns of the CSV that hold a field of a row as it is.
FIELDS = (
    "tau",
    "tokens_per_target_pass",
    "run_length",
    "acceptance_rate",
    "kept",
    "tokens_per_s",
    "tokens",
    "retention",
)
#: Speed-ups; each is three columns.
SPREADS = ("first", "decode", "end_to_end")


def csv_table(rows: Sequence[BenchRow]) -> str:
    """Return one line per row; speed-ups over the baseline with minimum and maximum.

    Cells without a value are empty. ``same_tokens`` counts clips.
    """
    header = ["method", "same_tokens", "clips", *FIELDS]
    header += [column for name in SPREADS for column in (name, f"{name}_min", f"{name}_max")]
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(header)
    for row in rows:
        speeds = [value for name in SPREADS for value in getattr(row, name)]
        fields = [getattr(row, name) for name in FIELDS]
        writer.writerow([csv_cell(row.names, lines=False), row.equal, row.clips, *fields, *speeds])
    return out.getvalue()
