"""Where the time of one clip went: every second of the wall clock given to one kind of work. Pure: spans come in."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from vidspec.events.trace import KINDS, Span

__all__ = ["OTHER", "Breakdown", "Piece", "breakdown", "innermost"]

#: What no span covers.
OTHER = "other"
_WAIT = "wait"


@dataclass(frozen=True, slots=True)
class Piece:
    """A stretch of one worker's time in which one kind of work was the innermost, in seconds."""

    start: float
    end: float
    kind: str


@dataclass(frozen=True)
class Breakdown:
    """The wall clock of a clip, and each worker's lane.

    Attributes:
        wall: seconds from the opened file to the last token.
        parts: seconds by kind of work, and ``other``; they add up to ``wall``. While both workers are at work the
            time is the target's kind: what the draft does meanwhile costs nothing. It is the draft's where the target
            waits for it, and ``wait`` where both wait.
        hidden: seconds by kind of the draft's work that lay under the target's.
        lanes: seconds by worker and kind, each second counted once, for the innermost span.
        overlap: seconds in which both were at work.
    """

    wall: float
    parts: dict[str, float]
    hidden: dict[str, float]
    lanes: dict[str, dict[str, float]]
    overlap: float

    def busy(self, worker: str) -> float:
        """Seconds in which a worker did anything but wait."""
        return sum(seconds for kind, seconds in self.lanes.get(worker, {}).items() if kind != _WAIT)


def innermost(spans: Iterable[Span], wall: float) -> list[Piece]:
    """The spans of one worker as pieces that do not overlap, in order, cut at 0 and ``wall``.

    Spans lie side by side or within each other; what is pruned within the prefill is pruning, not prefill.
    """
    pieces: list[Piece] = []
    around: list[Span] = []
    place = 0.0

    def until(end: float) -> None:
        nonlocal place
        end = min(end, wall)
        if end > place:
            if around:
                pieces.append(Piece(place, end, around[-1].kind))
            place = end

    for span in sorted(spans, key=lambda span: (span.start, -span.end)):
        while around and around[-1].end <= span.start:
            until(around[-1].end)
            around.pop()
        until(span.start)
        around.append(span)
    while around:
        until(around[-1].end)
        around.pop()
    return pieces


def breakdown(spans: Sequence[Span], wall: float) -> Breakdown:
    """Account for the wall clock of one clip.

    Args:
        spans: of the trace, in seconds since the clip was opened; workers are ``target`` and ``draft``.
        wall: seconds until the last token; what comes after it does not count.
    """
    lanes = {
        worker: innermost((span for span in spans if span.worker == worker), wall) for worker in ("target", "draft")
    }
    borders = sorted({0.0, wall, *(edge for lane in lanes.values() for one in lane for edge in (one.start, one.end))})
    parts: dict[str, float] = {}
    hidden: dict[str, float] = {}
    overlap = 0.0
    places = dict.fromkeys(lanes, 0)
    for start, end in pairwise(borders):
        now: dict[str, str | None] = {}
        for worker, lane in lanes.items():
            while places[worker] < len(lane) and lane[places[worker]].end <= start:
                places[worker] += 1
            at = places[worker]
            now[worker] = lane[at].kind if at < len(lane) and lane[at].start <= start else None
        target, draft = now["target"], now["draft"]
        working = [kind for kind in (target, draft) if kind not in (None, _WAIT)]
        kind = working[0] if working else _WAIT if _WAIT in (target, draft) else OTHER
        parts[str(kind)] = parts.get(str(kind), 0.0) + end - start
        if len(working) == 2:
            overlap += end - start
            hidden[str(draft)] = hidden.get(str(draft), 0.0) + end - start
    order = (*KINDS, OTHER)
    parts.setdefault(OTHER, 0.0)
    return Breakdown(
        wall,
        {kind: parts[kind] for kind in order if kind in parts},
        {kind: hidden[kind] for kind in order if kind in hidden},
        {worker: _sums(lane) for worker, lane in lanes.items() if lane},
        overlap,
    )


def _sums(pieces: Iterable[Piece]) -> dict[str, float]:
    sums: dict[str, float] = {}
    for piece in pieces:
        sums[piece.kind] = sums.get(piece.kind, 0.0) + piece.end - piece.start
    return {kind: sums[kind] for kind in KINDS if kind in sums}
