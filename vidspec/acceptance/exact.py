"""Exact verification: greedy token by token, sampled by rejection (Leviathan et al. 2023; Chen et al. 2023)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, ClassVar

from vidspec.acceptance.base import Verdict
from vidspec.drafting.base import Draft
from vidspec.registry import rules

if TYPE_CHECKING:
    import torch

    from vidspec.engine.sampling import Sampling


@rules.register("exact")
class Exact:
    """Greedy: output equals the target's own argmax sequence. Sampled: output has the target's own distribution."""

    lossless: ClassVar[bool] = True
    draws: ClassVar[bool] = True
    unjudged: ClassVar[float] = 0.0

    def __init__(self, sampling: Sampling) -> None:
        self.sampling = sampling

    def __call__(
        self, draft: Draft, target_logits: torch.Tensor, hidden: torch.Tensor | None, rng: torch.Generator
    ) -> Verdict:
        from vidspec.engine.sampling import draw

        if self.sampling.greedy:
            choices = target_logits.argmax(-1).tolist()
            return _walk(draft, choices.__getitem__)
        p = self.sampling.distribution(target_logits).cpu()
        if draft.is_chain and draft.probs is not None:
            return _sampled(draft.tokens, draft.probs.cpu(), p, rng)
        return _walk(draft, lambda row: draw(p[row], rng))


def _walk(draft: Draft, choose: Callable[[int], int]) -> Verdict:
    """Follow the target's own choices down the window, a chain or a tree, as long as a child equals them.

    Sampled choices are draws from p at each node. As the draft's tokens are chosen greedily, this is the exact rule:
    for one child it accepts x with probability p(x) and else gives p without x, renormalised. It takes one draw for
    each emitted token, wherever windows end, as plain decoding does: the same seed gives the same text.
    """
    path: list[int] = []
    node = -1
    while True:
        token = choose(node + 1)
        node = next((child for child in draft.children(node) if draft.tokens[child] == token), -1)
        if node < 0:
            return Verdict(tuple(path), token)
        path.append(node)


def _sampled(tokens: tuple[int, ...], drafted: torch.Tensor, p: torch.Tensor, rng: torch.Generator) -> Verdict:
    """Accept x ~ q with probability min(1, p(x) / q(x)); else draw from norm(max(0, p - q)); bonus from p.

    ``drafted`` (gamma, V) holds the q of each token.
    """
    import torch

    from vidspec.engine.sampling import draw

    for i, x in enumerate(tokens):
        q = drafted[i]
        if torch.rand((), generator=rng) * q[x] < p[i, x]:
            continue
        residual = (p[i] - q).clamp_(min=0)
        # Rounding can leave nothing of a residual that should be tiny; p itself is then the same distribution.
        return Verdict.chain(i, draw(residual if residual.sum() > 0 else p[i], rng))
    return Verdict.chain(len(tokens), draw(p[-1], rng))
