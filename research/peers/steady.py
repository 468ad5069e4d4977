"""Decoding rate of several clips at once, without their prefills and the end of the batch. Pure."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field


@dataclass
class SteadyRate:
    """Counts tokens from the first token of the last clip to the end of the first clip.

    Attributes:
        count: clips that are decoded together.
        began: time of the last clip's first token; None before.
        ended: time at which the first clip ended, not before ``began``; None before.
        tokens: emitted in between.
    """

    count: int
    began: float | None = None
    ended: float | None = None
    tokens: int = 0
    _read: set[Hashable] = field(default_factory=set)

    def emitted(self, when: float, key: Hashable, tokens: int) -> None:
        """Add new tokens of a clip."""
        if self.ended is not None:
            return
        if self.began is not None:
            self.tokens += tokens
        self._read.add(key)
        if self.began is None and len(self._read) == self.count:
            self.began = when

    def finished(self, when: float) -> None:
        """Record the end of a clip."""
        if self.ended is None:
            self.ended = when

    @property
    def seconds(self) -> float:
        """Time from ``began`` to ``ended``; 0 if a clip ended before all had begun."""
        return self.ended - self.began if self.began is not None and self.ended is not None else 0.0

    @staticmethod
    def combine(groups: Iterable[SteadyRate]) -> dict[str, float]:
        """Return the total tokens and seconds of several groups, as JSON values."""
        counted = [one for one in groups if one.seconds > 0]
        return {"tokens": sum(one.tokens for one in counted), "seconds": sum(one.seconds for one in counted)}
