"""Exact verification: greedy token by token, sampled by rejection (Leviathan et al. 2023; Chen et al. 2023)."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from vidspec.acceptance.base import AcceptanceRule, Verdict, rules

if TYPE_CHECKING:
    import torch

    from vidspec.drafting.base import Draft
    from vidspec.engine.rows import PassResult


@rules.register("exact")
class ExactRule(AcceptanceRule):
    """Greedy: output equals the target's own argmax sequence. Sampled: output has the target's own distribution.

    The accepted path follows the target's choice from node to child, in a chain or a tree. The choice is the argmax in
    greedy decoding. In sampled decoding with a greedy draft it is a draw from p, which is exact: a single child x is
    accepted with probability p(x), and else the draw is from p without x, renormalised. If the draft drew x ~ q, it is
    the outcome of rejection sampling (:func:`~vidspec.engine.sampling.choose_tokens`), done in the pass for all clips.

    Each emitted token takes one random number, wherever windows end: if the draft draws none, a seed gives plain
    decoding's text.
    """

    lossless: ClassVar[bool] = True
    draws: ClassVar[bool] = True

    def __call__(self, draft: Draft, passed: PassResult, rng: torch.Generator) -> Verdict:
        if draft.is_chain:  # no search for children: it would cost clips times nodes
            accepted = 0
            while accepted < len(draft.tokens) and draft.tokens[accepted] == passed.chosen[accepted]:
                accepted += 1
            return Verdict(tuple(range(accepted)), passed.chosen[accepted])
        path: list[int] = []
        node = -1
        while True:
            token = passed.chosen[node + 1]
            node = next((child for child in draft.children(node) if draft.tokens[child] == token), -1)
            if node < 0:
                return Verdict(tuple(path), token)
            path.append(node)
