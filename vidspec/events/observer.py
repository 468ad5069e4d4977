"""Interface of observers of a run over clips, such as the live panel."""

from __future__ import annotations

from collections.abc import Sequence

from vidspec.events.events import Event, LoopLoad
from vidspec.events.record import Caption

__all__ = ["CombinedObserver", "RunObserver"]


class RunObserver:
    """Receives a run's events; this base class ignores them.

    Several clips may be in flight: each has its own number, and their events interleave.
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
