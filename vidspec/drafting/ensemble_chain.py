"""Chains drawn from the mean distribution of one model in several contexts (TABED 5)."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from vidspec.drafting.base import Draft
from vidspec.drafting.chain import ChainWindows, chain_by_passes
from vidspec.drafting.ensemble_weights import ContextErrors, equal_weights, mix_distributions
from vidspec.engine.forward import Engine
from vidspec.engine.requests import Steps
from vidspec.engine.rows import PassResult, Rows
from vidspec.engine.sampling import Sampling, draw_token
from vidspec.engine.slab import KVSpan


class EnsembleChain(ChainWindows):
    """A chain drawn from a mixture with equal weights (MT, MTCP).

    The mixed distributions have the sampling's temperature (1 if it is greedy) and all tokens; top-p cuts the mixture.
    Greedy windows take its argmax, sampled ones carry the distributions they were drawn from.

    Args:
        engine: the draft model, which reads all contexts in one pass.
        spans: the contexts' prompts, which have been read.
        sampling: how tokens are chosen.
        rng: CPU generator.
    """

    def __init__(self, engine: Engine, spans: Sequence[KVSpan], sampling: Sampling, rng: torch.Generator) -> None:
        super().__init__(spans)
        self.engine, self.sampling, self.rng = engine, sampling, rng
        self.contexts = len(self.spans)
        self._soften = Sampling(1.0 if sampling.greedy else sampling.temperature)

    def propose(self, gamma: int) -> Steps[Draft]:
        probs: list[torch.Tensor] = []
        weights: tuple[float, ...] = ()

        def rows(drafted: list[int]) -> Sequence[Rows]:
            processor, unread = None, self._unread
            if self.history is not None and drafted:
                processor = self.history.changes_for_paths([drafted])
            elif self.history is not None:
                processor = self.history.changes_for_unread(unread)
            return [Rows(span, drafted[-1:] or unread, processor=processor) for span in self.spans]

        def choose(passed: Sequence[PassResult]) -> int:
            nonlocal weights
            each = self._soften.distribution(torch.stack([one.logits for one in passed], dim=1))  # (n, m, V)
            self.forwards += 1
            self._store_distributions(each)
            weights = weights or self._weights()  # those before the window
            mixed = mix_distributions(weights, each[-1])
            if self.sampling.greedy:
                return int(mixed.argmax())
            q = self.sampling.nucleus(mixed[None])[0]
            probs.append(q)
            return draw_token(q, self.rng)

        tokens = yield from chain_by_passes(self.engine, gamma, rows, choose)
        self._window = tuple(tokens)
        return Draft.chain(tokens, torch.stack(probs) if probs else None, weights)

    def _store_distributions(self, each: torch.Tensor) -> None:
        """Store the distributions (n, m, V) after the n tokens just read."""

    def _weights(self) -> tuple[float, ...]:
        """Return the context weights of the next window."""
        return equal_weights(self.contexts)


class AdaptiveEnsembleChain(EnsembleChain):
    """A chain whose weights follow each context's divergence from the target at verified positions (MT*, MTCP*).

    Args:
        engine, spans, sampling, rng: as for :class:`EnsembleChain`.
        evidence: the rule and its measurements.
    """

    def __init__(
        self,
        engine: Engine,
        spans: Sequence[KVSpan],
        sampling: Sampling,
        rng: torch.Generator,
        evidence: ContextErrors,
    ) -> None:
        super().__init__(engine, spans, sampling, rng)
        self.evidence = evidence
        self._rows: list[torch.Tensor] = []  # (m, V) at each position of the window
        #: The target's distribution (V,) and the emitted token, at positions that no context has read yet.
        self._labels: list[tuple[torch.Tensor, int]] = []

    def read(self, tokens: Sequence[int], passed: PassResult) -> None:
        device = self._rows[0].device if self._rows else passed.logits.device
        soft = self._soften.distribution(passed.logits[list(passed.emitted_rows)]).to(device)
        labels = list(zip(soft, tokens, strict=True))
        for (p, emitted), q in zip(labels, self._rows, strict=False):
            self.evidence.add(p, q, emitted)
        self._labels += labels[len(self._rows) :]  # after a window accepted whole
        self._rows = []
        super().read(tokens, passed)

    def _store_distributions(self, each: torch.Tensor) -> None:
        *late, row = each
        if late:  # a bonus, verified before any context read that far
            for (p, emitted), q in zip(self._labels, late, strict=True):
                self.evidence.add(p.to(q.device), q, emitted)
            self._labels = []
        self._rows.append(row)

    def _weights(self) -> tuple[float, ...]:
        return self.evidence.weights()
