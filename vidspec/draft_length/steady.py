"""The rate at which several clips are decoded together, without their prompts and the end of the batch. Pure."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field

__all__ = ["SteadyRate"]


@dataclass
class SteadyRate:
    """Counts tokens from the first token of the last clip to the end of the first clip.

    Attributes:
        count: clips that are decoded together.
        began: when the last of them had its first token; None before.
        ended: when the first of them ended, from ``began`` on; None before.
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
        """A clip has ended."""
        if self.ended is None:
            self.ended = when

    @property
    def seconds(self) -> float:
        """0 if a clip ended before all had begun."""
        return self.ended - self.began if self.began is not None and self.ended is not None else 0.0

    @staticmethod
    def combine(groups: Iterable[SteadyRate]) -> dict[str, float]:
        """Tokens and seconds of several, as JSON values."""
        counted = [one for one in groups if one.seconds > 0]
        return {"tokens": sum(one.tokens for one in counted), "seconds": sum(one.seconds for one in counted)}
