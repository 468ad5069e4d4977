"""Timed events of one clip by worker and kind; exports to the Chrome/Perfetto trace format."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

__all__ = ["KINDS", "Kind", "Span", "Trace", "to_chrome"]

Kind: TypeAlias = Literal[
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
    "wait",
    "plan",
]
KINDS: tuple[str, ...] = Kind.__args__  # type: ignore[attr-defined]


@dataclass(frozen=True, slots=True)
class Span:
    """One piece of work; ``start`` and ``end`` are seconds since the clip was opened."""

    worker: str
    kind: str
    start: float
    end: float


@dataclass
class Trace:
    """Collects spans. ``synchronise`` is called at both ends of each, so that a device's queued work is counted."""

    synchronise: Callable[[], None] = lambda: None
    clock: Callable[[], float] = time.perf_counter
    spans: list[Span] = field(default_factory=list)
    origin: float = 0.0

    def __post_init__(self) -> None:
        self.origin = self.clock()

    def now(self) -> float:
        """Seconds since the trace began, all queued device work done."""
        self.synchronise()
        return self.clock() - self.origin

    @contextmanager
    def span(self, kind: Kind, worker: str = "target") -> Iterator[None]:
        start = self.now()
        try:
            yield
        finally:
            self.spans.append(Span(worker, kind, start, self.now()))

    def add(self, kind: Kind, worker: str, start: float, end: float) -> None:
        """A piece of work that was timed elsewhere, in seconds since the trace began."""
        self.spans.append(Span(worker, kind, start, end))

    def totals(self) -> dict[str, float]:
        """Seconds by kind, for the kinds that occurred."""
        sums: defaultdict[str, float] = defaultdict(float)
        for span in self.spans:
            sums[span.kind] += span.end - span.start
        return {kind: sums[kind] for kind in KINDS if kind in sums}


def to_chrome(trace: Trace | Sequence[Span]) -> dict[str, Any]:
    """The JSON object that chrome://tracing and Perfetto open: one track per worker, times in microseconds."""
    spans = trace.spans if isinstance(trace, Trace) else list(trace)
    workers = sorted({span.worker for span in spans}, reverse=True)  # target above draft
    events: list[dict[str, Any]] = [
        {"ph": "M", "pid": 1, "tid": tid, "name": "thread_name", "args": {"name": worker}}
        for tid, worker in enumerate(workers, start=1)
    ]
    events += [
        {
            "ph": "X",
            "pid": 1,
            "tid": workers.index(span.worker) + 1,
            "name": span.kind,
            "ts": round(span.start * 1e6, 1),
            "dur": round((span.end - span.start) * 1e6, 1),
        }
        for span in spans
    ]
    return {"traceEvents": events, "displayTimeUnit": "ms"}
