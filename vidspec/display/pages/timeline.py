"""Spans of a trace as bars, one lane per worker. Pure; draws nothing itself."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from vidspec.display import figures
from vidspec.display.pages import words
from vidspec.display.pages.page import RecordMapping
from vidspec.events.trace import Span, Trace

#: Spans shorter than this share of the whole are not drawn.
_MIN_SHARE = 1 / 8000


@dataclass(frozen=True)
class TimelineBar:
    """A span; ``left`` and ``width`` are percent of the whole, ``group`` is its colour."""

    group: str
    left: float
    width: float
    about: str


@dataclass(frozen=True)
class TimelineLane:
    """A worker's bars, and its seconds by kind, counted for the innermost span."""

    worker: str
    bars: tuple[TimelineBar, ...]
    seconds: Mapping[str, float]

    @property
    def kinds(self) -> list[tuple[str, str, str, float]]:
        """Colour, name, meaning and seconds of each kind of work, the longest first."""
        found = [(*words.KINDS.get(kind, ("other", "")), kind, spent) for kind, spent in self.seconds.items()]
        rows = [(group, kind.replace("_", " "), meaning, spent) for group, meaning, kind, spent in found]
        return sorted(rows, key=lambda row: -row[-1])


@dataclass(frozen=True)
class Timeline:
    """Lanes over ``seconds``.

    ``ticks`` are positions (percent) with labels, ``decoding`` is the start of decoding (percent), and ``undrawn``
    counts spans too short to draw, which the lanes' seconds include.
    """

    seconds: float
    lanes: tuple[TimelineLane, ...]
    ticks: tuple[tuple[float, str], ...]
    decoding: float
    undrawn: int

    @property
    def groups(self) -> list[str]:
        """Colours that occur."""
        drawn = {bar.group for lane in self.lanes for bar in lane.bars}
        order = list(dict.fromkeys([*(group for group, _ in words.KINDS.values()), "wasted"]))
        return [group for group in order if group in drawn]


def timeline(spans: Sequence[Span]) -> Timeline | None:
    """Return the timeline of one clip; None if nothing was timed."""
    end = max((span.end for span in spans), default=0.0)
    if end <= 0:
        return None
    sums = Trace(spans=list(spans)).by_worker()
    lanes, undrawn = [], 0
    for worker, seconds in sums.items():
        mine = sorted((one for one in spans if one.worker == worker), key=lambda one: (one.start, -one.end))
        drawn = [one for one in mine if one.end - one.start >= end * _MIN_SHARE]
        undrawn += len(mine) - len(drawn)
        lanes.append(TimelineLane(worker, tuple(_bar(one, end) for one in drawn), seconds))
    begun = min((one.start for one in spans if one.kind in ("draft", "verify")), default=0.0)
    return Timeline(end, tuple(lanes), _ticks(end), 100 * begun / end, undrawn)


def from_chrome(trace: RecordMapping) -> dict[str, list[list[Span]]]:
    """Return the spans in a file of ``--trace`` by path; a clip of several parts has one list per part, in order.

    Raises:
        ValueError: it is not such a file.
    """
    try:
        events = [event for event in trace["traceEvents"] if isinstance(event, Mapping)]
        named = {"process_name": {}, "thread_name": {}}  # type: dict[str, dict[tuple[int, int], str]]
        for event in events:
            if event.get("ph") == "M" and event.get("name") in named:
                thread = event.get("tid", 0) if event["name"] == "thread_name" else 0
                named[event["name"]][event["pid"], thread] = str(event["args"]["name"])
        spans: dict[int, list[Span]] = {}
        for event in events:
            if event.get("ph") == "X":
                worker = named["thread_name"].get((event["pid"], event["tid"]), str(event["tid"]))
                start, length = float(event["ts"]) / 1e6, float(event["dur"]) / 1e6
                about = tuple((str(name), int(value)) for name, value in event.get("args", {}).items())
                kind = str(event.get("cat", event["name"])).removesuffix(" (wasted)")
                spans.setdefault(event["pid"], []).append(Span(worker, kind, start, start + length, about))
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"no trace of vidspec: {error}") from None
    found: dict[str, list[list[Span]]] = {}
    for process in sorted(spans):
        found.setdefault(named["process_name"].get((process, 0), ""), []).append(spans[process])
    return found


def _bar(span: Span, end: float) -> TimelineBar:
    about = dict(span.about)
    group, meaning = words.KINDS.get(span.kind, ("other", span.kind))
    wasted = about.get("emitted") == 0
    facts = [f"{span.kind.replace('_', ' ')}: {meaning}", figures.time(span.end - span.start)]
    facts += [f"from {figures.time(span.start)}"]
    facts += [f"round {about['round']}"] if "round" in about else []
    facts += [f"{about['rows']} row{'s' if about['rows'] != 1 else ''}"] if "rows" in about else []
    facts += ["not emitted"] if wasted else []
    left, width = 100 * span.start / end, 100 * (span.end - span.start) / end
    return TimelineBar("wasted" if wasted else group, round(left, 4), round(width, 4), ", ".join(facts))


def _ticks(end: float) -> tuple[tuple[float, str], ...]:
    """Return about eight ticks at round times."""
    rough = end / 8
    power = 10 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough)
    return tuple((100 * step * at / end, figures.time(step * at) if at else "0") for at in range(int(end / step) + 1))
