"""Timed events of one clip by worker and kind; exports to the Chrome/Perfetto trace format."""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

__all__ = ["KINDS", "Span", "SpanKind", "Trace", "TracePiece", "by_kind", "innermost", "to_chrome"]

SpanKind: TypeAlias = Literal[
    "decode_video",
    "preprocess",
    "vision",
    "caption",
    "target_prefill",
    "signals",
    "prune",
    "draft_prefill",
    "draft",
    "verify",
    "accept",
    "rollback",
    "collect",
    "wait",
]
KINDS: tuple[str, ...] = SpanKind.__args__  # type: ignore[attr-defined]


@dataclass(frozen=True, slots=True)
class Span:
    """One piece of work; ``start`` and ``end`` are seconds since the clip was opened.

    ``about`` are further facts by name. Of the parallel schedule a draft pass tells the ``epoch`` of the draft's text,
    the ``position`` it proposed for and whether that was ``emitted``; a target pass its ``round`` and its ``rows``.
    """

    worker: str
    kind: str
    start: float
    end: float
    about: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True, slots=True)
class TracePiece:
    """A stretch of one worker's time in which one kind of work was the innermost, in seconds."""

    start: float
    end: float
    kind: str


@dataclass
class Trace:
    """Collects spans. ``synchronise`` is called at both ends of each, so that a device's queued work is counted.

    It is not called for the laps of a round, of which a GPU's clips have thousands: the host's clock is right there
    without it, as the passes in them end with a read-back. Spans of one worker lie side by side or within each other,
    never across: each worker does one thing at a time.

    Attributes:
        waited: seconds in which a loop served other clips while this one waited for an answer.
    """

    synchronise: Callable[[], None] = lambda: None
    clock: Callable[[], float] = time.perf_counter
    spans: list[Span] = field(default_factory=list)
    origin: float = 0.0
    waited: float = 0.0
    _lap: tuple[float, float] = (0.0, 0.0)  # when the present one began, and ``waited`` then

    def __post_init__(self) -> None:
        self.origin = self.clock()

    def now(self) -> float:
        """Seconds since the trace began, all queued device work done."""
        self.synchronise()
        return self.clock() - self.origin

    def elapsed(self) -> float:
        """Seconds since the trace began, without waiting for a device: for one thread beside another's work."""
        return self.clock() - self.origin

    @contextmanager
    def span(self, kind: SpanKind, worker: str = "target") -> Iterator[None]:
        """Time a piece of work, without the seconds in which it waited for passes of other clips.

        A part of a decoding that is given up at a request is not noted.
        """
        start, waited, given_up = self.now(), self.waited, False
        try:
            yield
        except GeneratorExit:
            given_up = True
            raise
        finally:
            if not given_up:
                end = self.now()
                self.spans.append(Span(worker, kind, min(end, start + self.waited - waited), end))

    def begin(self) -> None:
        """The first of several pieces of a round's work begins, see :meth:`lap`."""
        self._lap = self.clock() - self.origin, self.waited

    def lap(self, kind: SpanKind, worker: str = "target", about: tuple[tuple[str, int], ...] = ()) -> float:
        """A piece of a round's work has ended, and the next one begins; its seconds, without those of other clips'
        passes."""
        (start, waited), end = self._lap, self.clock() - self.origin
        self._lap = end, self.waited
        start = min(end, start + self.waited - waited)
        self.spans.append(Span(worker, kind, start, end, about))
        return end - start

    def add(self, kind: str, worker: str, start: float, end: float, about: tuple[tuple[str, int], ...] = ()) -> None:
        """A piece of work that was timed elsewhere, in seconds since the trace began."""
        self.spans.append(Span(worker, kind, start, end, about))

    def by_worker(self) -> dict[str, dict[str, float]]:
        """Seconds by worker and kind, for those that occurred.

        Every second of a worker counts once, for the innermost span: what is pruned within ``target_prefill`` counts
        as ``prune`` and not as ``target_prefill``.
        """
        return {
            worker: by_kind(innermost(span for span in self.spans if span.worker == worker))
            for worker in sorted({span.worker for span in self.spans}, reverse=True)
        }

    def totals(self) -> dict[str, float]:
        """Seconds by kind over both workers, for the kinds that occurred; see :meth:`by_worker`.

        Workers that work at the same time count each their own seconds: the sum may be more than the time it took.
        """
        sums: dict[str, float] = {}
        for part in self.by_worker().values():
            for kind, seconds in part.items():
                sums[kind] = sums.get(kind, 0.0) + seconds
        return {kind: sums[kind] for kind in KINDS if kind in sums}


def innermost(spans: Iterable[Span], begin: float = -math.inf, end: float = math.inf) -> list[TracePiece]:
    """The spans of one worker as pieces that do not overlap, in order, cut at ``begin`` and ``end``.

    Spans lie side by side or within each other; what is pruned within the prefill is pruning, not prefill.
    """
    pieces: list[TracePiece] = []
    around: list[Span] = []
    place = begin

    def until(moment: float) -> None:
        nonlocal place
        moment = min(moment, end)
        if moment > place:
            if around:
                pieces.append(TracePiece(place, moment, around[-1].kind))
            place = moment

    def leave(moment: float) -> None:
        while around and around[-1].end <= moment:
            until(around[-1].end)
            around.pop()

    for span in sorted(spans, key=lambda span: (span.start, -span.end)):
        leave(span.start)
        until(span.start)
        around.append(span)
    leave(math.inf)
    return pieces


def by_kind(pieces: Iterable[TracePiece]) -> dict[str, float]:
    """Seconds by kind, for those that occurred, in the order of :data:`KINDS`."""
    sums: defaultdict[str, float] = defaultdict(float)
    for piece in pieces:
        sums[piece.kind] += piece.end - piece.start
    return {kind: sums[kind] for kind in KINDS if kind in sums}


def to_chrome(trace: Trace | Sequence[Span]) -> dict[str, object]:
    """The JSON object that chrome://tracing and Perfetto open: a track ``target``, and ``draft`` below it where there
    is one; times in microseconds. Draft passes that were in vain are named ``draft (wasted)``."""
    spans = trace.spans if isinstance(trace, Trace) else list(trace)
    workers = sorted({span.worker for span in spans}, reverse=True)  # target above draft
    events: list[dict[str, object]] = []
    for tid, worker in enumerate(workers, start=1):
        track = {"ph": "M", "pid": 1, "tid": tid}
        events.append({**track, "name": "thread_name", "args": {"name": worker}})
        events.append({**track, "name": "thread_sort_index", "args": {"sort_index": tid}})
    # A slice comes after the one around it, which is how viewers nest those that begin together.
    for span in sorted(spans, key=lambda span: (workers.index(span.worker), span.start, -span.end)):
        start, end = round(span.start * 1e6, 1), round(span.end * 1e6, 1)
        about = dict(span.about)
        event: dict[str, object] = {
            "ph": "X",
            "pid": 1,
            "tid": workers.index(span.worker) + 1,
            "name": f"{span.kind} (wasted)" if about.get("emitted") == 0 else span.kind,
            "ts": start,
            "dur": round(end - start, 1),  # of the rounded ends, so that neighbours do not overlap
        }
        if about:
            event["cat"] = span.kind
            event["args"] = {name: bool(value) if name == "emitted" else value for name, value in about.items()}
        events.append(event)
    return {"traceEvents": events, "displayTimeUnit": "ms"}
