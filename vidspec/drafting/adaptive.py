"""Adaptive trees, wide where the draft is unsure and deep where it is sure (EAGLE-2), or chains where they gain more.

Growth is decided by :mod:`vidspec.draft_length.trees`, from measured times and the draft's own probabilities.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import takewhile

from vidspec.draft_length.pace import WindowController
from vidspec.draft_length.trees import GrowingTree, TreeBudget
from vidspec.draft_length.window import DraftWindow
from vidspec.drafting.base import Draft
from vidspec.drafting.tree import TreeDrafter
from vidspec.engine.forward import Engine
from vidspec.engine.requests import Steps
from vidspec.engine.rows import PassResult
from vidspec.engine.slab import KVSpan


class AdaptiveDrafter(TreeDrafter):
    """Greedy tree of variable shape; nodes are proposed in the order of their scores, parents before children.

    Args:
        engine: the drafting model.
        span: the prompt it has read.
    """

    paces = True

    def __init__(self, engine: Engine, span: KVSpan) -> None:
        super().__init__(engine, span, ())
        self._start()

    def _start(self) -> None:
        self.set_pace(pace := WindowController(), pace.window())  # default, replaced by the loop's
        self._growth: GrowingTree | None = None
        self._tokens: list[int] = []  # all nodes of the tree
        self._kept: list[int] = []  # indices of the proposed nodes
        self._chain = 0  # length of a chain in place of the tree

    def set_pace(self, pace: WindowController, window: DraftWindow) -> None:
        self.trees, self.window = pace.trees, window

    def rest(self) -> bool:
        return self.trees.rest() and self.window.rest()

    def propose(self, gamma: int) -> Steps[Draft]:
        self._growth, self._draft = None, Draft((), ())
        if gamma > 0 and (budget := self.trees.budget(self.window, gamma)).width > 1:
            yield from self._grow(budget)
        elif (length := min(self.window.gamma, gamma)) > 0:
            self._draft = yield from self._propose_chain(length)
        else:
            self.declined += gamma > 0
        return self._draft

    def _grow(self, budget: TreeBudget) -> Steps[None]:
        growth = self._growth = self.trees.growth(self.window, budget)
        self._tokens, self._entry = [], {}
        read: list[int] = []
        frontier = [-1]
        while frontier:
            best = yield from self._forward(frontier, read, self._tokens, growth.parents, budget.width)
            begun = time.perf_counter()
            for node, (tokens, probabilities) in zip(frontier, best, strict=True):
                growth.add_children(node, probabilities)
                self._tokens += tokens
            frontier = growth.next_nodes()
            self.trees.add_host_time(time.perf_counter() - begun)
        self._kept, self._chain = growth.best_nodes(), self.window.chosen
        number = {-1: -1, **{node: index for index, node in enumerate(self._kept)}}
        self._entry = {number[node]: entry for node, entry in self._entry.items() if node in number}
        self._draft = Draft(
            tuple(self._tokens[node] for node in self._kept),
            tuple(number[growth.parents[node]] for node in self._kept),
        )

    def read(self, tokens: Sequence[int], passed: PassResult) -> None:
        if self._growth is None:
            self.window.update(len(self._draft.tokens), len(passed.path))
        else:
            self._record_verdict(self._growth, [self._kept[node] for node in passed.path], tokens)
            self._growth = None
        super().read(tokens, passed)

    def _record_verdict(self, growth: GrowingTree, path: Sequence[int], emitted: Sequence[int]) -> None:
        """Update calibration and the tree's gain; ``path`` are the accepted nodes, in the order of growth."""
        self.trees.add_tree(growth, self._chain, len(path))
        for node, right in zip((-1, *path), emitted, strict=True):
            for child in growth.children.get(node, ()):
                self.trees.calibration.update(growth.probabilities[child], self._tokens[child] == right)
        best: list[int] = []  # the chain in the tree
        kept, node = set(self._kept), -1
        while node in growth.children and growth.children[node][0] in kept:
            node = growth.children[node][0]
            best.append(node)
        along = sum(1 for _ in takewhile(lambda both: both[0] == both[1], zip(best, path, strict=False)))
        self.window.update(len(best), along, len(path) - along)
