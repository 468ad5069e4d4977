"""The interface for following a run over clips: panel, pages, result lines, log, trace and measurements."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from vidspec.events.events import Event, LoopLoad
from vidspec.events.record import Caption
from vidspec.events.tally import Tally


class ClipPart(NamedTuple):
    """The part of a clip that a result is of.

    Attributes:
        start, end: in seconds; None for the ends of the file.
        segment: index of the segment or question; None for a whole clip.
        segments: number of segments or questions.
    """

    start: float | None = None
    end: float | None = None
    segment: int | None = None
    segments: int | None = None


class RunObserver:
    """Receives what happens in a run; this base class ignores it.

    Several clips may be in flight: each has its own number, and their events interleave. Captioners in other processes
    and on other machines report results only.
    """

    def begin(self, number: int, path: str, total: int) -> None:
        """Called when a clip or a segment starts; ``number`` identifies it until its end.

        ``total`` counts all clips of the run.
        """

    def event(self, number: int, event: Event) -> None:
        """Called with each event of a clip in flight."""

    def load(self, load: LoopLoad) -> None:
        """Called with the load of the loop, all clips together."""

    def end(self, number: int, caption: Caption) -> None:
        """Called when a clip is done, captioned or failed."""

    def result(self, caption: Caption, error: Exception | None, part: ClipPart, tally: Tally) -> None:
        """Called with the result of a clip or segment, in order, after its record was written."""

    def ended(self, tally: Tally) -> None:
        """Called at the end of the run, also at an early one."""


class CombinedObserver(RunObserver):
    """Passes everything on to several observers, in order."""

    def __init__(self, observers: Sequence[RunObserver]) -> None:
        self.observers = observers

    def begin(self, number: int, path: str, total: int) -> None:
        for one in self.observers:
            one.begin(number, path, total)

    def event(self, number: int, event: Event) -> None:
        for one in self.observers:
            one.event(number, event)

    def load(self, load: LoopLoad) -> None:
        for one in self.observers:
            one.load(load)

    def end(self, number: int, caption: Caption) -> None:
        for one in self.observers:
            one.end(number, caption)

    def result(self, caption: Caption, error: Exception | None, part: ClipPart, tally: Tally) -> None:
        for one in self.observers:
            one.result(caption, error, part, tally)

    def ended(self, tally: Tally) -> None:
        for one in self.observers:
            one.ended(tally)
