"""Papers' tables from a bench's rows, with the papers' printed figures next to them. Measures nothing."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from io import StringIO
from typing import NamedTuple

from research.replay import tables
from research.results.latex import escape_latex, latex_line, tabular
from research.results.rows import StudiedRow
from research.suites.rows import TABLES
from vidspec.bench.rows import turn_label
from vidspec.bench.tables import cell, spread, table
from vidspec.files import FileKind

_LENGTHS = {"tau": "tau", "tokens_per_target_pass": "tokens / target pass", "run_length": "run length"}
_SYMBOLS = {**_LENGTHS, "tau": r"$\tau$"}
#: The CSV of :func:`csv_text`.
CSV = FileKind("CSV of `research.suites`", rb"\Atable,method,profile,")


class Claim(NamedTuple):
    """A paper's figures for a row on one pair: the accepted length, its meaning, and the speed-up if printed.

    ``length`` is a field of :class:`~vidspec.bench.rows.BenchRow`.
    """

    accepted: float
    length: str
    speedup: float | None

    def __str__(self) -> str:
        return f"{self.accepted:g}" + (f", {self.speedup:.2f}x" if self.speedup is not None else "")


def claims(name: str, benchmark: str = "") -> dict[tuple[str, bool], dict[str, Claim]]:
    """Return the printed figures of a table on a benchmark.

    Args:
        name: a key of :data:`~research.suites.rows.TABLES`.
        benchmark: one of its columns; the default one if empty.

    Returns:
        claims by the paper's pair of models, by the row's name and whether its target drafts for itself; empty where
        ``research/replay/tables`` has no file of this table.
    """
    suite = TABLES[name]
    if suite.claims is None:
        return {}
    printed = tables.load(suite.claims)
    column = printed.benchmarks.index(benchmark or suite.benchmark)
    found: dict[tuple[str, bool], dict[str, Claim]] = {}
    for row in printed.rows:
        if suite.pairs is not None and row.models not in suite.pairs:
            continue
        claim = Claim(row.lengths[column], printed.methods[row.method].length, row.claimed[column])
        found.setdefault((row.method, _of_itself(row.models)), {})[row.models] = claim
    return found


class PaperRow(NamedTuple):
    """A row of a paper's table.

    Attributes:
        method: the paper's name of it.
        label: ours.
        own: True if its target drafts for itself.
        row: what was measured.
        length: the meaning of its accepted length, a field of :class:`~vidspec.bench.rows.BenchRow`.
        printed: the paper's figures, by pair.
    """

    method: str
    label: str
    own: bool
    row: StudiedRow
    length: str
    printed: Mapping[str, Claim]


class PaperTable(NamedTuple):
    """A paper's table with our rows, in the paper's order.

    Attributes:
        name: its key in :data:`~research.suites.rows.TABLES`.
        where: paper and number.
        behind: the turn if it is not the first, as it follows a title.
        benchmark: the paper's benchmark whose figures are shown; empty for turns that the paper does not report.
        baseline: the label to which ratios refer.
        rows: those that were measured.
    """

    name: str
    where: str
    behind: str
    benchmark: str
    baseline: str
    rows: tuple[PaperRow, ...]

    @property
    def pairs(self) -> list[str]:
        """The paper's pairs of models with a printed figure."""
        return list(dict.fromkeys(pair for one in self.rows for pair in one.printed))

    @property
    def is_pruned(self) -> bool:
        """True if the target of a row reads a part of the visual tokens."""
        return any(one.row.retention is not None for one in self.rows)


def paper_tables(names: Sequence[str], rows: Sequence[StudiedRow], baseline: str) -> list[PaperTable]:
    """Return the tables of a bench.

    Args:
        names: keys of :data:`~research.suites.rows.TABLES`.
        rows: of a bench, by label; missing rows are left out. In a bench of dialogues, later turns have separate
            tables, with the paper's figures of second turns.
        baseline: the label to which the bench's ratios refer.
    """
    by_label = {name: row for row in rows for name in (row.name, *row.also)}
    found = []
    for name in names:
        turn = 0
        while turn_label(baseline, turn) in by_label:
            labels = {label for label, _ in (*TABLES[name].rows, *TABLES[name].own)}
            of_this = {label: by_label[one] for label in labels if (one := turn_label(label, turn)) in by_label}
            found.append(_paper_table(name, of_this, turn_label(baseline, turn), turn))
            turn += 1
    return found


def _paper_table(name: str, rows: Mapping[str, StudiedRow], baseline: str, turn: int) -> PaperTable:
    suite = TABLES[name]
    benchmark = (suite.benchmark, suite.second)[turn] if turn < 2 else ""
    printed = claims(name, benchmark) if benchmark else {}
    shown = [(*row, own) for own, part in ((False, suite.rows), (True, suite.own)) for row in part if row[0] in rows]
    found = []
    for label, method, own in shown:
        of_pairs = printed.get((method, own), {})
        length = next((claim.length for claim in of_pairs.values()), suite.length)
        found.append(PaperRow(method, label, own, rows[label], length, of_pairs))
    return PaperTable(name, suite.where, f", turn {turn + 1}" if turn else "", benchmark, baseline, tuple(found))


def markdown(one: PaperTable) -> str:
    """Return a table for the terminal and for pages, with our range over clips."""
    pairs, pruned = one.pairs, one.is_pruned
    columns = ["the paper's row", "profile", f"same tokens as {one.baseline}", "length", "decode", "end to end"]
    columns += [*(["target reads", "accepted by target (A)"] if pruned else ()), *pairs]
    lines = [
        (
            f"{line.method}, Self-SD" if line.own else line.method,
            f"`{line.label}`",
            line.row.equality,
            _length(line.row, line.length),
            spread(line.row.decode),
            spread(line.row.end_to_end),
            *((_share(line.row.retention, line.row), _share(line.row.accepted_by_target, line.row)) if pruned else ()),
            *(str(line.printed.get(pair, "-")) for pair in pairs),
        )
        for line in one.rows
    ]
    parts = [f"### {one.where} (`{one.name}`){one.behind}", table(columns, lines)]
    if pruned:
        parts.append(
            "Target reads: share of the visual tokens, on average over its blocks and the clips. Accepted by target: "
            "share of the tokens that the target with its whole prompt would choose (ParallelVLM 5.1)."
        )
    if pairs:
        parts.append(
            "In the columns of the paper's pairs: its accepted length, meant as ours is, and its speed-up, "
            f"{one.benchmark}."
        )
    return "\n\n".join(parts)


def latex(one: PaperTable) -> str:
    """Return a table as a paper prints it: its rows, and accepted length and speed-up of each pair; ours come first."""
    pairs, pruned = one.pairs, one.is_pruned
    meanings = {line.length for line in one.rows}
    length = _SYMBOLS[meanings.pop()] if len(meanings) == 1 else "accepted length"
    more = ["target reads", "accepted by target"] if pruned else []
    groups = [("measured", 2 + len(more)), *((pair, 2) for pair in pairs)]
    heads, rules, at = [""], list[str](), 2
    for name, width in groups:
        heads.append(rf"\multicolumn{{{width}}}{{c}}{{{escape_latex(name)}}}")
        rules.append(rf"\cmidrule(lr){{{at}-{at + width - 1}}}")
        at += width
    names = ["method", length, "speed-up", *more, *([length, "speed-up"] * len(pairs))]
    body = {False: list[str](), True: list[str]()}
    for line in one.rows:
        shares = (line.row.retention, line.row.accepted_by_target) if pruned else ()
        printed = [line.printed.get(pair) for pair in pairs]
        cells = [escape_latex(line.method), _or_dash(getattr(line.row, line.length), ".2f")]
        cells += [_times(line.row.decode[0]), *(escape_latex(_share(value, line.row)) for value in shares)]
        for claim in printed:
            cells += ["--", "--"] if claim is None else [f"{claim.accepted:.2f}", _times(claim.speedup)]
        body[line.own].append(latex_line(cells))
    own = [r"\midrule", latex_line([rf"\multicolumn{{{at - 1}}}{{l}}{{Self-SD}}"]), *body[True]] if body[True] else []
    notes = [f"vidspec bench: {one.where} ({one.name}){one.behind}", *([f"printed: {one.benchmark}"] if pairs else ())]
    head = [latex_line(heads), " ".join(rules), latex_line(names), r"\midrule"]
    return tabular("l" + "r" * (at - 2), notes, [*head, *body[False], *own])


def csv_text(tables: Sequence[PaperTable]) -> str:
    """Return the rows of several tables as CSV: a line each, with two columns for each of the papers' pairs."""
    rows = []
    for one in tables:
        for line in one.rows:
            cells: dict[str, object] = {
                "table": one.where + one.behind,
                "method": f"{line.method}, Self-SD" if line.own else line.method,
                "profile": line.label,
                f"same tokens as {tables[0].baseline}": line.row.equality,
                "length": _LENGTHS[line.length],
                "accepted length": getattr(line.row, line.length),
                "speed-up": line.row.decode[0],
                "end to end": line.row.end_to_end[0],
                "target reads": line.row.retention,
                "accepted by target": line.row.accepted_by_target,
            }
            for pair, claim in line.printed.items():
                cells |= {f"{pair}: accepted length": claim.accepted, f"{pair}: speed-up": claim.speedup}
            rows.append(cells)
    out = StringIO(newline="")
    writer = csv.DictWriter(out, list(dict.fromkeys(key for row in rows for key in row)), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue()


def _times(value: float | None) -> str:
    return "--" if value is None else rf"{value:.2f}$\times$"


def _or_dash(value: float | None, form: str) -> str:
    return "--" if value is None else f"{value:{form}}"


def _length(row: StudiedRow, field: str) -> str:
    value = getattr(row, field)
    return "-" if value is None else f"{_LENGTHS[field]} {value:.2f}"


def _share(value: float | None, row: StudiedRow) -> str:
    """Return the share of identical captions; all for a row whose text is plain decoding's."""
    same = row.retention is None and row.accepted_by_target is None and row.equal == row.clips
    return "100%" if same else cell(value, ".1%")


def _of_itself(models: str) -> bool:
    """Return True if a pair in the papers' notation, ``Qwen2.5-VL 7B/7B``, is one model."""
    draft, _, target = models.rpartition(" ")[2].partition("/")
    return draft == target
