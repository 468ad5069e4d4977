"""The number of clips to decode at once, from measured pass times. Pure; memory is not considered.

With the recent numbers of draft passes and of rows per clip, tokens per second grow as B over the seconds of a round
of B clips.
"""

from __future__ import annotations

from vidspec.draft_length.costs import PassCosts

__all__ = ["SIZES", "BatchSize"]

#: Batch sizes to choose from, and the initial one.
SIZES, START = (4, 8, 16, 32), 8
#: Least gain in tokens per second for twice as many clips: they take memory, and each of them ends later.
GAIN = 1.03
#: The size is chosen again after this many target passes at nearly full batch size.
PASSES = 32


def batch_rate(costs: PassCosts, clips: int) -> float:
    """Return a value proportional to the tokens per second of ``clips``; needs a pass of the target."""
    return clips / costs.round_seconds(clips)


class BatchSize:
    """The smallest batch for which twice as many clips gain less than ``GAIN``; doubles at most once per choice.

    Attributes:
        most: clips at once.
    """

    def __init__(self) -> None:
        self.most = START
        self._full = 0

    def add_pass(self, clips: int, costs: PassCosts) -> None:
        """Count a target pass of ``clips``, which ``costs`` has."""
        self._full += 4 * clips >= 3 * self.most
        if self._full == PASSES:
            self._full = 0
            enough = (n for n in SIZES[:-1] if batch_rate(costs, 2 * n) < GAIN * batch_rate(costs, n))
            self.most = min(next(enough, SIZES[-1]), 2 * self.most)
