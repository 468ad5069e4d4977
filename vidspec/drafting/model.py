"""A smaller model of the target's family drafts a chain (Std-SD; SpecVLM 4, ParallelVLM 4)."""

from __future__ import annotations

import torch

from vidspec.drafting.base import Draft
from vidspec.engine.forward import Engine, State
from vidspec.engine.sampling import Sampling, draw
from vidspec.registry import drafters


@drafters.register("model")
class ModelDrafter:
    """Greedy or sampled chain over the draft's own (pruned) prompt.

    Args:
        engine: the draft model.
        state: its prefilled prompt.
        sampling: how tokens are chosen; sampled windows carry their distributions.
        rng: CPU generator.
    """

    def __init__(self, engine: Engine, state: State, sampling: Sampling, rng: torch.Generator) -> None:
        self.engine, self.state, self.sampling, self.rng = engine, state, sampling, rng
        self.forwards = 0
        self._committed = state.length  # cache entries that belong to emitted text
        self._unread: list[int] = []  # emitted tokens the draft has not read yet: one, or two after a full window
        self._window: tuple[int, ...] = ()

    def begin(self, token: int) -> None:
        self._unread = [token]

    def propose(self, gamma: int) -> Draft:
        tokens: list[int] = []
        probs: list[torch.Tensor] = []
        fed = self._unread
        for _ in range(gamma):
            logits = self.engine.forward(self.state, fed)[-1:]
            self.forwards += 1
            if self.sampling.greedy:
                token = int(logits.argmax())
            else:
                q = self.sampling.distribution(logits)[0].cpu()
                probs.append(q)
                token = draw(q, self.rng)
            tokens.append(token)
            fed = [token]
        self._window = tuple(tokens)
        return Draft(self._window, tuple(range(-1, gamma - 1)), torch.stack(probs) if probs else None)

    def commit(self, accepted: int, correction: int) -> None:
        if not self._window:  # nothing was read either
            self._unread = [*self._unread, correction]
            return
        base = self._committed + len(self._unread)
        self.state.cache.rollback(min(base + accepted, self.state.length))
        self._committed = self.state.length
        read = self._committed - base
        self._unread = [*self._window[read:accepted], correction]
        self._window = ()
