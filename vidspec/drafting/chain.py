"""Chains of draft tokens, one pass of the drafting model each, over a prompt that has been read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch

from vidspec.drafting.base import Draft, Drafter
from vidspec.engine.forward import Engine
from vidspec.engine.graphs.step import MOST
from vidspec.engine.requests import Chain, Forward, Steps
from vidspec.engine.rows import HeadState, PassResult, Rows
from vidspec.engine.sampling import Sampling, UniformNumbers
from vidspec.engine.slab import KVSpan

if TYPE_CHECKING:
    from vidspec.engine.history import TextHistory


def greedy_chain(
    engine: Engine,
    span: KVSpan,
    unread: Sequence[int],
    gamma: int,
    history: TextHistory | None = None,
    path: Sequence[int] = (),
    states: Sequence[HeadState] = (),
    ids: torch.Tensor | None = None,
) -> Steps[list[int]]:
    """Continue a sequence by ``gamma`` tokens, at least one, in as many passes.

    After a rest the first pass reads all tokens of the rest. It is a separate request, so that its time does not count
    as that of a row.

    Args:
        engine: the drafting model.
        span: the sequence; it grows by all tokens but the last.
        unread: tokens of the text that it does not hold; two after a window that was accepted whole.
        gamma: tokens to add.
        history: penalties on them.
        path: tokens of the text that are not in ``history``.
        states, ids: of a head, see :class:`~vidspec.engine.requests.Chain`; it reads a verified window again.
    """
    if len(unread) <= (MOST if states else 2):
        whole = Chain(engine, span, unread, gamma, history=history, path=path, states=states, ids=ids)
        return (yield whole)  # type: ignore[no-any-return]
    processor = history.changes_for_paths([path], ids) if history is not None else None
    tapped = (engine.model.decoder.depth,) if states else ()
    rows = Rows(span, unread, tapped=tapped, processor=processor, head_states=states)
    (passed,) = yield Forward(engine, [rows], "draft")
    first = passed.chosen[-1]
    if gamma == 1:
        return [first]
    after, states = [*path, first], passed.own_states[-1:]
    return [
        first,
        *(yield Chain(engine, span, [first], gamma - 1, history=history, path=after, states=states, ids=ids)),
    ]


def chain_by_passes(
    engine: Engine,
    gamma: int,
    rows: Callable[[list[int]], Sequence[Rows]],
    choose: Callable[[Sequence[PassResult]], int],
) -> Steps[list[int]]:
    """Draft a chain whose next rows depend on more than the last token: each pass is read before the next.

    Args:
        engine: the drafting model.
        gamma: tokens to draft.
        rows: returns the rows of the next pass, given the drafted tokens.
        choose: returns the next token, given the results of the pass.
    """
    tokens: list[int] = []
    for _ in range(gamma):
        tokens.append(choose((yield Forward(engine, rows(tokens), "draft"))))
    return tokens


class ChainWindows(Drafter):
    """Base of chain drafters: counts the emitted tokens that its sequences hold.

    Args:
        spans: one or several prompts that have been read; windows are appended to each.
    """

    def __init__(self, spans: Sequence[KVSpan]) -> None:
        self.spans = tuple(spans)
        self._follows = spans[0].is_follower()
        self._prompts = [span.length for span in spans]
        self._committed = 0  # entries of emitted text, after the prompts
        self._unread: list[int] = []  # emitted tokens the draft has not read yet: one, or two after a full window
        self._window: tuple[int, ...] = ()

    def begin(self, token: int) -> None:
        self._unread = [token]

    def read(self, tokens: Sequence[int], passed: PassResult) -> None:
        if self._follows:  # the target's own entries, which hold all but the last token now
            self.spans[0].is_follower()
            self._unread, self._window = [tokens[-1]], ()
            return
        if not self._window:  # nothing was read either
            self._unread = [*self._unread, *tokens]
            return
        base, accepted = self._committed + len(self._unread), sum(node < len(self._window) for node in passed.path)
        self._committed = min(base + accepted, self.spans[0].length - self._prompts[0])
        for span, prompt in zip(self.spans, self._prompts, strict=True):
            span.rollback(prompt + self._committed)
        self._unread, self._window = [*tokens[self._committed - base :]], ()


class ChainDrafter(ChainWindows):
    """Greedy or sampled chain.

    Args:
        engine: the drafting model.
        span: the prompt it has read.
        sampling: how tokens are chosen; sampled windows carry their distributions.
        rng: CPU generator.
    """

    def __init__(self, engine: Engine, span: KVSpan, sampling: Sampling, rng: torch.Generator) -> None:
        super().__init__([span])
        self.engine, self.span, self.sampling = engine, span, sampling
        self._is_greedy, self._uniforms = sampling.greedy, UniformNumbers(rng)

    def propose(self, gamma: int) -> Steps[Draft]:
        tokens: list[int] = []
        probs: list[torch.Tensor] = []
        if gamma and self._is_greedy:
            tokens = yield from greedy_chain(self.engine, self.span, self._unread, gamma, self.history)
        elif gamma:
            uniforms = self._uniforms.ahead(gamma)
            self._uniforms.emitted(gamma)
            chain = Chain(
                self.engine,
                self.span,
                self._unread,
                gamma,
                history=self.history,
                sampling=self.sampling,
                uniforms=uniforms,
            )
            tokens, probs = (yield chain), chain.probs
        self.forwards += gamma
        self._window = tuple(tokens)
        return Draft.chain(tokens, (probs[0] if len(probs) == 1 else torch.cat(probs)) if probs else None)
