"""How far a tree of drafted tokens grows, and when a chain is the better window. Pure: numbers come in.

A node's score is the probability that all of its path is accepted: the product of what the draft gives its tokens, each
as often as tokens of such a probability came true of late. Grown is what scores best while the tokens that this
promises are worth a further pass of the draft, and kept are the best nodes, as many as are worth their rows in the
target's pass (EAGLE-2, Li et al. 2024, with measured times in place of its fixed sizes). Tokens and seconds are weighed
at the rate of late, which is how the most tokens per second are found (Dinkelbach).

A tree takes a pass of several rows where a chain takes one, and waits for each. What it would have gained over the
chain's window is known of every tree that was grown, by the same probabilities; chains are drafted until trees gain
more, and each is tried now and then while the other works.
"""

from __future__ import annotations

import math
from bisect import bisect
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from vidspec.draft_length.speed import chain_tokens

if TYPE_CHECKING:
    from vidspec.draft_length.pace import Pace, Window

__all__ = ["CHAIN", "DEEPEST", "MOST", "WIDEST", "Budget", "Calibration", "Growth", "Trees"]

#: Passes of the draft for one tree, its most nodes, and rows of one of those passes as well as children of a node.
DEEPEST, MOST, WIDEST = 16, 64, 8
#: Probabilities of a draft are told apart by these, each as of so many tokens at first, which count that one later.
EDGES, PRIOR_TOKENS, FADE = (0.03, 0.1, 0.2, 0.35, 0.5, 0.65, 0.8, 0.9, 0.97), 4.0, 0.998
#: A first tree is grown after so many rounds, then so many in a row; what one showed counts that when the next did.
FIRST, TRIALS, RECENT = 8, 4, 0.8
#: The share of a round's tokens that trees have to gain, and that of all tokens that trials may cost.
SLACK, TRYING = 0.02, 0.01
#: A tree has at most that many times the rows that were seen.
WIDER = 1.5
#: At least so many rounds before what was not chosen is tried again.
REST = 16


class Budget(NamedTuple):
    """The most that one window may be.

    Attributes:
        depth: passes of the draft; no node is deeper.
        width: rows of such a pass, and children of a node.
        nodes: rows of the target's pass beside the one that is always there.
    """

    depth: int
    width: int
    nodes: int


#: Of a window that is no tree.
CHAIN = Budget(DEEPEST, 1, DEEPEST)


class Calibration:
    """How often drafted tokens come true, by the probability that the draft gives them."""

    def __init__(self) -> None:
        middles = [(low + high) / 2 for low, high in zip((0.0, *EDGES), (*EDGES, 1.0), strict=True)]
        self._promised = [PRIOR_TOKENS * one for one in middles]
        self._kept = list(self._promised)

    def __call__(self, probability: float) -> float:
        """That a token is accepted behind accepted ones."""
        at = bisect(EDGES, probability)
        return min(0.99, probability * self._kept[at] / self._promised[at])

    def judged(self, probability: float, right: bool) -> None:
        """The target judged a token that the draft gave ``probability``."""
        at = bisect(EDGES, probability)
        self._promised[at] = FADE * self._promised[at] + probability
        self._kept[at] = FADE * self._kept[at] + right


class Growth:
    """One tree while it grows: nodes in the order in which they were offered, children behind their parents.

    Args:
        calibration: how often tokens come true.
        budget: is not exceeded.
        prices: how many tokens 0, 1, ... drafted rows cost.
        levels: likewise a pass of the draft over 0, 1, ... rows.
        beta: the acceptance of tokens that are not known yet.

    Attributes:
        parents: of each node, -1 for those behind the last committed token.
        probabilities: that the draft gave them behind their parents.
        scores: that all of their paths is accepted.
        depths: 1 for those without a parent.
        children: of each node that was expanded, -1 included, the best first.
        spent: how many tokens the draft's passes cost.
    """

    def __init__(
        self, calibration: Calibration, budget: Budget, prices: Sequence[float], levels: Sequence[float], beta: float
    ) -> None:
        self.calibration, self.budget, self.prices, self.levels, self.beta = calibration, budget, prices, levels, beta
        self.parents: list[int] = []
        self.probabilities: list[float] = []
        self.scores: list[float] = []
        self.depths: list[int] = []
        self.children: dict[int, range] = {}
        self.spent = levels[1]
        self._passes = 1

    def expanded(self, node: int, probabilities: Sequence[float]) -> None:
        """The draft gives these to the best tokens behind ``node``, the best first."""
        first = len(self.parents)
        above, depth = (self.scores[node], self.depths[node]) if node >= 0 else (1.0, 0)
        for probability in probabilities:
            self.parents.append(node)
            self.probabilities.append(probability)
            self.scores.append(above * self.calibration(probability))
            self.depths.append(depth + 1)
        self.children[node] = range(first, len(self.parents))

    def following(self) -> list[int]:
        """Nodes that the next pass of the draft expands; none if no pass is worth its time."""
        depth, width, nodes = self.budget
        if self._passes == depth:
            return []
        left = min(width, MOST - (len(self.children) - 1))  # what was read stays in the cache until the round is over
        scores = self.scores
        open_ = (node for node in range(len(scores)) if node not in self.children and self.depths[node] < depth)
        best = sorted(open_, key=lambda node: -scores[node])[:left]
        known = sorted(scores, reverse=True)[:nodes]
        most, chosen = self._net(known), 0
        for count in sorted({min(2**power, len(best)) for power in range(width.bit_length() + 1)} - {0}):
            added = [self.beta * scores[node] for node in best[:count]]
            if (net := self._net(sorted([*known, *added], reverse=True)[:nodes]) - self.levels[count]) > most:
                most, chosen = net, count
        self.spent += self.levels[chosen]
        self._passes += bool(chosen)
        return best[:chosen]

    def kept(self) -> list[int]:
        """The nodes to propose, at least one: the best, and with each its parent."""
        order = sorted(range(len(self.scores)), key=lambda node: -self.scores[node])[: self.budget.nodes]
        gains = self._gains([self.scores[node] for node in order])
        return order[: max(1, gains.index(max(gains)))]

    @property
    def gain(self) -> float:
        """Tokens that are expected to be accepted of what is kept, less those that rows and passes cost."""
        kept = self.kept()
        return math.fsum(self.scores[node] for node in kept) - self.prices[len(kept)] - self.spent

    def as_chain(self, gamma: int) -> float:
        """Tokens of a chain of ``gamma`` that would have been accepted in this place."""
        gain, score, node, depth = 0.0, 1.0, -1, 0
        while depth < gamma and node in self.children:
            node, depth = self.children[node][0], depth + 1
            score = self.scores[node]
            gain += score
        return gain + score * (chain_tokens(self.beta, gamma - depth) - 1)

    def _net(self, scores: Sequence[float]) -> float:
        return max(self._gains(scores))

    def _gains(self, scores: Sequence[float]) -> list[float]:
        """Of the first 0, 1, ... nodes: their tokens less those that their rows cost."""
        gains, sum_ = [0.0], 0.0
        for count, score in enumerate(scores, 1):
            sum_ += score
            gains.append(sum_ - self.prices[count])
        return gains


class _Standing:
    """What trees gained over chains of late, with about so many clips at once."""

    def __init__(self) -> None:
        self.gain = self.weight = 0.0
        self.trees = False
        self.due = FIRST

    @property
    def mean(self) -> float:
        return self.gain / self.weight if self.weight else 0.0

    def add(self, gain: float) -> None:
        self.gain, self.weight = RECENT * self.gain + gain, RECENT * self.weight + 1


class Trees:
    """What all clips of one pace know of trees.

    Args:
        pace: knows what passes cost.
    """

    def __init__(self, pace: Pace) -> None:
        self.pace = pace
        self.calibration = Calibration()
        self._standings: dict[int, _Standing] = {}
        self._own = 0.0

    def took(self, seconds: float) -> None:
        """Beside each pass for a tree, its clip took so long to see what comes next."""
        self._own = RECENT * self._own + (1 - RECENT) * seconds if self._own else seconds

    def budget(self, window: Window, gamma: int) -> Budget:
        """What a clip's next window may be, at most ``gamma`` deep.

        Of a width of 1 it is a chain, and its length is the pace's matter.
        """
        wide = self.affordable(gamma)
        if wide.width == 1:
            return wide
        now, clips = self.pace.rounds, self.pace.clips
        standing = self._standings.setdefault(clips.bit_length(), _Standing())
        tried = now >= standing.due + TRIALS
        if tried and not standing.weight:
            standing.due = now
        elif tried or (standing.trees and standing.mean < 0):
            tokens = max(1.0, chain_tokens(window.beta, window.chosen))
            standing.trees = standing.mean > (0.0 if standing.trees else SLACK * tokens)
            rest = math.ceil(TRIALS * abs(standing.mean) / (TRYING * tokens))
            standing.due = now + max(REST, rest)
        trying = standing.due <= now < standing.due + (1 if standing.trees else TRIALS)
        return wide if standing.trees != trying else CHAIN

    def affordable(self, gamma: int) -> Budget:
        """The widest tree that could be worth its time; a chain until it is known what rows cost.

        All nodes together are worth less than one token for each of their levels, and the child of rank r is the right
        one in at most one case of r + 1. What many more rows cost than were seen is not known.
        """
        depth, prices = min(gamma, DEEPEST), self.pace.prices(MOST)
        if not prices or depth < 1:
            return CHAIN
        most = min(MOST, math.ceil(WIDER * self.pace.widest))
        nodes = max(1, *(count for count in range(most + 1) if prices[count] < depth))
        row = min(prices[count] - prices[count - 1] for count in range(1, nodes + 1))
        width = max(rank + 1 for rank in range(WIDEST) if rank == 0 or row * (rank + 1) < 1)
        return Budget(depth, min(width, nodes), nodes)

    def growth(self, window: Window, budget: Budget) -> Growth:
        """A tree of one clip."""
        levels = self.pace.prices_of_levels(WIDEST, self._own)
        return Growth(self.calibration, budget, self.pace.prices(MOST), levels, window.beta)

    def grown(self, window: Window, growth: Growth) -> None:
        """A tree is done; is it worth more than the clip's chain would have been?"""
        gamma = window.chosen
        chain = growth.as_chain(gamma) - growth.prices[gamma] - self.pace.price_of_drafting(gamma)
        self._standings.setdefault(self.pace.clips.bit_length(), _Standing()).add(growth.gain - chain)
