"""Who sees a run over clips as it happens; the live panel is one."""

from __future__ import annotations

from collections.abc import Sequence

from vidspec.events.events import Event, LoopLoad
from vidspec.events.record import Caption

__all__ = ["CombinedObserver", "RunObserver"]


class RunObserver:
    """Sees a run as it happens; this one looks away.

    Several clips may be open at once: each has a number of its own, and their events interleave.
    """

    def begin(self, number: int, path: str, total: int) -> None:
        """A clip, or a segment of one, of a run over ``total`` clips starts; ``number`` names it until its end."""

    def event(self, number: int, event: Event) -> None:
        """One event of an open clip."""

    def load(self, load: LoopLoad) -> None:
        """What is in flight now, all clips together."""

    def end(self, number: int, caption: Caption) -> None:
        """An open clip is done, captioned or failed."""


class CombinedObserver(RunObserver):
    """Each of several sees everything, in their order."""

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
