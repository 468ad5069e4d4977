"""From logits to a token: greedy, or by temperature and top-p. Pure functions of tensors and a generator."""

from __future__ import annotations

from dataclasses import dataclass

import torch

__all__ = ["Sampling", "draw"]


@dataclass(frozen=True)
class Sampling:
    """How tokens are chosen; ``temperature`` 0 is greedy and ignores ``top_p``."""

    temperature: float = 0.0
    top_p: float = 1.0

    @property
    def greedy(self) -> bool:
        return self.temperature == 0

    def distribution(self, logits: torch.Tensor) -> torch.Tensor:
        """Probabilities (n, V) float32 of logits (n, V): temperature first, then the smallest set that reaches top-p.

        Greedy sampling gives one-hot rows.
        """
        scores = logits.float()
        if self.greedy:
            return torch.zeros_like(scores).scatter_(-1, scores.argmax(-1, keepdim=True), 1.0)
        return self.nucleus((scores / self.temperature).softmax(-1))

    def nucleus(self, probs: torch.Tensor) -> torch.Tensor:
        """Probabilities (n, V) cut to the smallest sets that reach top-p, renormalised."""
        if self.top_p < 1:
            ordered, index = probs.sort(dim=-1, descending=True, stable=True)
            before = ordered.cumsum(-1) - ordered
            ordered = ordered.masked_fill(before >= self.top_p, 0.0)
            probs = torch.zeros_like(probs).scatter_(-1, index, ordered)
            probs = probs / probs.sum(-1, keepdim=True)
        return probs


def draw(probs: torch.Tensor, rng: torch.Generator) -> int:
    """One index drawn from probabilities (V,); ``rng`` lives on the CPU so that seeds mean the same on all devices."""
    return int(torch.multinomial(probs.float().cpu(), 1, generator=rng))
