"""Windows of a head: a chain, a static tree or an adaptive one, after pairs that the target has verified."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from vidspec.drafting.adaptive import AdaptiveDrafter
from vidspec.drafting.base import Draft
from vidspec.drafting.static_tree import TreePath, parse_tree
from vidspec.drafting.tree import TreeDrafter
from vidspec.engine.forward import Engine
from vidspec.engine.requests import Steps
from vidspec.engine.rows import HeadState, PassResult, Rows
from vidspec.engine.slab import KVSpan

if TYPE_CHECKING:
    from vidspec.config.part_sections import DraftSection
    from vidspec.models.head import Head


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
