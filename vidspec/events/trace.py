"""Timed events of one clip by worker and kind; exports to the Chrome/Perfetto trace format."""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, TypeAlias

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


class Span(NamedTuple):
    """One piece of work; ``start`` and ``end`` are seconds since the clip was opened.

    ``about`` are further facts by name. In the parallel schedule a draft pass has the ``epoch`` of the draft's text,
    its ``position`` and whether its token was ``emitted``; a target pass its ``round`` and its ``rows``.
    """

    worker: str
    kind: str
    start: float
    end: float
    about: tuple[tuple[str, int], ...] = ()


_new_tuple = tuple.__new__


@dataclass(frozen=True, slots=True)
class TracePiece:
    """An interval of one worker's time with one innermost kind of work, in seconds."""

    start: float
    end: float
    kind: str


def _wait_for_nothing() -> None: ...


@dataclass
class Trace:
    """Collects spans. ``synchronise`` is called at both ends of each, so that a device's queued work is counted.

    It is not called for the laps of a round, of which a clip on a GPU has thousands: the host's clock is right there
    without it, as the passes in them end with a read-back. Spans of one worker lie side by side or nested and never
    cross: each worker does one thing at a time.

    Attributes:
        waited: seconds in which the loop served other clips while this one waited for a pass.
        lapped: end of the last lap, in seconds since the trace began.
    """

    synchronise: Callable[[], None] = _wait_for_nothing
    clock: Callable[[], float] = time.perf_counter
    spans: list[Span] = field(default_factory=list)
    origin: float = 0.0
    waited: float = 0.0
    lapped: float = 0.0
    _waited_before: float = 0.0  # ``waited`` at the end of the last lap

    def __post_init__(self) -> None:
        self.origin = self.clock()

    def __getstate__(self) -> dict[str, object]:
        """Return what is pickled: all but the function that waits for this process's devices."""
        return {**vars(self), "synchronise": _wait_for_nothing}

    def now(self) -> float:
        """Return seconds since the trace began, after all queued device work."""
        self.synchronise()
        return self.clock() - self.origin

    def elapsed(self) -> float:
        """Return seconds since the trace began, without synchronising: for a thread alongside another's work."""
        return self.clock() - self.origin

    @contextmanager
    def span(self, kind: SpanKind, worker: str = "target") -> Iterator[None]:
        """Time a piece of work, without the seconds in which it waited for passes of other clips.

        Work that is closed early (GeneratorExit) is not recorded.
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
                self._append(Span(worker, kind, min(end, start + self.waited - waited), end))

    def lap(
        self, kind: SpanKind | None = None, worker: str = "target", about: tuple[tuple[str, int], ...] = ()
    ) -> float:
        """Record a span since the last lap and start the next; return its seconds, without passes of other clips.

        Without ``kind`` none is recorded: the first lap of a round starts.
        """
        start, waited, end = self.lapped, self.waited, self.clock() - self.origin
        start = min(end, start + waited - self._waited_before)
        self.lapped, self._waited_before = end, waited
        if kind is None:
            return 0.0
        span = _new_tuple(Span, (worker, kind, start, end, about))  # a third of the time of ``Span(...)``
        if self.spans and self.spans[-1].start >= start:
            self._append(span)
        else:
            self.spans.append(span)
        return end - start

    def _append(self, span: Span) -> None:
        """Append a span that ends now, and count the collections that interrupted it as its worker's."""
        for at in range(len(self.spans) - 1, -1, -1):
            inner = self.spans[at]
            if inner.start < span.start:
                break
            if inner.kind == "collect":
                self.spans[at] = inner._replace(worker=span.worker)
        self.spans.append(span)

    def add(self, kind: str, worker: str, start: float, end: float, about: tuple[tuple[str, int], ...] = ()) -> None:
        """Add a span that was timed elsewhere, in seconds since the trace began."""
        self.spans.append(Span(worker, kind, start, end, about))

    def by_worker(self) -> dict[str, dict[str, float]]:
        """Return seconds by worker and kind, for those that occurred.

        Every second of a worker counts once, for the innermost span: pruning within ``target_prefill`` counts as
        ``prune``.
        """
        return {
            worker: by_kind(innermost(span for span in self.spans if span.worker == worker))
            for worker in sorted({span.worker for span in self.spans}, reverse=True)
        }

    def totals(self) -> dict[str, float]:
        """Return seconds by kind over both workers, for the kinds that occurred; see :meth:`by_worker`.

        Workers that run at the same time each count their own seconds: the sum may exceed the elapsed time.
        """
        sums: dict[str, float] = {}
        for part in self.by_worker().values():
            for kind, seconds in part.items():
                sums[kind] = sums.get(kind, 0.0) + seconds
        return {kind: sums[kind] for kind in KINDS if kind in sums}


def innermost(spans: Iterable[Span], begin: float = -math.inf, end: float = math.inf) -> list[TracePiece]:
    """Return the spans of one worker as consecutive pieces that do not overlap, cut at ``begin`` and ``end``.

    Spans lie side by side or nested; pruning within the prefill is pruning, not prefill.
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
    """Return seconds by kind, for those that occurred, in the order of :data:`KINDS`."""
    sums: defaultdict[str, float] = defaultdict(float)
    for piece in pieces:
        sums[piece.kind] += piece.end - piece.start
    return {kind: sums[kind] for kind in KINDS if kind in sums}


def to_chrome(trace: Trace | Sequence[Span]) -> dict[str, object]:
    """Return the JSON object that chrome://tracing and Perfetto open.

    A track ``target``, and ``draft`` below it if there is one; times in microseconds. Wasted draft passes are named
    ``draft (wasted)``.
    """
    spans = trace.spans if isinstance(trace, Trace) else list(trace)
    workers = sorted({span.worker for span in spans}, reverse=True)  # target above draft
    events: list[dict[str, object]] = []
    for tid, worker in enumerate(workers, start=1):
        track = {"ph": "M", "pid": 1, "tid": tid}
        events.append({**track, "name": "thread_name", "args": {"name": worker}})
        events.append({**track, "name": "thread_sort_index", "args": {"sort_index": tid}})
    # An outer slice comes before its inner ones: viewers nest by this order those that begin together.
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
