"""The draft window of the parallel schedule: a fixed number, or the ratio of pass times.

It fills one target pass, whatever is accepted. The windows of the sequential schedule, whose passes add up, are chosen
by :mod:`vidspec.draft_length.pace`. Pure: times are arguments.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from statistics import median
from typing import Literal

__all__ = ["AutoGamma", "FixedGamma", "settled_window", "window_for"]

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


class FixedGamma:
    """A constant window."""

    def __init__(self, gamma: int) -> None:
        if gamma < 1:
            raise ValueError(f"gamma must be at least 1, not {gamma}")
        self.gamma = gamma

    def add_draft_pass(self, seconds: float) -> None:
        """Ignored: the window is constant."""

    def add_target_pass(self, rows: int, seconds: float) -> None:
        """Ignored: the window is constant."""


class AutoGamma:
    """The window that fills one target pass, measured during the run.

    T_p and T_q are medians of the last ``memory`` passes. T_p counts passes over a window; until there is one, passes
    over a single token. The window changes when the ratio is outside the current window's interval by more than
    ``slack``, so that a ratio near a whole number does not make it oscillate. As T_p depends on the window, its
    measurements are dropped when the window changes; the window settles where both agree.

    Args:
        start: the window before anything has been measured.
        rounding: see ``window_for``.
        lowest, highest: the window stays between them.
        slack: hysteresis, in tokens.
        memory: number of recent passes of each kind that count.
    """

    def __init__(
        self,
        start: int = 5,
        rounding: Rounding = "down",
        *,
        lowest: int = 1,
        highest: int = 32,
        slack: float = 0.15,
        memory: int = 9,
    ) -> None:
        if not 1 <= lowest <= start <= highest:
            raise ValueError(f"gamma must satisfy 1 <= lowest <= start <= highest, not {lowest}, {start}, {highest}")
        self.gamma = start
        self.rounding, self.lowest, self.highest, self.slack = rounding, lowest, highest, slack
        self._draft: deque[float] = deque(maxlen=memory)
        self._single: deque[float] = deque(maxlen=memory)
        self._window: deque[float] = deque(maxlen=memory)
        self._settled = False

    def add_draft_pass(self, seconds: float) -> None:
        """Add the time of a draft pass over one token."""
        self._draft.append(seconds)

    def add_target_pass(self, rows: int, seconds: float) -> None:
        """Add the time of a target pass over ``rows`` tokens; the window may change."""
        (self._window if rows > 1 else self._single).append(seconds)
        passes = self._window or self._single
        tq, tp = (median(self._draft) if self._draft else 0.0), median(passes)
        if tq <= 0 or tp <= 0:
            return
        low = self.gamma - (1 if self.rounding == "up" else 0)
        # The first measurement decides without hysteresis.
        slack = self.slack if self._settled else 0.0
        self._settled = True
        if low - slack <= tp / tq < low + 1 + slack:
            return
        chosen = window_for(tp, tq, self.rounding, self.lowest, self.highest)
        if chosen != self.gamma:
            self.gamma = chosen
            self._window.clear()
