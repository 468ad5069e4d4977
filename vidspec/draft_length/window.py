"""Draft windows: of one clip in the sequential schedule, and of the parallel one, where a window fills a target pass.

The first are chosen by :mod:`vidspec.draft_length.pace`; the second is a fixed number, or the ratio of pass times.
Pure: times are arguments.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol

from vidspec.draft_length.costs import PassCosts

if TYPE_CHECKING:
    from vidspec.draft_length.pace import WindowController

#: Rounds of the first interval; how often they may double, once per failed trial.
REST, DOUBLINGS = 16, 5


def chain_tokens(beta: float, gamma: int) -> float:
    """Return the expected tokens of a verified chain with its correction or bonus: (1 - beta^(gamma+1)) / (1 - beta).

    Leviathan et al. 2023, Eq. 1. ``beta``, in [0, 1], is the probability that a drafted token is accepted,
    independently of all others; gamma >= 0 is the window.
    """
    if not 0 <= beta <= 1:
        raise ValueError(f"a probability cannot be {beta}")
    return gamma + 1.0 if beta == 1 else (1 - beta ** (gamma + 1)) / (1 - beta)


class TrialInterval:
    """Rounds between trials.

    Args:
        due: round in which the first interval ends; None if it has not begun.
        first: rounds of the first interval.

    Attributes:
        due: round of the next trial; None while there is no reason for one.
        failed: number of intervals begun since the last gain.
    """

    def __init__(self, due: int | None = None, first: int = REST) -> None:
        self.due, self.failed, self.first = due, int(due is not None), first

    def is_due(self, now: int) -> bool:
        """Return True if the next trial is due in round ``now``."""
        return self.due is not None and now >= self.due

    def postpone(self, now: int, rounds: float = 0.0) -> None:
        """Wait after round ``now`` twice as long as the last time, and at least ``rounds``."""
        self.due = now + max(self.first << min(self.failed, DOUBLINGS), math.ceil(rounds))
        self.failed += 1

    def end(self) -> None:
        """Forget failures: the drafts gain."""
        self.due, self.failed = None, 0


class AcceptanceEstimate:
    """Acceptance rate of drafted tokens; older rounds weigh less."""

    def __init__(self, beta: float, tokens: float) -> None:
        self.passed, self.failed = tokens * beta, tokens * (1 - beta)

    @property
    def tokens(self) -> float:
        return self.passed + self.failed

    @property
    def beta(self) -> float:
        return self.passed / self.tokens

    def update(self, drafted: int, accepted: int, kept: float) -> None:
        """Add a verified window; the weight of earlier ones is multiplied by ``kept``."""
        self.passed = kept * self.passed + accepted
        self.failed = kept * self.failed + (accepted < drafted)


@dataclass(eq=False)
class DraftWindow:
    """Draft window of one clip; see :meth:`~vidspec.draft_length.pace.WindowController.window`.

    Attributes:
        start: initial window.
        acceptance: of this clip's drafts.
        best: the best window at the last choice.
        next: the window of the next round, in a trial another one.
        idle: rounds of plain decoding since the last draft.
    """

    controller: WindowController
    start: int
    acceptance: AcceptanceEstimate
    best: int
    next: int
    idle: int = 0

    @property
    def gamma(self) -> int:
        """Draft tokens of this clip's next round; 0 for plain decoding."""
        self.controller.choose_windows()
        return self.next

    @property
    def chosen(self) -> int:
        """The best window by measurement, regardless of a trial in the next round."""
        self.controller.choose_windows()
        return self.best

    @property
    def beta(self) -> float:
        """Acceptance rate so far."""
        return self.acceptance.beta

    def rest(self) -> bool:
        """Return True if this clip's next round is plain decoding."""
        self.controller.choose_windows()
        return not self.next

    def update(self, drafted: int, accepted: int, beside: int = 0) -> None:
        """Add a round of this clip, one of plain decoding with zeros.

        Args:
            drafted, accepted: number of tokens in the window, and of those accepted; for a tree on its best path.
            beside: further accepted tokens.
        """
        self.controller.count_outcome(self, drafted, accepted, beside)

    def close(self) -> None:
        """Stop counting the clip: it has ended."""
        self.controller.remove(self)


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
