"""A chain of tokens, one pass of the drafting model each, over a prompt that has been read."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from vidspec.drafting.base import Draft
from vidspec.engine.forward import Engine, State
from vidspec.engine.kv_cache import KVCache
from vidspec.engine.sampling import Sampling, draw

__all__ = ["Chain", "ChainDrafter"]


class Chain:
    """What every drafter of chains keeps count of: which of the emitted tokens its cache holds.

    Args:
        cache: of the prompt; windows are read behind it.
    """

    def __init__(self, cache: KVCache) -> None:
        self.cache = cache
        self.forwards = 0
        self._committed = cache.length  # cache entries that belong to emitted text
        self._unread: list[int] = []  # emitted tokens the draft has not read yet: one, or two after a full window
        self._window: tuple[int, ...] = ()

    def begin(self, token: int) -> None:
        self._unread = [token]

    def commit(self, path: Sequence[int], token: int) -> None:
        if not self._window:  # nothing was read either
            self._unread = [*self._unread, token]
            return
        accepted = len(path)
        base = self._committed + len(self._unread)
        self.cache.rollback(min(base + accepted, self.cache.length))
        self._committed = self.cache.length
        read = self._committed - base
        self._unread = [*self._window[read:accepted], token]
        self._window = ()


class ChainDrafter(Chain):
    """Greedy or sampled chain.

    Args:
        engine: the drafting model.
        state: its prefilled prompt.
        sampling: how tokens are chosen; sampled windows carry their distributions.
        rng: CPU generator.
    """

    def __init__(self, engine: Engine, state: State, sampling: Sampling, rng: torch.Generator) -> None:
        super().__init__(state.cache)
        self.engine, self.state, self.sampling, self.rng = engine, state, sampling, rng

    def follow(self, token_ids: Sequence[int]) -> torch.Tensor:
        """Read emitted tokens from the first on in one pass, instead of ``begin``; the last is left for the window.

        Returns:
            logits (len(token_ids) - 1, V): what it would have proposed behind each of the others.
        """
        logits = self.engine.forward(self.state, list(token_ids[:-1])).logits
        self.forwards += 1
        self._committed = self.cache.length
        self.begin(token_ids[-1])
        return logits

    def propose(self, gamma: int) -> Draft:
        tokens: list[int] = []
        probs: list[torch.Tensor] = []
        fed = self._unread
        for _ in range(gamma):
            logits = self.engine.forward(self.state, fed).logits[-1:]
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
