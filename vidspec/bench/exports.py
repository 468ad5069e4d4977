"""Rows of a bench as CSV and LaTeX."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from types import MappingProxyType

from vidspec.bench.rows import BenchRow
from vidspec.bench.tables import cell, spread
from vidspec.escaping import cell as csv_cell
from vidspec.escaping import one_line
from vidspec.files import FileKind

__all__ = ["CSV", "LATEX", "csv_table", "latex_table"]

CSV = FileKind("CSV of `vidspec bench`", rb"\Amethod,same_tokens,clips,")
LATEX = FileKind("LaTeX of `vidspec bench`", rb"\A% vidspec bench")

#: Columns of the CSV that hold a field of a row as it is.
FIELDS = (
    "tau",
    "tokens_per_target_pass",
    "run_length",
    "acceptance_rate",
    "kept",
    "tokens_per_s",
    "place",
    "model",
    "tokens",
    "retention",
    "accepted_by_target",
)
#: Speed-ups; each is three columns and the verdict.
SPREADS = ("first", "decode", "end_to_end")
_ESCAPED = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
_ESCAPED |= {sign: f"\\{sign}" for sign in "&%$#_{}"}
_ESCAPES = str.maketrans(_ESCAPED)


def csv_table(rows: Sequence[BenchRow]) -> str:
    """Return one line per row; speed-ups over the baseline with minimum, maximum, and if they exceed noise.

    Cells without a value are empty. ``same_tokens`` counts clips.
    """
    header = ["method", "same_tokens", "clips", *FIELDS]
    header += [column for name in SPREADS for column in (name, f"{name}_min", f"{name}_max", f"{name}_significant")]
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(header)
    for row in rows:
        speeds = [
            value
            for name in SPREADS
            for value in (*getattr(row, name), None if row.noise is None else name not in row.noise)
        ]
        fields = [getattr(row, name) for name in FIELDS]
        writer.writerow([csv_cell(row.names, lines=False), row.equal, row.clips, *fields, *speeds])
    return out.getvalue()


def latex_table(rows: Sequence[BenchRow], command: str, left: Mapping[str, str] = MappingProxyType({})) -> str:
    """Return a ``tabular`` that needs no package; comments name the command and the methods that were left out.

    Args:
        rows: as :func:`~vidspec.bench.rows.bench_rows` returns them.
        command: the command line that produced them.
        left: reasons for missing methods, by name.
    """
    header = ("method", "same tokens", "tau", "acceptance", "visual tokens kept", "tokens/s", "decode", "end to end")
    lines = [
        (
            row.names,
            row.equality,
            cell(row.tau),
            cell(row.acceptance_rate, ".0%"),
            cell(row.kept, ".0%"),
            cell(row.tokens_per_s, ".0f"),
            spread(row.decode) + row.mark("decode"),
            spread(row.end_to_end) + row.mark("end_to_end"),
        )
        for row in rows
    ]
    body = [" & ".join(one_line(text).translate(_ESCAPES) for text in line) + r" \\" for line in (header, *lines)]
    notes = [f"vidspec bench: {command}", *(f"left out: {name}: {why}" for name, why in left.items())]
    if any(row.noise for row in rows):
        notes.append("ns: within noise of the baseline (95% interval of a paired bootstrap over clips)")
    return "\n".join(
        [
            *(f"% {one_line(note)}" for note in notes),
            r"\begin{tabular}{lrrrrrll}",
            r"\hline",
            body[0],
            r"\hline",
            *body[1:],
            r"\hline",
            r"\end{tabular}",
            "",
        ]
    )
