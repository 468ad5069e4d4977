"""Rows as LaTeX tabulars, with the rules of booktabs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
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
    """Return a ``tabular`` that needs ``booktabs``; comments name the results and the methods that were left out.

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
    body = [latex_line(map(escape_latex, line)) for line in (header, *lines)]
    notes = [f"vidspec bench: {source}", *(f"left out: {name}: {why}" for name, why in left.items())]
    if any(row.noise for row in rows):
        notes.append("ns: within noise of the baseline (95% interval of a paired bootstrap over clips)")
    return tabular("lrrrrrll", notes, [body[0], r"\midrule", *body[1:]])


def tabular(columns: str, notes: Iterable[str], lines: Iterable[str]) -> str:
    """Return a ``tabular`` of these lines, between the rules of booktabs and below comments."""
    comments = (f"% {one_line(note)}" for note in notes)
    begin = rf"\begin{{tabular}}{{{columns}}}"
    return "\n".join([*comments, begin, r"\toprule", *lines, r"\bottomrule", r"\end{tabular}", ""])


def latex_line(cells: Iterable[str]) -> str:
    """Return one line of a tabular from escaped cells."""
    return " & ".join(cells) + r" \\"


def escape_latex(text: str) -> str:
    """Return a text on one line with LaTeX's signs escaped."""
    return one_line(text).translate(_ESCAPES)
