"""Weights of an ensemble's contexts from the verified positions so far (TABED 5.1, App. B).

Pure functions of tensors, and the accumulated errors they apply to; no models, no prompts.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import torch

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
