"""Time breakdown of one clip: every second of the wall clock is assigned to one kind of work. Pure."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from vidspec.events.trace import KINDS, Span, by_kind, innermost

#: Time that no span covers.
OTHER = "other"
_WAIT = "wait"


@dataclass(frozen=True)
class Breakdown:
    """The wall clock of a clip, and each worker's lane.

    Attributes:
        wall: seconds from the opened file to the last token.
        parts: seconds by kind of work, and ``other``; they add up to ``wall``. While both workers are busy the time
            counts as the target's kind: the draft's work then costs nothing. It counts as the draft's while the target
            waits, and as ``wait`` while both wait.
        hidden: seconds by kind of the draft's work that overlapped the target's.
        lanes: seconds by worker and kind, each second counted once, for the innermost span.
        overlap: seconds in which both were busy.
    """

    wall: float
    parts: dict[str, float]
    hidden: dict[str, float]
    lanes: dict[str, dict[str, float]]
    overlap: float

    def busy(self, worker: str) -> float:
        """Return the seconds in which a worker did not wait."""
        return sum(seconds for kind, seconds in self.lanes.get(worker, {}).items() if kind != _WAIT)


def breakdown(spans: Sequence[Span], wall: float) -> Breakdown:
    """Break down the wall clock of one clip.

    Args:
        spans: of the trace, in seconds since the clip was opened; workers are ``target`` and ``draft``.
        wall: seconds until the last token; later spans do not count.
    """
    lanes = {
        worker: innermost((span for span in spans if span.worker == worker), 0.0, wall)
        for worker in ("target", "draft")
    }
    borders = sorted({0.0, wall, *(edge for lane in lanes.values() for one in lane for edge in (one.start, one.end))})
    parts: defaultdict[str, float] = defaultdict(float, {OTHER: 0.0})
    hidden: defaultdict[str, float] = defaultdict(float)
    ends = {worker: [piece.end for piece in lane] for worker, lane in lanes.items()}
    for start, end in pairwise(borders):
        now: dict[str, str] = {}
        for worker, lane in lanes.items():
            at = bisect_right(ends[worker], start)
            if at < len(lane) and lane[at].start <= start:
                now[worker] = lane[at].kind
        working = [kind for kind in now.values() if kind != _WAIT]
        parts[working[0] if working else _WAIT if now else OTHER] += end - start
        if len(working) == 2:
            hidden[working[1]] += end - start
    order = (*KINDS, OTHER)
    return Breakdown(
        wall,
        {kind: parts[kind] for kind in order if kind in parts},
        {kind: hidden[kind] for kind in order if kind in hidden},
        {worker: by_kind(lane) for worker, lane in lanes.items() if lane},
        sum(hidden.values()),
    )
