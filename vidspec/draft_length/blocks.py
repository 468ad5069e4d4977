"""Windows of block drafts: one pass drafts all positions, and the host chooses which tokens are verified. Pure.

A token's score is the probability that it and all before it are accepted: the product of the draft's probabilities,
each calibrated by the recent acceptance of tokens of about that probability. Best first, as many are proposed as are
worth their rows in the target's pass, in tokens at the recent rate: in a chain the first ones, in a tree also other
candidates of their positions (DDTree). While recent blocks took longer than plain decoding of the tokens they gained,
the drafts rest, and are tried again at growing intervals.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import pairwise
from typing import NamedTuple, TypeAlias

from vidspec.draft_length.costs import TokenPrices
from vidspec.draft_length.trees import MOST, WIDER, DraftCalibration
from vidspec.draft_length.window import TrialInterval

#: First windows, which measure the cost of rows; weight of an earlier block for a rest, and for drafts in general.
FIRST, RECENT, LONG = (15, 7, 3, 11), 0.8, 0.98
#: Rounds of the first rest; share of the rounds that trials of drafts without gain may cost. For that share a rest is
#: longer, but at most this many times: otherwise costly first blocks would decide for a whole clip.
SHORTEST, TRIAL_SHARE, LONGER = 4, 0.01, 4
#: Blocks of each clip after which a gain is known; blocks after which trees may have more nodes than positions, since
#: probabilities are calibrated by then.
KNOWN, LEARNED = 3, 16


class BlockNode(NamedTuple):
    """A node of a tree over a block: a candidate of a position after its parent, -1 for the last emitted token."""

    parent: int
    position: int
    candidate: int
    probability: float


#: The candidates of a position after one of the position before, and their probabilities; the best first.
Successors: TypeAlias = Callable[[int, int], Sequence[tuple[int, float]]]


@dataclass
class FadedBlocks:
    """Sums over drafted blocks; older ones weigh less.

    Attributes:
        gained: rounds of plain decoding saved, by the prices of each block's time.
    """

    blocks: float = 0.0
    rows: float = 0.0
    drafted: float = 0.0
    accepted: float = 0.0
    gained: float = 0.0

    def add(self, rows: int, drafted: int, accepted: int, kept: float, prices: TokenPrices) -> None:
        """Add a block; the weight of earlier ones is multiplied by ``kept``."""
        self.blocks, self.rows = kept * self.blocks + 1, kept * self.rows + rows
        self.drafted, self.accepted = kept * self.drafted + drafted, kept * self.accepted + accepted
        self.gained = kept * self.gained + accepted - rounds_of_block(prices, rows, drafted)

    def gain(self, prices: TokenPrices) -> float:
        """Return the rounds of plain decoding saved, by the present prices if more.

        A slow pass thus counts until others of its kind have been measured, and load does not count for earlier blocks.
        """
        if not self.blocks:
            return 0.0
        price = rounds_of_block(prices, round(self.rows / self.blocks), round(self.drafted / self.blocks))
        return max(self.gained, self.accepted - self.blocks * price)


def rounds_of_block(prices: TokenPrices, rows: int, drafted: int) -> float:
    """Return the time of a draft's pass over ``rows`` and of ``drafted`` rows more in the target's, in plain rounds."""
    return (prices.row_prices(drafted)[drafted] + prices.of_pass("draft", rows)) / prices.of_pass("target", 1)


class BlockController:
    """Chooses the windows of block drafts for all clips of one loop.

    Args:
        prices: of passes.
    """

    def __init__(self, prices: TokenPrices) -> None:
        self.prices, self.calibration = prices, DraftCalibration()
        self._recent, self._all = FadedBlocks(), FadedBlocks()  # since a rest; rests included
        self._blocks = self._measured = 0  # drafted; of these, not in trials after a rest
        self._rests: dict[int, TrialInterval] = {}  # by batch size

    @property
    def _rest(self) -> TrialInterval:
        return self._rests.setdefault(self.prices.clips.bit_length(), TrialInterval(first=SHORTEST))

    def begin_clip(self) -> None:
        """Try the drafts of a new clip at once if they gain in general: that they rest is about other texts."""
        if self._all.gain(self.prices) > 0:
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
        count = len(probabilities)
        return len(self._best_nodes(lambda position, _: [(0, probabilities[position])], count, count))

    def tree(self, successors: Successors, positions: int) -> list[BlockNode]:
        """Return the nodes to verify of the tree of all candidates: the best, each after its parent (DDTree).

        Args:
            successors: the likeliest candidates.
            positions: depth of the tree.
        """
        most = positions
        if self._blocks >= LEARNED:
            widest = self.prices.costs["target"].widest(self.prices.clips)
            most = min(MOST - 1, max(positions, math.ceil(WIDER * widest)))
        return self._best_nodes(successors, positions, most)

    def _best_nodes(self, successors: Successors, positions: int, most: int) -> list[BlockNode]:
        prices = self.prices.row_prices(most)
        measures = not prices or (self._measured < len(FIRST) and not self._rest.failed)
        if measures:
            most = min(most, FIRST[self._measured % len(FIRST)])
        least = 0.0 if measures else min(more - less for less, more in pairwise(prices[: most + 1]))
        nodes, scores, chosen = list[BlockNode](), list[float](), 0
        gain = best = 0.0
        open_ = list[tuple[float, int, int, BlockNode]]()

        def add(parent: int, rank: int) -> None:
            position, candidate, above = 0, 0, 1.0
            if parent >= 0:
                position, candidate, above = nodes[parent].position + 1, nodes[parent].candidate, scores[parent]
            if position < positions and rank < len(following := successors(position, candidate)):
                candidate, probability = following[rank]
                score = above * self.calibration(probability)
                heappush(open_, (-score, parent, rank, BlockNode(parent, position, candidate, probability)))

        add(-1, 0)
        while open_ and len(nodes) < most:
            score, parent, rank, node = heappop(open_)
            if -score <= least and not measures:
                break
            nodes.append(node)
            scores.append(-score)
            gain -= score
            if measures or gain - prices[len(nodes)] > best:
                best, chosen = 0.0 if measures else gain - prices[len(nodes)], len(nodes)
            add(parent, rank + 1)
            add(len(nodes) - 1, 0)
        return nodes[:chosen]

    def add_block(self, rows: int, drafted: int, accepted: int) -> None:
        """Add a drafted block.

        Args:
            rows: of the draft's pass.
            drafted, accepted: number of tokens in the window, 0 if none was worth its row, and of those accepted.
        """
        self._blocks += 1
        self._measured += not self._rest.failed
        recent, prices, clips = self._recent, self.prices, self.prices.clips
        if not prices.row_prices(drafted):
            return
        recent.add(rows, drafted, accepted, RECENT ** (1 / clips), prices)
        self._all.add(rows, drafted, accepted, LONG, prices)
        gain = recent.gain(prices)
        if gain > 0:
            self._rest.end()
        elif self._blocks >= KNOWN * clips and not self.rest():  # else another clip of this round has failed too
            paid = 0.0 if self._all.gain(prices) > 0 else -gain / recent.blocks / TRIAL_SHARE
            self._rest.postpone(prices.rounds, min(paid, LONGER * SHORTEST << self._rest.failed))
            self._recent = FadedBlocks()
