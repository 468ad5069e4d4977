"""Exact verification: greedy token by token, sampled by rejection (Leviathan et al. 2023; Chen et al. 2023)."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from vidspec.acceptance.base import Verdict
from vidspec.registry import rules

if TYPE_CHECKING:
    import torch

    from vidspec.drafting.base import Draft
    from vidspec.engine.rows import PassResult


@rules.register("exact")
class ExactRule:
    """Greedy: output equals the target's own argmax sequence. Sampled: output has the target's own distribution.

    It follows the target's choice at each node down the window, a chain or a tree, as long as a child equals it. A
    choice is the argmax; or a draw from p, which is the exact rule for tokens that were drafted greedily: for one child
    it accepts x with probability p(x) and else gives p without x, renormalised; or, where the draft drew x ~ q, x by
    rejection sampling (:func:`~vidspec.engine.sampling.choose_tokens`), done in the pass for all clips. Each emitted
    token takes one random number, wherever windows end: if the draft draws none, a seed gives plain decoding's text.
    """

    lossless: ClassVar[bool] = True
    draws: ClassVar[bool] = True
    accepts_unverified: ClassVar[float] = 0.0

    def __call__(self, draft: Draft, passed: PassResult, rng: torch.Generator) -> Verdict:
        if draft.is_chain:  # without a search for children, of which there are as many as clips times nodes
            accepted = 0
            while accepted < len(draft.tokens) and draft.tokens[accepted] == passed.chosen[accepted]:
                accepted += 1
            return Verdict.chain(accepted, passed.chosen[accepted])
        path: list[int] = []
        node = -1
        while True:
            token = passed.chosen[node + 1]
            node = next((child for child in draft.children(node) if draft.tokens[child] == token), -1)
            if node < 0:
                return Verdict(tuple(path), token)
            path.append(node)
