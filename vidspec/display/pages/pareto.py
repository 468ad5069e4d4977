"""Speed against another figure: a point for each method, its name where there is room, and the frontier. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from vidspec.display.pages import words

__all__ = ["Measured", "Plane", "planes"]

#: Units of the picture: its sides, and where its axes end.
WIDTH, HEIGHT = 640.0, 340.0
LEFT, RIGHT, TOP, BOTTOM = 46.0, 626.0, 14.0, 300.0
#: Of a letter, on average, and of a line; names are cut after so many letters.
LETTER, LINE, LONGEST = 6.4, 13.0, 30
#: Where a name may stand: which end of it is at the point, and how far its middle is above.
PLACES = [(end, up) for up in (0.0, -12.0, 12.0, -22.0, 22.0) for end in ("start", "end")]


class Measured(Protocol):
    """What a row of a bench says of one method."""

    @property
    def names(self) -> str: ...
    @property
    def equal(self) -> int | None: ...
    @property
    def clips(self) -> int: ...
    @property
    def kept(self) -> float | None: ...
    @property
    def accepted_by_target(self) -> float | None: ...
    @property
    def decode(self) -> tuple[float, float, float]: ...


@dataclass(frozen=True)
class Name:
    """A name beside its point, or above or below."""

    x: float
    y: float
    anchor: str
    text: str


@dataclass(frozen=True)
class Point:
    """A method; ``best`` are those that none other beats in both figures."""

    x: float
    y: float
    about: str
    best: bool
    name: Name | None


@dataclass(frozen=True)
class Plane:
    """A picture; ``frontier`` joins the best, ``across`` and ``up`` are places on the axes with their figures."""

    title: str
    meaning: str
    points: tuple[Point, ...]
    frontier: str
    across: tuple[tuple[float, str], ...]
    up: tuple[tuple[float, str], ...]


def planes(rows: Sequence[Measured], baseline: str) -> list[Plane]:
    """Speed against what remains of the target's own text, where a method changes it, and against what the draft saw.

    A picture is made where the figure differs between methods.
    """
    found = []
    for title, meaning, value, more in (
        ("Speed and text", "tokens that the target itself would have written", _own, True),
        ("Speed and what the draft was shown", "visual tokens kept", lambda row: row.kept, False),
    ):
        known = [(row, figure) for row in rows if (figure := value(row)) is not None]
        if len({figure for _, figure in known}) > 1:
            meaning = f"upward: {meaning}; to the right: decoding over {baseline}"
            found.append(_plane(title, meaning, known, more))
    return found


def _own(row: Measured) -> float | None:
    """The share of a text's tokens that the target would have written; None where nothing tells."""
    if row.accepted_by_target is not None:
        return row.accepted_by_target
    return 1.0 if row.equal is None or row.equal == row.clips else None


def _plane(title: str, meaning: str, known: Sequence[tuple[Measured, float]], more: bool) -> Plane:
    fastest = 1.1 * max(row.decode[0] for row, _ in known)
    least, most = min(figure for _, figure in known), max(figure for _, figure in known)
    low = max(0.0, least - 0.15 * (most - least))
    high = most + 0.15 * (most - least)

    def across(speed: float) -> float:
        return round(LEFT + speed / fastest * (RIGHT - LEFT), 1)

    def up(figure: float) -> float:
        return round(BOTTOM - (figure - low) / (high - low) * (BOTTOM - TOP), 1)

    figures = [(row.decode[0], figure if more else -figure) for row, figure in known]
    best = [not any(_beats(other, one) for other in figures) for one in figures]
    dots = [(across(row.decode[0]), up(figure)) for row, figure in known]
    order = sorted(range(len(known)), key=lambda at: (not best[at], -known[at][0].decode[0]))
    placed = _names([known[at][0].names for at in order], [dots[at] for at in order], dots)
    names = [placed[order.index(at)] for at in range(len(known))]
    points = tuple(
        Point(*dot, f"{row.names}: {words.ratio(row.decode[0])}, {words.share(figure)}", good, name)
        for (row, figure), dot, good, name in zip(known, dots, best, names, strict=True)
    )
    frontier = sorted((one.x, one.y) for one in points if one.best)
    return Plane(
        title,
        f"{meaning}; the best are on the right and {'above' if more else 'below'}",
        points,
        " ".join(f"{x},{y}" for x, y in frontier),
        tuple((across(one), words.ratio(one)) for one in _ticks(0.0, fastest)),
        tuple((up(one), words.share(one)) for one in _ticks(low, min(1.0, high))),
    )


def _beats(other: tuple[float, float], one: tuple[float, float]) -> bool:
    return other != one and other[0] >= one[0] and other[1] >= one[1]


def _ticks(low: float, high: float) -> Iterable[float]:
    """Round figures, three to six of them."""
    steps = (factor * 10.0**power for power in range(-4, 5) for factor in (1, 2, 5))
    step = next(one for one in steps if high - low < 6 * one)
    return [one * step for one in range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)]


def _names(
    texts: Sequence[str], dots: Sequence[tuple[float, float]], every: Sequence[tuple[float, float]]
) -> list[Name | None]:
    """Each at the first place where it is on no point and no other name; None where there is no room."""
    taken = [(x - 5, y - 5, x + 5, y + 5) for x, y in every]

    def free(box: tuple[float, float, float, float]) -> bool:
        return all(
            box[2] <= left or box[0] >= right or box[3] <= above or box[1] >= below
            for left, above, right, below in taken
        )

    found: list[Name | None] = []
    for text, (x, y) in zip(texts, dots, strict=True):
        text = text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}\N{HORIZONTAL ELLIPSIS}"
        name = None
        for end, down in PLACES:
            start = x + 8 if end == "start" else x - 8 - LETTER * len(text)
            box = (start, y + down - LINE / 2, start + LETTER * len(text), y + down + LINE / 2)
            if box[0] > LEFT and box[2] < WIDTH and box[1] > 0 and box[3] < BOTTOM and free(box):
                name = Name(x + (8 if end == "start" else -8), round(y + down + 4, 1), end, text)
                taken.append(box)
                break
        found.append(name)
    return found
