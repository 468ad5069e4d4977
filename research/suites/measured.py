"""Papers' tables from a bench's rows, with the papers' printed figures next to them. Measures nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from research.replay import tables
from research.results.rows import StudiedRow
from research.suites.rows import TABLES
from vidspec.bench.rows import turn_label
from vidspec.bench.tables import cell, spread, table

_LENGTHS = {"tau": "tau", "tokens_per_target_pass": "tokens / target pass", "run_length": "run length"}


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


def markdown(names: Sequence[str], rows: Sequence[StudiedRow], baseline: str) -> str:
    """Return one table for each paper table.

    Args:
        names: keys of :data:`~research.suites.rows.TABLES`.
        rows: of a bench, by label; missing rows are left out. In a bench of dialogues, later turns have separate
            tables, with the paper's figures of second turns.
        baseline: the label to which the bench's ratios refer.
    """
    by_label = {name: row for row in rows for name in (row.name, *row.also)}
    parts = []
    for name in names:
        turn = 0
        while turn_label(baseline, turn) in by_label:
            labels = {label for label, _ in (*TABLES[name].rows, *TABLES[name].own)}
            of_this = {label: by_label[one] for label in labels if (one := turn_label(label, turn)) in by_label}
            parts.append(_table(name, of_this, turn_label(baseline, turn), turn))
            turn += 1
    return "\n\n".join(parts)


def _table(name: str, rows: dict[str, StudiedRow], baseline: str, turn: int) -> str:
    """Return one table, without printed figures for turns that the paper does not report."""
    suite = TABLES[name]
    benchmark = (suite.benchmark, suite.second)[turn] if turn < 2 else ""
    printed = claims(name, benchmark) if benchmark else {}
    shown = [(*row, own) for own, part in ((False, suite.rows), (True, suite.own)) for row in part if row[0] in rows]
    pairs = list(dict.fromkeys(pair for _, method, own in shown for pair in printed.get((method, own), {})))
    pruned = any(rows[label].retention is not None for label, _, _ in shown)
    columns = ["the paper's row", "profile", f"same tokens as {baseline}", "length", "decode", "end to end"]
    lines = []
    for label, method, own in shown:
        of_pairs = printed.get((method, own), {})
        length = next((claim.length for claim in of_pairs.values()), suite.length)
        row = rows[label]
        lines.append(
            (
                f"{method}, Self-SD" if own else method,
                f"`{label}`",
                row.equality,
                _length(row, length),
                spread(row.decode),
                spread(row.end_to_end),
                *((_share(row.retention, row), _share(row.accepted_by_target, row)) if pruned else ()),
                *(str(of_pairs.get(pair, "-")) for pair in pairs),
            )
        )
    columns += [*(["target reads", "accepted by target (A)"] if pruned else ()), *pairs]
    behind = f", turn {turn + 1}" if turn else ""
    parts = [f"### {suite.where} (`{name}`){behind}", table(columns, lines)]
    if pruned:
        parts.append(
            "Target reads: share of the visual tokens, on average over its blocks and the clips. Accepted by target: "
            "share of the tokens that the target with its whole prompt would choose (ParallelVLM 5.1)."
        )
    if pairs:
        parts.append(
            "In the columns of the paper's pairs: its accepted length, meant as ours is, and its speed-up, "
            f"{benchmark}."
        )
    return "\n\n".join(parts)


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
