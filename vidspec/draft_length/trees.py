"""Growth of draft trees, and the choice between tree and chain. Pure: times are arguments.

A node's score is the probability that all of its path is accepted: the product of the draft's probabilities of its
tokens, each calibrated by the recent acceptance of tokens of about that probability. The best nodes are expanded while
the expected tokens are worth another draft pass, and as many of the best nodes are proposed as are worth their rows in
the target's pass (EAGLE-2, Li et al. 2024, with measured times in place of its fixed sizes). Seconds are converted to
tokens at the recent rate, which maximises tokens per second (Dinkelbach).

A draft pass of a tree has several rows where a chain's has one, and the host waits for each pass. The probabilities of
every grown tree also give the gain of a chain in its place. Chains are drafted until trees gain more; the other kind is
tried at intervals.
"""

from __future__ import annotations

import math
from bisect import bisect
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from vidspec.draft_length.costs import TokenPrices
from vidspec.draft_length.window import REST, TrialInterval, chain_tokens

if TYPE_CHECKING:
    from vidspec.draft_length.window import DraftWindow

#: Most draft passes for one tree; most nodes; most rows of such a pass, and children of a node.
DEEPEST, MOST, WIDEST = 16, 64, 8
#: Edges of the bins of draft probabilities; weight of each bin's prior in tokens; fading per token.
EDGES, PRIOR_TOKENS, FADE = (0.03, 0.1, 0.2, 0.35, 0.5, 0.65, 0.8, 0.9, 0.97), 4.0, 0.998
#: Rounds before the first tree; trees in a row in a trial; fading of a tree's gain per tree.
FIRST, TRIALS, RECENT = 8, 4, 0.8
#: Share of a round's tokens that trees have to gain; share of all tokens that trials of trees may cost, and those of
#: chains as much.
SLACK, TREE_TRIAL_SHARE = 0.02, 0.005
#: A tree has at most this many times the widest measured number of rows.
WIDER = 1.5


class TreeBudget(NamedTuple):
    """Limits of one window.

    Attributes:
        depth: passes of the draft; no node is deeper.
        width: rows of such a pass, and children of a node.
        nodes: rows of the target's pass, excluding the last committed token.
    """

    depth: int
    width: int
    nodes: int


#: Limits of a chain.
CHAIN = TreeBudget(DEEPEST, 1, DEEPEST)


class DraftCalibration:
    """Acceptance rate of drafted tokens by the draft's probability."""

    def __init__(self) -> None:
        middles = [(low + high) / 2 for low, high in zip((0.0, *EDGES), (*EDGES, 1.0), strict=True)]
        self._promised = [PRIOR_TOKENS * one for one in middles]
        self._kept = list(self._promised)

    def __call__(self, probability: float) -> float:
        """Return the probability that a token after accepted ones is accepted."""
        at = bisect(EDGES, probability)
        return min(0.99, probability * self._kept[at] / self._promised[at])

    def update(self, probability: float, right: bool) -> None:
        """Add a verified token of the draft's ``probability``."""
        at = bisect(EDGES, probability)
        self._promised[at] = FADE * self._promised[at] + probability
        self._kept[at] = FADE * self._kept[at] + right


class GrowingTree:
    """One growing tree: nodes in the order of addition, children after their parents.

    Args:
        calibration: acceptance by probability.
        budget: limits of the tree.
        prices: cost of 0, 1, ... drafted rows, in tokens.
        levels: cost of a draft pass over 0, 1, ... rows, in tokens.
        beta: acceptance rate assumed for tokens not drafted yet.

    Attributes:
        parents: by node; -1 for children of the last committed token.
        probabilities: by node, the draft's given its parent.
        scores: by node, the probability that all of its path is accepted.
        depths: by node; 1 without a parent.
        children: by expanded node, -1 included; the best first.
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
        """Add children to ``node``, with the draft's probabilities, the best first."""
        first = len(self.parents)
        above, depth = (self.scores[node], self.depths[node]) if node >= 0 else (1.0, 0)
        for probability in probabilities:
            self.parents.append(node)
            self.probabilities.append(probability)
            self.scores.append(above * self.calibration(probability))
            self.depths.append(depth + 1)
        self.children[node] = range(first, len(self.parents))

    def next_nodes(self) -> list[int]:
        """Return the nodes that the next draft pass expands; none if no pass is worth its time."""
        depth, width, nodes = self.budget
        if self._passes == depth:
            return []
        left = min(width, MOST - (len(self.children) - 1))  # read nodes stay in the cache until the round ends
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
        """Return the nodes to propose, at least one: the best, each with its parent."""
        order = sorted(range(len(self.scores)), key=lambda node: -self.scores[node])[: self.budget.nodes]
        gains = self._gains([self.scores[node] for node in order])
        return order[: max(1, gains.index(max(gains)))]

    @property
    def expected(self) -> float:
        """Return the expected accepted tokens of the proposed nodes."""
        return math.fsum(self.scores[node] for node in self.best_nodes())

    @property
    def cost(self) -> float:
        """Return the cost of the proposed nodes' rows and of all draft passes, in tokens."""
        return self.prices[len(self.best_nodes())] + self.spent

    def as_chain(self, gamma: int) -> float:
        """Return the expected accepted tokens of a chain of ``gamma`` in place of the tree."""
        gain, score, node, depth = 0.0, 1.0, -1, 0
        while depth < gamma and node in self.children:
            node, depth = self.children[node][0], depth + 1
            score = self.scores[node]
            gain += score
        return gain + score * (chain_tokens(self.beta, gamma - depth) - 1)

    def _net(self, scores: Sequence[float]) -> float:
        return max(self._gains(scores))

    def _gains(self, scores: Sequence[float]) -> list[float]:
        """Return, for the first 0, 1, ... nodes, the expected tokens less the cost of their rows."""
        gains, sum_ = [0.0], 0.0
        for count, score in enumerate(scores, 1):
            sum_ += score
            gains.append(sum_ - self.prices[count])
        return gains


class _TreeGain:
    """Recent gain of trees over chains at one batch size, and the next trial of the other kind."""

    def __init__(self) -> None:
        self.gain = self.weight = 0.0
        self.trees, self.trial = False, TrialInterval(FIRST)

    @property
    def mean(self) -> float:
        return self.gain / self.weight if self.weight else 0.0

    def add(self, gain: float) -> None:
        self.gain, self.weight = RECENT * self.gain + gain, RECENT * self.weight + 1


class TreeController:
    """Decides between trees and chains, and limits trees, for all clips of one loop.

    Args:
        prices: of passes.
    """

    def __init__(self, prices: TokenPrices) -> None:
        self.prices = prices
        self.calibration = DraftCalibration()
        self._tree_gains: dict[int, _TreeGain] = {}
        self._own = 0.0

    def add_host_time(self, seconds: float) -> None:
        """Add the host time that a clip takes per pass of its tree."""
        self._own = RECENT * self._own + (1 - RECENT) * seconds if self._own else seconds

    @property
    def tried(self) -> bool:
        """True if any clip's drafter grows trees."""
        return bool(self._tree_gains)

    @property
    def _tree_gain(self) -> _TreeGain:
        return self._tree_gains.setdefault(self.prices.clips.bit_length(), _TreeGain())

    def rest(self) -> bool:
        """Return True if the next window is a chain, whatever rows cost."""
        standing = self._tree_gain
        return not standing.trees and not standing.trial.is_due(self.prices.rounds)

    def budget(self, window: DraftWindow, gamma: int) -> TreeBudget:
        """Return the limits of a clip's next window, at most ``gamma`` deep.

        A width of 1 means a chain, whose length the window controller chooses.
        """
        now, standing = self.prices.rounds, self._tree_gain
        trial, wide = standing.trial, self.affordable(gamma)
        assert trial.due is not None
        if wide.width == 1:
            if trial.is_due(now):
                trial.due = now + REST
            return wide
        trials = TRIALS if window.chosen else 1
        tried = now >= trial.due + trials
        if tried and not standing.weight:
            trial.due = now
        elif tried or (standing.trees and standing.mean < 0):
            tokens = max(1.0, chain_tokens(window.beta, window.chosen))
            before = standing.trees
            standing.trees = standing.mean > (0.0 if standing.trees else SLACK * tokens)
            if standing.trees != before:
                trial.end()
            trial.postpone(now, trials * abs(standing.mean) / (TREE_TRIAL_SHARE * tokens))
        trying = trial.due <= now < trial.due + (1 if standing.trees else trials)
        return wide if standing.trees != trying else CHAIN

    def affordable(self, gamma: int) -> TreeBudget:
        """Return the widest tree that could be worth its time; a chain until the cost of rows is known.

        All nodes of a level are worth less than one token together, and the child of rank r is right in at most one of
        r + 1 cases. The cost of many more rows than were measured is unknown.
        """
        depth, prices = min(gamma, DEEPEST), self.prices.row_prices(MOST)
        if not prices or depth < 1:
            return CHAIN
        most = min(MOST, math.ceil(WIDER * self.prices.costs["target"].widest(self.prices.clips)))
        nodes = max(1, *(count for count in range(most + 1) if prices[count] < depth))
        row = min(prices[count] - prices[count - 1] for count in range(1, nodes + 1))
        width = max(rank + 1 for rank in range(WIDEST) if rank == 0 or row * (rank + 1) < 1)
        return TreeBudget(depth, min(width, nodes), nodes)

    def growth(self, window: DraftWindow, budget: TreeBudget) -> GrowingTree:
        """Return a new tree for one clip."""
        prices = self.prices
        own = prices.of_seconds(self._own)
        levels = [0.0, *(prices.of_pass("tree", rows) + own for rows in range(1, WIDEST + 1))]
        return GrowingTree(self.calibration, budget, prices.row_prices(MOST), levels, window.beta)

    def add_tree(self, growth: GrowingTree, gamma: int, accepted: int) -> None:
        """Add a verified tree: its gain over the clip's chain.

        Where a chain would rest only accepted tokens count: the probabilities of such a draft are too optimistic.

        Args:
            growth: the tree.
            gamma: the chain's window.
            accepted: tokens of the tree.
        """
        gain = (growth.expected if gamma else accepted) - growth.cost
        chain = growth.as_chain(gamma) - growth.prices[gamma] - gamma * self.prices.of_pass("draft", 1)
        self._tree_gain.add(gain - chain)
