"""Static draft trees (SD-Tree and SpecVLM): the best children of each node, one pass per level."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import TYPE_CHECKING, TypeAlias

from vidspec.drafting.base import Draft, Drafter
from vidspec.drafting.chain import greedy_chain
from vidspec.drafting.static_tree import TreePath
from vidspec.engine.forward import Engine
from vidspec.engine.requests import Forward, StaticTree, Steps
from vidspec.engine.rows import HeadState, PassResult, Rows
from vidspec.engine.slab import KVSpan

if TYPE_CHECKING:
    import torch

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
