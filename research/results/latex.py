"""Rows of a bench as a LaTeX tabular."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from research.results.rows import StudiedRow
from vidspec.bench.tables import cell, spread
from vidspec.escaping import one_line
from vidspec.files import FileKind

LATEX = FileKind("LaTeX of `vidspec bench`", rb"\A% vidspec bench")
_ESCAPED = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
_ESCAPED |= {sign: f"\\{sign}" for sign in "&%$#_{}"}
_ESCAPES = str.maketrans(_ESCAPED)


def latex_table(rows: Sequence[StudiedRow], source: str, left: Mapping[str, str] = MappingProxyType({})) -> str:
    """Return a ``tabular`` that needs no package; comments name the results and the methods that were left out.

    Args:
        rows: of a bench.
        source: the file of results.
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
    notes = [f"vidspec bench: {source}", *(f"left out: {name}: {why}" for name, why in left.items())]
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
