"""Windows of block drafts: one pass drafts all positions, and the host chooses how many of them are verified. Pure.

A position's score is the probability that it and all before it are accepted: the product of the draft's probabilities,
each calibrated by the recent acceptance of tokens of about that probability. As many positions are proposed as are
worth their rows in the target's pass, in tokens at the recent rate. While the pass itself is not worth its time the
drafts rest, and are tried again at growing intervals.
"""

from __future__ import annotations

from collections.abc import Sequence

from vidspec.draft_length.costs import TokenPrices
from vidspec.draft_length.trees import DraftCalibration
from vidspec.draft_length.window import TrialInterval

__all__ = ["BlockController"]

#: First windows, which measure the cost of rows; share of the tokens that drafts tried in vain may cost; weight of an
#: earlier round for a rest, and of an earlier block for what drafts are worth in general.
FIRST, TRIAL_SHARE, RECENT, LONG = (15, 7, 3, 11), 0.01, 0.8, 0.98
#: Blocks of each clip after which a gain is known.
KNOWN = 3


class BlockController:
    """Chooses the windows of block drafts for all clips of one loop.

    Args:
        prices: of passes.
    """

    def __init__(self, prices: TokenPrices) -> None:
        self.prices, self.calibration = prices, DraftCalibration()
        self._gain = 0.0  # tokens gained by recent blocks since a rest, all costs subtracted
        self._won = 0.0  # the same of many blocks, rests included
        self._blocks = self._priced = 0  # verified; of these, with known prices
        self._rests: dict[int, TrialInterval] = {}  # by batch size

    @property
    def _rest(self) -> TrialInterval:
        return self._rests.setdefault(self.prices.clips.bit_length(), TrialInterval())

    def begin_clip(self) -> None:
        """Try the drafts of a new clip at once if they gain in general: that they rest is about other texts."""
        if self._won > 0:
            for rest in self._rests.values():
                rest.end()

    def rest(self) -> bool:
        """Return True if the next round is plain decoding."""
        due = self._rest.due
        return due is not None and self.prices.rounds < due

    def window(self, probabilities: Sequence[float]) -> int:
        """Return the number of positions to verify.

        Args:
            probabilities: the draft's, of its token at each position.
        """
        most = len(probabilities)
        prices = self.prices.row_prices(most)
        if self._blocks < len(FIRST) or not prices:
            return min(most, FIRST[self._blocks % len(FIRST)])
        gain = best = 0.0
        score, chosen = 1.0, 0
        for count, probability in enumerate(probabilities, 1):
            score *= self.calibration(probability)
            gain += score
            if gain - prices[count] > best:
                best, chosen = gain - prices[count], count
        return chosen

    def add_block(self, rows: int, probabilities: Sequence[float], accepted: int) -> None:
        """Add a verified window.

        Args:
            rows: of the draft's pass.
            probabilities: of the window's tokens.
            accepted: of these.
        """
        for at, probability in enumerate(probabilities[: accepted + 1]):
            self.calibration.update(probability, at < accepted)
        self._blocks += 1
        prices = self.prices.row_prices(len(probabilities))
        if not prices:
            return
        self._priced += 1
        spent = prices[len(probabilities)] + self.prices.of_pass("draft", rows)
        gain = accepted - spent
        self._gain = RECENT ** (1 / self.prices.clips) * self._gain + gain
        self._won = LONG * self._won + gain
        if self._gain > 0:
            self._rest.end()
        elif (
            self._priced >= KNOWN * self.prices.clips and not self.rest()
        ):  # else another clip of this round has failed too
            lost = 0.0 if self._won > 0 else max(0.0, -gain)
            self._rest.postpone(self.prices.rounds, lost / TRIAL_SHARE)
            self._gain = 0.0
