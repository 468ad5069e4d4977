"""The growth of a tree of drafted tokens, and when a chain is the better window. Pure: times are arguments.

A node's score is the probability that all of its path is accepted: the product of the draft's probabilities of its
tokens, each calibrated by the recent acceptance of tokens of about that probability. The best nodes are expanded while
the expected tokens are worth another pass of the draft, and the best nodes are proposed, as many as are worth their
rows in the target's pass (EAGLE-2, Li et al. 2024, with measured times in place of its fixed sizes). Seconds are
converted to tokens at the recent rate, which maximises tokens per second (Dinkelbach).

A pass of a tree has several rows where a chain's has one, and the host waits for each. For every grown tree the same
probabilities give the gain of a chain in its place; chains are drafted until trees gain more, and at intervals the
other kind is tried.
"""

from __future__ import annotations

import math
from bisect import bisect
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from vidspec.draft_length.speed import chain_tokens

if TYPE_CHECKING:
    from vidspec.draft_length.pace import DraftWindow, WindowController

__all__ = ["CHAIN", "DEEPEST", "MOST", "WIDEST", "DraftCalibration", "GrowingTree", "TreeBudget", "TreeController"]

#: The most passes of the draft for one tree; its most nodes; the most rows of such a pass, and children of a node.
DEEPEST, MOST, WIDEST = 16, 64, 8
#: Probabilities of a draft are told apart by these, each as of so many tokens at first, which count that one later.
EDGES, PRIOR_TOKENS, FADE = (0.03, 0.1, 0.2, 0.35, 0.5, 0.65, 0.8, 0.9, 0.97), 4.0, 0.998
#: A first tree is grown after so many rounds, then so many in a row; what one showed counts that when the next did.
FIRST, TRIALS, RECENT = 8, 4, 0.8
#: The share of a round's tokens that trees have to gain, and that of all tokens that trials may cost; those of chains
#: may cost as much.
SLACK, TRYING = 0.02, 0.005
#: A tree has at most this many times the widest measured number of rows.
WIDER = 1.5
#: The fewest rounds before the other kind is tried again; they double with every trial in vain, so many times at most.
REST, DOUBLINGS = 16, 5


class TreeBudget(NamedTuple):
    """The limits of one window.

    Attributes:
        depth: passes of the draft; no node is deeper.
        width: rows of such a pass, and children of a node.
        nodes: rows of the target's pass, without that of the last committed token.
    """

    depth: int
    width: int
    nodes: int


#: Of a window that is no tree.
CHAIN = TreeBudget(DEEPEST, 1, DEEPEST)


class DraftCalibration:
    """The acceptance rate of drafted tokens by the draft's probability of them."""

    def __init__(self) -> None:
        middles = [(low + high) / 2 for low, high in zip((0.0, *EDGES), (*EDGES, 1.0), strict=True)]
        self._promised = [PRIOR_TOKENS * one for one in middles]
        self._kept = list(self._promised)

    def __call__(self, probability: float) -> float:
        """The probability that a token after accepted ones is accepted."""
        at = bisect(EDGES, probability)
        return min(0.99, probability * self._kept[at] / self._promised[at])

    def update(self, probability: float, right: bool) -> None:
        """Add a verified token with the draft's ``probability``."""
        at = bisect(EDGES, probability)
        self._promised[at] = FADE * self._promised[at] + probability
        self._kept[at] = FADE * self._kept[at] + right


class GrowingTree:
    """One growing tree: nodes in the order in which they were added, children after their parents.

    Args:
        calibration: acceptance by probability.
        budget: the limits.
        prices: cost of 0, 1, ... drafted rows, in tokens.
        levels: cost of a pass of the draft over 0, 1, ... rows, in tokens.
        beta: the acceptance rate of tokens that are not drafted yet.

    Attributes:
        parents: of each node, -1 for those after the last committed token.
        probabilities: the draft's, of each node after its parent.
        scores: the probability that all of a node's path is accepted.
        depths: 1 for those without a parent.
        children: of each node that was expanded, -1 included, the best first.
        spent: cost of the draft's passes, in tokens.
    """

    def __init__(
        self,
        calibration: DraftCalibration,
        budget: TreeBudget,
        prices: Sequence[float],
        levels: Sequence[float],
        beta: float,
    ) -> None:
        self.calibration, self.budget, self.prices, self.levels, self.beta = calibration, budget, prices, levels, beta
        self.parents: list[int] = []
        self.probabilities: list[float] = []
        self.scores: list[float] = []
        self.depths: list[int] = []
        self.children: dict[int, range] = {}
        self.spent = levels[1]
        self._passes = 1

    def add_children(self, node: int, probabilities: Sequence[float]) -> None:
        """Add the draft's probabilities of the best tokens after ``node``, the best first."""
        first = len(self.parents)
        above, depth = (self.scores[node], self.depths[node]) if node >= 0 else (1.0, 0)
        for probability in probabilities:
            self.parents.append(node)
            self.probabilities.append(probability)
            self.scores.append(above * self.calibration(probability))
            self.depths.append(depth + 1)
        self.children[node] = range(first, len(self.parents))

    def next_nodes(self) -> list[int]:
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

    def best_nodes(self) -> list[int]:
        """The nodes to propose, at least one: the best, each with its parent."""
        order = sorted(range(len(self.scores)), key=lambda node: -self.scores[node])[: self.budget.nodes]
        gains = self._gains([self.scores[node] for node in order])
        return order[: max(1, gains.index(max(gains)))]

    @property
    def expected(self) -> float:
        """Accepted tokens of the kept nodes, by their scores."""
        return math.fsum(self.scores[node] for node in self.best_nodes())

    @property
    def cost(self) -> float:
        """That of the kept nodes' rows and of all passes, in tokens."""
        return self.prices[len(self.best_nodes())] + self.spent

    def as_chain(self, gamma: int) -> float:
        """Expected accepted tokens of a chain of ``gamma`` in place of the tree."""
        gain, score, node, depth = 0.0, 1.0, -1, 0
        while depth < gamma and node in self.children:
            node, depth = self.children[node][0], depth + 1
            score = self.scores[node]
            gain += score
        return gain + score * (chain_tokens(self.beta, gamma - depth) - 1)

    def _net(self, scores: Sequence[float]) -> float:
        return max(self._gains(scores))

    def _gains(self, scores: Sequence[float]) -> list[float]:
        """For the first 0, 1, ... nodes: expected tokens less the cost of their rows."""
        gains, sum_ = [0.0], 0.0
        for count, score in enumerate(scores, 1):
            sum_ += score
            gains.append(sum_ - self.prices[count])
        return gains


class _Standing:
    """The recent gain of trees over chains, with about so many clips at once."""

    def __init__(self) -> None:
        self.gain = self.weight = 0.0
        self.trees = False
        self.due, self.vain = FIRST, 0

    @property
    def mean(self) -> float:
        return self.gain / self.weight if self.weight else 0.0

    def add(self, gain: float) -> None:
        self.gain, self.weight = RECENT * self.gain + gain, RECENT * self.weight + 1


class TreeController:
    """Measurements of trees, for all clips of one pace.

    Args:
        pace: the cost of passes.
    """

    def __init__(self, pace: WindowController) -> None:
        self.pace = pace
        self.calibration = DraftCalibration()
        self._standings: dict[int, _Standing] = {}
        self._own = 0.0

    def add_host_time(self, seconds: float) -> None:
        """Add the host's time of a clip after each pass for its tree."""
        self._own = RECENT * self._own + (1 - RECENT) * seconds if self._own else seconds

    @property
    def tried(self) -> bool:
        """Whether any clip's drafter grows trees."""
        return bool(self._standings)

    @property
    def _standing(self) -> _Standing:
        return self._standings.setdefault(self.pace.clips.bit_length(), _Standing())

    def rest(self) -> bool:
        """Whether the next window is a chain, whatever rows cost."""
        standing = self._standing
        return not standing.trees and self.pace.rounds < standing.due

    def budget(self, window: DraftWindow, gamma: int) -> TreeBudget:
        """The limits of a clip's next window, at most ``gamma`` deep.

        A width of 1 means a chain, whose length the pace chooses.
        """
        now, standing = self.pace.rounds, self._standing
        wide = self.affordable(gamma)
        if wide.width == 1:
            if now >= standing.due:
                standing.due = now + REST
            return wide
        trials = TRIALS if window.chosen else 1
        tried = now >= standing.due + trials
        if tried and not standing.weight:
            standing.due = now
        elif tried or (standing.trees and standing.mean < 0):
            tokens = max(1.0, chain_tokens(window.beta, window.chosen))
            before = standing.trees
            standing.trees = standing.mean > (0.0 if standing.trees else SLACK * tokens)
            standing.vain = standing.vain + 1 if standing.trees == before else 0
            rest = math.ceil(trials * abs(standing.mean) / (TRYING * tokens))
            standing.due = now + max(REST << min(standing.vain, DOUBLINGS), rest)
        trying = standing.due <= now < standing.due + (1 if standing.trees else trials)
        return wide if standing.trees != trying else CHAIN

    def affordable(self, gamma: int) -> TreeBudget:
        """The widest tree that could be worth its time; a chain until the cost of rows is known.

        All nodes together are worth less than one token for each of their levels, and the child of rank r is the right
        one in at most one case of r + 1. The cost of many more rows than were measured is unknown.
        """
        depth, prices = min(gamma, DEEPEST), self.pace.row_prices(MOST)
        if not prices or depth < 1:
            return CHAIN
        most = min(MOST, math.ceil(WIDER * self.pace.widest))
        nodes = max(1, *(count for count in range(most + 1) if prices[count] < depth))
        row = min(prices[count] - prices[count - 1] for count in range(1, nodes + 1))
        width = max(rank + 1 for rank in range(WIDEST) if rank == 0 or row * (rank + 1) < 1)
        return TreeBudget(depth, min(width, nodes), nodes)

    def growth(self, window: DraftWindow, budget: TreeBudget) -> GrowingTree:
        """A tree of one clip."""
        levels = self.pace.prices_of_levels(WIDEST, self._own)
        return GrowingTree(self.calibration, budget, self.pace.row_prices(MOST), levels, window.beta)

    def add_tree(self, growth: GrowingTree, gamma: int, accepted: int) -> None:
        """Add a verified tree: its gain over that of the clip's chain.

        Where a chain would rest only what was accepted counts: the probabilities of such a draft promise too much.

        Args:
            growth: the tree.
            gamma: the chain's window.
            accepted: tokens of the tree.
        """
        gain = (growth.expected if gamma else accepted) - growth.cost
        chain = growth.as_chain(gamma) - growth.prices[gamma] - self.pace.price_of_drafting(gamma)
        self._standing.add(gain - chain)
