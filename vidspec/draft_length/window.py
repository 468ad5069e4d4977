"""The draft window of one clip: its acceptance rate, the window that the controller has chosen, trials of others."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

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
