"""Plot of speed-up against quality by matplotlib: a point for each method, and the Pareto frontier."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from research.pareto.outcome import ALONE, KINDS, Method, Outcome
from research.pareto.quality import LEVEL, Estimate
from vidspec.errors import OutputError, UsageError

#: Colours that are distinct with colour blindness (Okabe and Ito), and markers for print without colours.
_LOOKS = dict(zip(KINDS, (("#0072b2", "o"), ("#d55e00", "s"), ("#009e73", "^"), ("#555555", "D")), strict=True))
#: Candidate label offsets in points, near before far.
_PLACES = [
    (step * x, step * y)
    for step in (7, 14, 22, 32, 44, 58, 74)
    for x, y in ((1, 0.4), (1, -0.8), (-1, 0.4), (-1, -0.8), (0.2, 1), (0.2, -1), (-0.6, 1), (-0.6, -1))
]


def draw(found: Outcome, file: Path) -> None:
    """Write the picture as SVG.

    Raises:
        UsageError: no method was timed.
        OutputError: the file cannot be written.
    """
    from matplotlib import rc_context
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    shown = _within_sight([one for one in found.methods if one.speed and one.worth])
    if not shown:
        raise UsageError("there is nothing to draw: no method was timed", hint="--only times adds times to a file")
    picture = Figure(figsize=(10, 7), dpi=150, layout="tight")
    FigureCanvasAgg(picture)
    axes = picture.add_subplot()
    for kind, (colour, mark) in _LOOKS.items():
        if of_kind := [one for one in shown if one.kind == kind]:
            _points(axes, of_kind, kind, colour, mark)
            if kind == ALONE:
                axes.axhline(_place(of_kind[0])[1], color=colour, linewidth=0.8, linestyle=":", zorder=1)
    best = sorted(_place(one) for one in shown if one.frontier)
    axes.plot(*zip(*best, strict=True), color="#999999", linewidth=1, zorder=1, label="Pareto frontier")
    axes.set_xlabel(f"decode speed-up over {found.baseline}: median over clips, {LEVEL:.0%} interval")
    what = "retention of facts: F1 over that of" if found.worth == "retention" else "ROUGE-L against the captions of"
    axes.set_ylabel(f"{what} {found.baseline}, {LEVEL:.0%} interval")
    axes.margins(0.12, 0.08)
    axes.grid(color="#eeeeee")
    axes.set_axisbelow(True)
    axes.legend(fontsize=8, loc="best")
    _label(picture, axes, shown)
    try:
        with rc_context({"svg.fonttype": "none", "svg.hashsalt": "vidspec"}):  # text as text, reproducible files
            picture.savefig(file, format="svg", metadata={"Creator": "vidspec", "Date": None})
    except OSError as error:
        raise OutputError(f"{file}: cannot be written: {error.strerror}") from error


def _within_sight(methods: Sequence[Method]) -> list[Method]:
    """Return the methods; a draft alone that is far faster than all others is moved to the edge and labelled."""
    others = [one.speed.decode.high for one in methods if one.speed and one.kind != ALONE]
    edge = 1.2 * max(others, default=math.inf)
    return [
        replace(
            one,
            name=f"{one.name}, {one.speed.decode.value:.1f}x \N{RIGHTWARDS ARROW}",
            speed=replace(one.speed, decode=Estimate(edge, edge, edge)),
        )
        if one.kind == ALONE and one.speed and one.speed.decode.value > edge
        else one
        for one in methods
    ]


def _place(one: Method) -> tuple[float, float]:
    if one.speed is None or one.worth is None:
        raise ValueError(f"{one.name} has no place")
    return one.speed.decode.value, one.worth.value


def _points(axes: Any, methods: Sequence[Method], kind: str, colour: str, mark: str) -> None:
    """Draw points with the intervals of both figures."""
    across = [one.speed.decode for one in methods if one.speed]
    upward = [one.worth for one in methods if one.worth]
    axes.errorbar(
        [one.value for one in across],
        [one.value for one in upward],
        xerr=[[one.value - one.low for one in across], [one.high - one.value for one in across]],
        yerr=[[one.value - one.low for one in upward], [one.high - one.value for one in upward]],
        fmt=mark,
        markersize=5,
        color=colour,
        elinewidth=0.6,
        ecolor=f"{colour}66",
        label="lossy pruning" if kind == "lossy" else kind,
    )


def _label(picture: Any, axes: Any, methods: Sequence[Method]) -> None:
    """Label the points, each at the first offset that hides neither another label nor a point."""
    from matplotlib.text import Text
    from matplotlib.transforms import Bbox

    picture.draw_without_rendering()
    renderer = picture.canvas.get_renderer()
    scale = picture.dpi / 72
    dots = [axes.transData.transform(_place(one)) for one in methods]
    taken = [Bbox.from_bounds(x - 4 * scale, y - 4 * scale, 8 * scale, 8 * scale) for x, y in dots]
    taken.append(axes.get_legend().get_window_extent(renderer))
    frame = axes.get_window_extent(renderer)
    for one in sorted(methods, key=lambda one: _place(one)[::-1], reverse=True):
        text = axes.annotate(
            one.name,
            _place(one),
            xytext=_PLACES[0],
            textcoords="offset points",
            fontsize=7,
            fontweight="bold" if one.frontier else "normal",
            color=_LOOKS[one.kind][0],
            bbox={"facecolor": "white", "alpha": 0.7, "edgecolor": "none", "pad": 0.3},
            arrowprops={"arrowstyle": "-", "color": "#bbbbbb", "linewidth": 0.5, "shrinkA": 0, "shrinkB": 2},
        )
        hidden = []
        for place in _PLACES:
            text.set_ha("left" if place[0] > 0 else "right")
            text.set_position(place)
            text.update_positions(renderer)
            box = Text.get_window_extent(text, renderer)  # without its line, which the annotation's extent includes
            inside = frame.x0 < box.x0 and box.x1 < frame.x1 and frame.y0 < box.y0 and box.y1 < frame.y1
            hidden.append((sum(box.overlaps(other) for other in taken) + 100 * (not inside), place, box))
            if not hidden[-1][0]:
                break
        _, place, box = min(hidden, key=lambda tried: tried[0])
        text.set_ha("left" if place[0] > 0 else "right")
        text.set_position(place)
        taken.append(box)
