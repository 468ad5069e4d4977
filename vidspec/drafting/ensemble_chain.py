"""Chains drawn from the mean distribution of one model in several contexts, and the weights of these (TABED 5)."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import torch

from vidspec.drafting.base import Draft
from vidspec.drafting.chain import ChainWindows, chain_by_passes
from vidspec.engine.forward import Engine
from vidspec.engine.requests import Steps
from vidspec.engine.rows import PassResult, Rows
from vidspec.engine.sampling import Sampling, draw_token
from vidspec.engine.slab import KVSpan

#: Errors below this are rounding (nats, float32); contexts without error have equal weights.
FLOOR = 1e-6
#: Grid candidates mixed at once; four contexts have 286, and a vocabulary may have 152,064 entries.
CHUNK = 32


def kl_divergence(p: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    """Return D_KL(p || q) in nats, (n,), of p (V,) and q (n, V), float32, as in e_t of TABED 5.1.

    A q that is zero by rounding counts as the smallest float32. Negative results of rounding are 0.
    """
    tiny = torch.finfo(torch.float32).tiny
    return (p * (p.clamp(min=tiny).log() - q.clamp(min=tiny).log())).sum(-1).clamp(min=0)


def total_variation(p: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    """Return the total variation distance, half the sum of |p - q|: (n,) of p (V,) and q (n, V), float32."""
    return 0.5 * (p - q).abs().sum(-1)


def simplex_grid(contexts: int, steps: int = 10) -> torch.Tensor:
    """Return all context weights that are multiples of 1 / ``steps`` and sum to 1 (TABED App. B.2).

    Returns:
        (n, contexts) float64, those that favour the earlier contexts first.
    """

    def compositions(parts: int, total: int) -> list[list[int]]:
        if parts == 1:
            return [[total]]
        return [[first, *rest] for first in range(total, -1, -1) for rest in compositions(parts - 1, total - first)]

    return torch.tensor(compositions(contexts, steps), dtype=torch.float64) / steps


def grid_weights(candidates: torch.Tensor, matches: torch.Tensor, errors: torch.Tensor) -> tuple[float, ...]:
    """Return the candidate with the most top-1 matches; ties by the smallest error, then the first (MT*).

    Args:
        candidates: (n, m).
        matches: (n,) number of positions at which each mixture's argmax is the emitted token (hard labels).
        errors: (n,) float64 accumulated divergence of the target from each mixture.
    """
    best = min(range(len(candidates)), key=lambda j: (-float(matches[j]), float(errors[j]), j))
    return tuple(candidates[best].tolist())


def softmax_weights(errors: torch.Tensor) -> tuple[float, ...]:
    """Return softmax(1 / e) of accumulated errors (m,) float64, temperature 1 (MTCP*; TABED App. B.2)."""
    return tuple((1 / errors.clamp(min=FLOOR)).softmax(0).tolist())


def inverse_weights(errors: torch.Tensor) -> tuple[float, ...]:
    """Return weights proportional to 1 / e of accumulated errors (m,) float64, as in the paper's released code."""
    inverse = 1 / errors.clamp(min=FLOOR)
    return tuple((inverse / inverse.sum()).tolist())


class ContextErrors:
    """Accumulated errors of each candidate at the verified positions; stores no distributions.

    **D**: all positions of a verification pass count, including correction and bonus. The prefill's own token does not,
    so the first window has equal weights.

    Args:
        rule: ``grid``, ``softmax`` or ``inverse``; the last two rate single contexts, the grid its candidates.
        contexts: m.
        divergence: ``kl`` (of the mixture from the target) or ``tvd``.
        history: number of last positions that count; all if None.
    """

    def __init__(self, rule: str, contexts: int, divergence: str = "kl", history: int | None = None) -> None:
        self.rule, self.contexts = rule, contexts
        self.candidates = simplex_grid(contexts) if rule == "grid" else torch.eye(contexts, dtype=torch.float64)
        self._divergence = {"kl": kl_divergence, "tvd": total_variation}[divergence]
        self._seen: deque[torch.Tensor] = deque(maxlen=history)

    def add(self, p: torch.Tensor, q: torch.Tensor, emitted: int) -> None:
        """Add one verified position.

        The hard label is the emitted token (y of TABED 5.1), which is the target's argmax only in greedy decoding.

        Args:
            p: (V,) the target's distribution (a soft label), float32.
            q: (m, V) the distribution of each context, float32, on the same device.
            emitted: the emitted token.
        """
        parts: list[torch.Tensor] = []
        for some in self.candidates.to(q).split(CHUNK):
            mixed = some @ q
            parts.append(torch.stack([(mixed.argmax(-1) == emitted).to(q), self._divergence(p, mixed)], dim=-1))
        self._seen.append(torch.cat(parts).cpu().double())

    def weights(self) -> tuple[float, ...]:
        """Return the weights by the rule, over the history; equal before the first position."""
        if not self._seen:
            return equal_weights(self.contexts)
        matches, errors = torch.stack(list(self._seen)).sum(0).unbind(-1)
        if self.rule == "grid":
            return grid_weights(self.candidates, matches, errors)
        return softmax_weights(errors) if self.rule == "softmax" else inverse_weights(errors)


def equal_weights(contexts: int) -> tuple[float, ...]:
    """Return the same weight for each context (MT, MTCP; the first window of all rules)."""
    return (1 / contexts,) * contexts


def mix_distributions(weights: Sequence[float], q: torch.Tensor) -> torch.Tensor:
    """Return the (V,) weighted mean of distributions q (m, V) float32 (W-AVG of TABED, Algorithm 1)."""
    return torch.tensor(weights, dtype=q.dtype, device=q.device) @ q


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
