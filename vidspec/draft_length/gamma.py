"""The draft window of the parallel schedule: a fixed number, or the ratio of pass times.

It fills one target pass, whatever is accepted. The windows of the sequential schedule, whose passes add up, are chosen
by :mod:`vidspec.draft_length.pace`. Pure: times are arguments.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal, Protocol

from vidspec.draft_length.costs import PassCosts

Rounding = Literal["down", "up"]


def window_for(tp: float, tq: float, rounding: Rounding = "down", lowest: int = 1, highest: int = 32) -> int:
    """Return the window that fills one target pass: T_p(gamma) / T_q(alpha), rounded (ParallelVLM Eq. 6, App. A).

    Args:
        tp: time of a target pass on the window.
        tq: time of a draft pass on one token, same unit.
        rounding: ``down`` keeps the target from waiting; ``up`` suits self-drafting, with its small windows and long
            accepted runs.
        lowest, highest: the result stays between them.

    Raises:
        ValueError: a time that is not positive.
    """
    if not (tp > 0 and tq > 0):
        raise ValueError(f"forward times must be positive, not {tp} and {tq}")
    ratio = tp / tq
    return max(lowest, min(highest, math.ceil(ratio) if rounding == "up" else math.floor(ratio)))


def settled_window(verify: Callable[[int], float], tq: float, rounding: Rounding = "down", highest: int = 32) -> int:
    """Return the smallest window that fills a target pass over itself, at which :class:`AutoGamma` settles.

    Args:
        verify: time of a target pass by its rows.
        tq: time of a draft pass on one token, same unit.
        rounding, highest: see :func:`window_for`.
    """
    gamma = 1
    while (wider := window_for(verify(gamma), tq, rounding, highest=highest)) > gamma:
        gamma = wider
    return gamma


class WindowSize(Protocol):
    """The draft window of the parallel schedule."""

    @property
    def gamma(self) -> int:
        """Draft tokens per round from the next one on, at least 1."""
        ...


class FixedGamma:
    """A constant window."""

    def __init__(self, gamma: int) -> None:
        if gamma < 1:
            raise ValueError(f"gamma must be at least 1, not {gamma}")
        self.gamma = gamma


class AutoGamma:
    """The window that fills one target pass over itself, by the times measured so far.

    It stays while it has not been measured itself, and changes when the ratio of both times is outside its interval by
    more than ``slack``, so that a ratio near a whole number does not make it oscillate.

    Args:
        costs: measured times of passes.
        start: the window before anything has been measured.
        rounding: see ``window_for``.
        lowest, highest: the window stays between them.
        slack: hysteresis, in tokens.
    """

    def __init__(
        self,
        costs: PassCosts,
        start: int = 5,
        rounding: Rounding = "down",
        *,
        lowest: int = 1,
        highest: int = 32,
        slack: float = 0.15,
    ) -> None:
        if not 1 <= lowest <= start <= highest:
            raise ValueError(f"gamma must satisfy 1 <= lowest <= start <= highest, not {lowest}, {start}, {highest}")
        self.costs, self.rounding, self.lowest, self.highest, self.slack = costs, rounding, lowest, highest, slack
        self._gamma, self._chosen_at = start, 0

    @property
    def gamma(self) -> int:
        """The window from the next round on."""
        target, draft, clips = self.costs["target"], self.costs["draft"], self.costs.clips
        if not target or not draft or target.passes == self._chosen_at:
            return self._gamma
        rows = clips * self._gamma
        if self._chosen_at and target.since(clips, rows) == math.inf:
            return self._gamma  # until it has been measured
        tp, tq = target.by_rows(clips)(rows), draft.by_rows(1)(1)
        low = self._gamma - (self.rounding == "up")
        slack = self.slack if self._chosen_at else 0.0  # the first measurement decides without hysteresis
        self._chosen_at = target.passes
        if not low - slack <= tp / tq < low + 1 + slack:
            self._gamma = window_for(tp, tq, self.rounding, self.lowest, self.highest)
        return self._gamma
