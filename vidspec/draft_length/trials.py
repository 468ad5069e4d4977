"""Growing intervals between trials of drafts that have not gained. Pure: rounds are arguments."""

from __future__ import annotations

import math

#: Rounds of the first interval; how often they may double, once per failed trial.
REST, DOUBLINGS = 16, 5


class TrialInterval:
    """Rounds between trials.

    Args:
        due: round in which the first interval ends; None if it has not begun.

    Attributes:
        due: round of the next trial; None while there is no reason for one.
        failed: number of intervals begun since the last gain.
    """

    def __init__(self, due: int | None = None) -> None:
        self.due, self.failed = due, int(due is not None)

    def is_due(self, now: int) -> bool:
        """Return True if the next trial is due in round ``now``."""
        return self.due is not None and now >= self.due

    def postpone(self, now: int, rounds: float = 0.0) -> None:
        """Wait after round ``now`` twice as long as the last time, and at least ``rounds``."""
        self.due = now + max(REST << min(self.failed, DOUBLINGS), math.ceil(rounds))
        self.failed += 1

    def end(self) -> None:
        """Forget failures: the drafts gain."""
        self.due, self.failed = None, 0
