"""Exact verification: greedy token by token, sampled by rejection (Leviathan et al. 2023; Chen et al. 2023)."""

from __future__ import annotations

from typing import ClassVar

import torch

from vidspec.acceptance.base import Verdict
from vidspec.drafting.base import Draft
from vidspec.engine.sampling import Sampling, draw
from vidspec.registry import rules


@rules.register("exact")
class Exact:
    """Greedy: output equals the target's own argmax sequence. Sampled: output has the target's own distribution."""

    lossless: ClassVar[bool] = True

    def __init__(self, sampling: Sampling) -> None:
        self.sampling = sampling

    def __call__(
        self, draft: Draft, target_logits: torch.Tensor, hidden: torch.Tensor | None, rng: torch.Generator
    ) -> Verdict:
        if self.sampling.greedy:
            return _greedy(draft.tokens, target_logits.argmax(-1).tolist())
        return _sampled(draft, self.sampling.distribution(target_logits).cpu(), rng)


def _greedy(tokens: tuple[int, ...], choices: list[int]) -> Verdict:
    """Accept while a drafted token equals the target's argmax; then the argmax itself."""
    accepted = 0
    while accepted < len(tokens) and tokens[accepted] == choices[accepted]:
        accepted += 1
    return Verdict(accepted, choices[accepted])


def _sampled(draft: Draft, p: torch.Tensor, rng: torch.Generator) -> Verdict:
    """Accept x ~ q with probability min(1, p(x) / q(x)); else draw from norm(max(0, p - q)); bonus from p.

    A draft without distributions was chosen greedily: q is one-hot, so x is accepted with probability p(x) and the
    residual is p without x.
    """
    for i, x in enumerate(draft.tokens):
        q = torch.zeros_like(p[i]).index_fill_(0, torch.tensor(x), 1.0) if draft.probs is None else draft.probs[i].cpu()
        if torch.rand((), generator=rng) * q[x] < p[i, x]:
            continue
        residual = (p[i] - q).clamp_(min=0)
        # Rounding can leave nothing of a residual that should be tiny; p itself is then the same distribution.
        return Verdict(i, draw(residual if residual.sum() > 0 else p[i], rng))
    return Verdict(len(draft.tokens), draw(p[-1], rng))
