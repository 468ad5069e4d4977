"""Draft trees of a model or a head, one pass per level: static ones (SD-Tree and SpecVLM) and adaptive ones (EAGLE-2).

Adaptive growth is decided by :mod:`vidspec.draft_length.trees`, from measured times and the draft's own probabilities.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from itertools import chain, takewhile
from typing import TYPE_CHECKING, TypeAlias

import torch

from vidspec.draft_length.pace import WindowController
from vidspec.draft_length.trees import GrowingTree, TreeBudget
from vidspec.draft_length.window import DraftWindow
from vidspec.drafting.base import Draft, Drafter
from vidspec.drafting.chain import greedy_chain
from vidspec.drafting.static_tree import TreePath, parse_tree
from vidspec.engine.forward import Engine
from vidspec.engine.requests import Forward, StaticTree, Steps
from vidspec.engine.rows import HeadState, PassResult, Rows
from vidspec.engine.slab import KVSpan

if TYPE_CHECKING:
    import torch

    from vidspec.config.part_sections import DraftSection
    from vidspec.models.head import Head

#: The likeliest tokens of each row of a pass, and their probabilities.
Best: TypeAlias = Sequence[tuple[Sequence[int], Sequence[float]]]


class TreeDrafter(Drafter):
    """Greedy tree. The KV cache keeps the committed path and drops side branches.

    Args:
        engine: the drafting model.
        span: the prompt it has read.
        nodes: see :func:`parse_tree`.
    """

    _ids: torch.Tensor | None = None  # of a head, see Chain
    _states: Sequence[HeadState] = ()

    def __init__(self, engine: Engine, span: KVSpan, nodes: Sequence[TreePath]) -> None:
        self.engine, self.span = engine, span
        self.spans = (span,)
        self._nodes = tuple(nodes)
        self._base = span.length  # cache entries that belong to emitted text
        self._unread: list[int] = []  # emitted tokens not read yet
        self._draft = Draft((), ())
        self._entry: dict[int, int] = {}  # by read node, the offset of its cache entry from the base

    def begin(self, token: int) -> None:
        self._unread = [token]

    def propose(self, gamma: int) -> Steps[Draft]:
        nodes = [node for node in self._nodes if len(node) <= gamma]
        self._entry, self._draft = {}, Draft((), ())
        if not nodes:
            return self._draft
        number = {node: index for index, node in enumerate(nodes)}
        parents = tuple(number[node[:-1]] if len(node) > 1 else -1 for node in nodes)
        ranks = [node[-1] for node in nodes]
        given = self.engine, self.span, self._unread, parents, ranks
        tree = StaticTree(*given, history=self.history, states=self._states, ids=self._ids)
        base = self.span.length + len(self._unread)
        tokens = yield tree
        self.forwards += len(tree.levels)
        self._base = base
        self._entry = {node: entry for entry, node in enumerate(chain.from_iterable(tree.levels[1:]))}
        self._draft = Draft(tuple(tokens), parents)
        return self._draft

    def _forward(
        self, frontier: list[int], read: list[int], tokens: list[int], parents: Sequence[int], width: int
    ) -> Steps[Best]:
        """Return the likeliest tokens after each node of the frontier; -1 is the last emitted token."""
        self.forwards += 1
        processor = None
        if self.history is not None:
            paths = (*Draft(tuple(tokens), tuple(parents)).paths, ())  # -1 is the last
            processor = self.history.changes_for_paths([paths[node] for node in frontier], self._ids)
        if frontier == [-1]:
            rows = Rows(self.span, self._unread, top=width, processor=processor)
            passed = yield from self._run(rows, frontier, parents)
            self._base = self.span.length
            return passed.top[-1:]
        for node in frontier:
            self._entry[node] = len(read)
            read.append(node)
        above = [self._entry[parents[node]] if parents[node] >= 0 else -1 for node in read]
        rows = Rows(self.span, [tokens[node] for node in frontier], above, top=width, processor=processor)
        return (yield from self._run(rows, frontier, parents)).top

    def _run(self, rows: Rows, frontier: Sequence[int], parents: Sequence[int]) -> Steps[PassResult]:
        """Run the rows that end with these nodes."""
        (passed,) = yield Forward(self.engine, [rows], "draft", grows=True)
        return passed  # type: ignore[no-any-return]

    def _propose_chain(self, length: int) -> Steps[Draft]:
        given = self.engine, self.span, self._unread, length, self.history
        tokens = yield from greedy_chain(*given, states=self._states, ids=self._ids)
        self.forwards += length
        self._base = self.span.length - (length - 1)
        self._entry = {node: node for node in range(length - 1)}
        return Draft.chain(tokens)

    def read(self, tokens: Sequence[int], passed: PassResult) -> None:
        if self.span.is_follower():  # the target's own entries, which hold all but the last token now
            self._unread, self._draft = [tokens[-1]], Draft((), ())
            return
        if not self._draft.tokens:  # nothing was read either
            self._unread = [*self._unread, *tokens]
            return
        kept = [self._entry[node] for node in passed.path if node in self._entry]
        if kept == list(range(len(kept))):
            self.span.rollback(self._base + len(kept))
        else:
            self.span.gather(self._base, kept)
        self._base += len(kept)
        self._unread, self._draft = [*tokens[len(kept) :]], Draft((), ())


class AdaptiveDrafter(TreeDrafter):
    """Greedy tree, wide where the draft is unsure and deep where it is sure, or a chain where that gains more.

    Nodes are proposed in the order of their scores, parents before children.

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


class HeadTree(TreeDrafter):
    """Greedy tree of a head. Its cache keeps pairs with the target's states: it reads accepted tokens again with them.

    Args:
        engine: the head's engine.
        span: its entries for all pairs of the prompt but the last, which needs the target's first token.
        nodes: see :class:`~vidspec.drafting.tree.TreeDrafter`.
        states: (1, width) the target's states at the prompt's last row, concatenated over tapped blocks.
    """

    def __init__(self, engine: Engine[Head], span: KVSpan, nodes: Sequence[TreePath], states: torch.Tensor) -> None:
        super().__init__(engine, span, nodes)
        self._take_head(engine.model, states)

    def _take_head(self, head: Head, states: torch.Tensor) -> None:
        self.tapped, self._ids = head.blocks, head.tokens
        self._states = [HeadState(states, 0)]  # before each unread token
        self._own: dict[int, HeadState] = {}  # after each node of the tree; -1 is the last emitted token

    def read(self, tokens: Sequence[int], passed: PassResult) -> None:
        if passed.tapped is None:
            raise ValueError("the target's states of the last window are needed")
        states = [HeadState(passed.tapped, row) for row in passed.emitted_rows]
        if self._draft.tokens:
            self.span.rollback(self._base)
            self._unread, self._states = [*tokens], states
        else:  # nothing drafted: unread pairs stay unread
            self._unread, self._states = [*self._unread, *tokens], [*self._states, *states]
        self._draft, self._own = Draft((), ()), {}

    def _run(self, rows: Rows, frontier: Sequence[int], parents: Sequence[int]) -> Steps[PassResult]:
        first = list(frontier) == [-1]
        states = self._states if first else [self._own[parents[node]] for node in frontier]
        rows = replace(rows, head_states=states, tapped=(self.engine.model.decoder.depth,))
        passed = yield from super()._run(rows, frontier, parents)
        after = passed.own_states[-len(frontier) :]
        self._own |= dict(zip(frontier, after, strict=True))
        return passed


class HeadChain(HeadTree):
    """Greedy chain of a head."""

    def propose(self, gamma: int) -> Steps[Draft]:
        if gamma:
            self._draft = yield from self._propose_chain(gamma)
        return self._draft


class HeadAdaptive(AdaptiveDrafter, HeadTree):
    """Adaptive tree or chain of a head."""

    def __init__(self, engine: Engine[Head], span: KVSpan, states: torch.Tensor) -> None:
        TreeDrafter.__init__(self, engine, span, ())
        self._start()
        self._take_head(engine.model, states)


def head_drafter(wanted: DraftSection, engine: Engine[Head], span: KVSpan, states: torch.Tensor) -> HeadTree:
    """Return the drafter of the wanted topology; see :class:`HeadTree`."""
    if wanted.topology == "adaptive":
        return HeadAdaptive(engine, span, states)
    if wanted.topology == "tree":
        return HeadTree(engine, span, parse_tree(wanted.tree), states)
    return HeadChain(engine, span, (), states)
