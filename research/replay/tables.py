"""Replays of papers' tables: published forward times and accepted lengths through our schedules, next to the claims.

A table is a YAML file in ``tables/``, which names its sources, assumptions and the paper's contradictions.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from statistics import mean
from typing import TYPE_CHECKING, Literal

import yaml
from pydantic import BaseModel, ConfigDict

from research import speed
from research.replay.predict import (
    Prefill,
    Times,
    even_lengths,
    geometric_lengths,
    parallel_run,
    sequential_run,
    speedup,
)
from research.replay.virtual import Pattern
from vidspec.draft_length.window import FixedGamma
from vidspec.errors import UsageError
from vidspec.registry import nearest

if TYPE_CHECKING:
    from importlib.abc import Traversable

#: Tokens simulated for a row whose table gives no output length; the longer, the less chance is left.
TOKENS = 1200
#: Tolerance between a printed figure and its value from other printed figures, rounding included.
ROUNDING = 0.015
#: Deviations beyond this are explained cell by cell.
FAR = 0.4


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class PrefillTimes(_Part):
    """Prefill times, for end-to-end rows."""

    target: float
    draft: float
    overlap: bool
    signals: float | None = None


class Models(_Part):
    """Forward times of a pair: the target's, and the draft's by name."""

    tp: float
    tq: dict[str, float]
    gamma: int | None = None
    plain_tokens_per_s: list[float] | None = None


class Method(_Part):
    """A method: its schedule, its draft time, and the meaning of its length column."""

    schedule: Literal["sequential", "parallel"]
    tq: str
    length: Literal["tau", "tokens_per_target_pass", "run_length"]
    gamma: int | None = None
    startup: int | None = 0  # 0: the window; null: as many as fit
    prefill: PrefillTimes | None = None
    assumed: str | None = None


class TableRow(_Part):
    """One method on one pair: accepted lengths and claimed speed-ups by benchmark."""

    models: str
    method: str
    lengths: list[float]
    claimed: list[float | None]
    gamma: int | None = None
    average: float | None = None
    tokens_per_s: list[float] | None = None


class Table(_Part):
    """One table of a paper."""

    paper: str
    where: str
    benchmarks: list[str]
    tokens: int | None = None
    models: dict[str, Models]
    methods: dict[str, Method]
    rows: list[TableRow]
    notes: list[str] = []


@dataclass(frozen=True)
class Prediction:
    """One cell of a table: ``predicted`` by simulation, ``formula`` by the speed model, ``claimed`` by the paper."""

    method: str
    models: str
    benchmark: str
    predicted: float
    formula: float | None
    claimed: float | None
    assumed: str | None

    @property
    def deviation(self) -> float | None:
        """predicted / claimed - 1; None without a claim."""
        return None if self.claimed is None else self.predicted / self.claimed - 1


@dataclass(frozen=True)
class Replay:
    """A replayed table: its cells and notes."""

    name: str
    paper: str
    where: str
    rows: tuple[Prediction, ...]
    notes: tuple[str, ...]


def names() -> list[str]:
    """Return the names of the tables that can be replayed, by paper and number."""
    stems = [file.name.removesuffix(".yaml") for file in folder().iterdir() if file.name.endswith(".yaml")]
    return sorted(stems)


def load(name: str) -> Table:
    """Load the table called ``name``.

    Raises:
        UsageError: there is none.
    """
    known = names()
    if name not in known:
        close = nearest(name, known)
        raise UsageError(
            f"unknown table {name!r}{f'; did you mean {close}?' if close else ';'} valid: {', '.join(known)}"
        )
    return Table.model_validate(yaml.safe_load((folder() / f"{name}.yaml").read_text(encoding="utf-8")))


def replay(name: str) -> Replay:
    """Predict every cell of the table called ``name``."""
    table = load(name)
    rows: list[Prediction] = []
    unmet: list[str] = []
    for row in table.rows:
        for i, length in enumerate(row.lengths):
            rows.append(_cell(table, row, i))
            unmet += _needed(table, row, length, rows[-1])
    return Replay(name, table.paper, table.where, tuple(rows), (*table.notes, *_disagreements(table), *unmet))


def _cell(table: Table, row: TableRow, i: int) -> Prediction:
    models, method = table.models[row.models], table.methods[row.method]
    gamma = row.gamma or method.gamma or models.gamma
    if gamma is None:
        raise ValueError(f"{row.models}, {row.method}: no gamma")
    predicted, formula = _predicted(
        models.tp, models.tq[method.tq], gamma, method, row.lengths[i], table.tokens or TOKENS
    )
    return Prediction(row.method, row.models, table.benchmarks[i], predicted, formula, row.claimed[i], method.assumed)


def _predicted(
    tp: float, tq: float, gamma: int, method: Method, length: float, tokens: int
) -> tuple[float, float | None]:
    """Return simulated and formula speed-ups. T_p does not depend on rows: the papers give one figure."""
    read = method.prefill
    prefill = Prefill() if read is None else Prefill(read.target, read.draft, read.overlap, read.signals)
    times = Times(lambda rows: tp, tq, prefill=prefill)
    startup = gamma if method.startup == 0 else method.startup
    return _simulated(times, gamma, method, length, tokens, startup), _by_formula(times, gamma, method, length)


def _by_formula(times: Times, gamma: int, method: Method, length: float) -> float | None:
    if method.prefill is not None:
        return None
    tp = times.verify(1)
    if method.schedule == "parallel":
        return speed.parallel(speed.beta_of_run_length(length), gamma, tp, tp, times.draft)
    return speed.sequential(length + (method.length == "tau"), gamma, tp, tp, times.draft)


def _simulated(times: Times, gamma: int, method: Method, length: float, tokens: int, startup: int | None) -> float:
    """Simulate a speed-up, over several texts if the output length is given and short, to average out chance."""
    whole = method.prefill is not None
    speeds: list[float] = []
    for seed in range(max(1, TOKENS // tokens)):
        if method.schedule == "parallel":
            runs = max(20, round(tokens / (length + 1)))
            pattern = Pattern.of_lengths(geometric_lengths(length, runs, seed))
            run = parallel_run(pattern, times, FixedGamma(gamma), tokens, startup)
        else:
            accepted = length - (method.length == "tokens_per_target_pass")
            run = sequential_run(Pattern.of_lengths(even_lengths(accepted)), times, gamma, tokens)
        speeds.append(speedup([run], times, end_to_end=whole) or math.nan)
    return mean(speeds)


def _needed(table: Table, row: TableRow, length: float, cell: Prediction) -> list[str]:
    """Return, for a sequential cell far from its claim, the ratio of forward times that would match it."""
    method, models = table.methods[row.method], table.models[row.models]
    if cell.claimed is None or abs(cell.deviation or 0) <= FAR or method.schedule == "parallel" or method.prefill:
        return []
    excess = (length + (method.length == "tau")) / cell.claimed - 1
    gamma = row.gamma or method.gamma or models.gamma or 0
    needs = f"needs T_p / T_q = {gamma / excess:.1f}" if excess > 0 else "cannot be reached with any T_q"
    return [
        f"{row.models}, {row.method} on {cell.benchmark}: {cell.claimed:.2f}x at the printed length {length} {needs}; "
        f"{models.tp / models.tq[method.tq]:.1f} is what was used."
    ]


def _disagreements(table: Table) -> list[str]:
    """Return printed figures that contradict others of the same row."""
    found: list[str] = []
    for row in table.rows:
        where = f"{row.models}, {row.method}"
        plain = table.models[row.models].plain_tokens_per_s
        if row.tokens_per_s and plain:
            for benchmark, rate, base, claimed in zip(
                table.benchmarks, row.tokens_per_s, plain, row.claimed, strict=True
            ):
                if claimed is not None and abs(rate / base - claimed) > ROUNDING:
                    found.append(
                        f"{where} on {benchmark}: {rate} / {base} tokens/s is {rate / base:.2f}x, "
                        f"printed is {claimed:.2f}x."
                    )
        claims = [claim for claim in row.claimed if claim is not None]
        if row.average is not None and abs(mean(claims) - row.average) > ROUNDING:
            found.append(f"{where}: the printed speed-ups average {mean(claims):.2f}x, printed is {row.average:.2f}x.")
    return found


@cache
def folder() -> Traversable:
    """Return the folder of the tables' YAML files."""
    return files("research.replay") / "tables"
