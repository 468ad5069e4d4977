"""The page of what ``vidspec bench`` measured: a table that sorts, speed-ups as bars, speed against other figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from vidspec.display.pages import words
from vidspec.display.pages.page import rendered
from vidspec.display.pages.pareto import Measured as Placed
from vidspec.display.pages.pareto import planes
from vidspec.escaping import one_line
from vidspec.files import write_whole

__all__ = ["Bars", "Measured", "bars", "write_bench"]

#: A median, the least and the greatest.
Spread = tuple[float, float, float]


class Measured(Placed, Protocol):
    """What a row of a bench says of one method."""

    @property
    def equality(self) -> str: ...
    @property
    def place(self) -> int: ...
    @property
    def tau(self) -> float | None: ...
    @property
    def tokens_per_target_pass(self) -> float | None: ...
    @property
    def acceptance_rate(self) -> float | None: ...
    @property
    def tokens_per_s(self) -> float: ...
    @property
    def model(self) -> float | None: ...
    @property
    def first(self) -> Spread: ...
    @property
    def end_to_end(self) -> Spread: ...
    @property
    def tokens(self) -> float | None: ...


@dataclass(frozen=True)
class Bar:
    """A method's speed-up; ``low``, ``middle`` and ``high`` are percent of the axis."""

    name: str
    values: Spread
    low: float
    middle: float
    high: float


@dataclass(frozen=True)
class Bars:
    """One of the three speed-ups of all methods, the fastest first; ``even`` is where 1x lies, in percent."""

    title: str
    meaning: str
    even: float
    rows: tuple[Bar, ...]


def bars(rows: Sequence[Measured], baseline: str) -> list[Bars]:
    """The three speed-ups over ``baseline``."""
    kinds = (
        ("Decoding", "tokens a second behind the first", [row.decode for row in rows]),
        ("End to end", "the whole time of a clip, of texts of equal length", [row.end_to_end for row in rows]),
        ("First token", "the time until the first token", [row.first for row in rows]),
    )
    return [
        _bars(title, f"{meaning}, over {baseline}", [row.names for row in rows], values)
        for title, meaning, values in kinds
    ]


def write_bench(
    file: Path,
    rows: Sequence[Measured],
    baseline: str,
    command: str,
    machine: Mapping[str, Any],
    *,
    demo: bool,
    left: Mapping[str, str] | None = None,
) -> None:
    """Write the page.

    Args:
        file: replaced whole.
        rows: one for each method.
        baseline: the name of what speed-ups are over.
        command: the command line that measured this.
        machine: facts about where it ran.
        demo: whether the built-in models were measured.
        left: by name why there is nothing of it.

    Raises:
        OutputError: it cannot be written.
    """
    content = rendered(
        "bench.html",
        title=f"{len(rows)} methods side by side",
        demo=words.MEASURED if demo else "",
        rows=rows,
        differ=any(row.equal != row.clips for row in rows),
        baseline=baseline,
        left=left or {},
        charts=bars(rows, baseline),
        planes=planes(rows, baseline),
        command=one_line(command),
        machine={name: one_line(str(value)) for name, value in machine.items()},
    )
    write_whole(file, content)


def _bars(title: str, meaning: str, names: Sequence[str], values: Sequence[Spread]) -> Bars:
    longest = max((high for _, _, high in values), default=1.0) or 1.0
    made = [
        Bar(name, value, *(round(100 * one / longest, 3) for one in (value[1], value[0], value[2])))
        for name, value in zip(names, values, strict=True)
    ]
    return Bars(title, meaning, round(100 / max(longest, 1.0), 3), tuple(sorted(made, key=lambda one: -one.values[0])))
