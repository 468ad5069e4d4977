"""The page of a ``vidspec bench`` result: a sortable table, speed-ups as bars, speed against other figures."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from research.results.rows import StudiedRow
from vidspec.display import figures
from vidspec.display.pages.page import Page, section
from vidspec.escaping import one_line
from vidspec.files import write_whole

__all__ = ["BOTTOM", "LEFT", "RIGHT", "TOP", "PlanePoint", "SpeedPlane", "planes", "write_page"]

#: Note on figures measured with the built-in models.
DEMO = "Measured with the built-in models, which know drawn shapes only: the figures say nothing about real models."
#: Ends of the axes in a picture of 640 x 340, as its template draws them.
LEFT, RIGHT, TOP, BOTTOM = 46.0, 626.0, 14.0, 300.0
#: Title and meaning of the three bar charts, by the row's attribute, which holds (median, minimum, maximum).
CHARTS = {
    "decode": ("Decoding", "tokens a second after the first"),
    "end_to_end": ("End to end", "the total time of a clip, at equal text length"),
    "first": ("First token", "the time until the first token"),
}


@dataclass(frozen=True)
class PlanePoint:
    """A method in a picture; ``best`` if no other method beats it in both figures."""

    x: float
    y: float
    name: str
    about: str
    best: bool


@dataclass(frozen=True)
class SpeedPlane:
    """Decoding speed against another figure.

    ``frontier`` joins the best points; ``across`` and ``up`` are ticks, each a position with its label.
    """

    title: str
    meaning: str
    points: tuple[PlanePoint, ...]
    frontier: str
    across: tuple[tuple[float, str], ...]
    up: tuple[tuple[float, str], ...]


def planes(rows: Sequence[StudiedRow], baseline: str) -> list[SpeedPlane]:
    """Return pictures of decoding speed against the share of the target's own tokens, and against kept visual tokens.

    A picture is drawn only if its figure differs between methods.
    """
    found = []
    for title, meaning, value, more in (
        ("Speed and text", "tokens that the target itself would have written", _own_token_share, True),
        ("Speed and visual tokens", "visual tokens that the draft saw", lambda row: row.kept, False),
    ):
        known = [(row, figure) for row in rows if (figure := value(row)) is not None]
        if len({figure for _, figure in known}) > 1:
            meaning = f"vertical: {meaning}; horizontal: decoding speed over {baseline}"
            found.append(_speed_plane(title, meaning, known, more))
    return found


def write_page(
    file: Path,
    rows: Sequence[StudiedRow],
    source: str,
    machine: Mapping[str, object],
    *,
    demo: bool,
    left: Mapping[str, str] | None = None,
) -> None:
    """Write the page.

    Args:
        file: replaced whole.
        rows: one per method, the baseline first.
        source: the file of results.
        machine: facts about the machine, and settings.
        demo: the built-in models were measured.
        left: reasons for missing methods, by name.

    Raises:
        OutputError: it cannot be written.
    """
    content = section(
        Path(__file__).with_name("page.html"),
        rows=rows,
        differ=any(row.equal != row.clips for row in rows),
        baseline=rows[0].name,
        left=left or {},
        charts=CHARTS,
        planes=planes(rows, rows[0].name),
        source=one_line(source),
        machine={name: one_line(str(value)) for name, value in machine.items()},
    )
    page = Page(f"{len(rows)} methods side by side", [content], demo=DEMO if demo else "")
    write_whole(file, page.render())


def _own_token_share(row: StudiedRow) -> float | None:
    """Return the share of a text's tokens that the target would have written; None if unknown."""
    if row.accepted_by_target is not None:
        return row.accepted_by_target
    return 1.0 if row.equal is None or row.equal == row.clips else None


def _speed_plane(title: str, meaning: str, known: Sequence[tuple[StudiedRow, float]], more: bool) -> SpeedPlane:
    fastest = 1.1 * max(row.decode[0] for row, _ in known)
    least, most = min(figure for _, figure in known), max(figure for _, figure in known)
    low, high = max(0.0, least - 0.15 * (most - least)), most + 0.15 * (most - least)

    def across(speed: float) -> float:
        return round(LEFT + speed / fastest * (RIGHT - LEFT), 1)

    def up(figure: float) -> float:
        return round(BOTTOM - (figure - low) / (high - low) * (BOTTOM - TOP), 1)

    pairs = [(row.decode[0], figure if more else -figure) for row, figure in known]
    points = tuple(
        PlanePoint(
            across(row.decode[0]),
            up(figure),
            row.names,
            f"{row.names}: {figures.ratio(row.decode[0])}, {figures.share(figure)}",
            not any(other != one and other[0] >= one[0] and other[1] >= one[1] for other in pairs),
        )
        for (row, figure), one in zip(known, pairs, strict=True)
    )
    return SpeedPlane(
        title,
        f"{meaning}; the best are on the right and {'above' if more else 'below'}",
        points,
        " ".join(f"{x},{y}" for x, y in sorted((one.x, one.y) for one in points if one.best)),
        _ticks(0.0, fastest, across, figures.ratio),
        _ticks(low, min(1.0, high), up, figures.share),
    )


def _ticks(
    low: float, high: float, place: Callable[[float], float], label: Callable[[float], str]
) -> tuple[tuple[float, str], ...]:
    """Return three to six ticks at round figures."""
    steps = (factor * 10.0**power for power in range(-4, 5) for factor in (1, 2, 5))
    step = next(one for one in steps if high - low < 6 * one)
    ends = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return tuple((place(at * step), label(at * step)) for at in range(ends[0], ends[1] + 1))
