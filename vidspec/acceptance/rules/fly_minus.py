"""Accepts any mismatch at which the target is unsure: FLy's entropy gate alone (a baseline of LVSpec 4)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated

from vidspec.acceptance.base import rules
from vidspec.acceptance.loose import LooseRule, WindowBranch
from vidspec.events.events import LooseToken
from vidspec.registry import key

if TYPE_CHECKING:
    import torch

    from vidspec.drafting.base import Draft
    from vidspec.engine.rows import PassResult
    from vidspec.engine.sampling import Sampling

Theta = Annotated[float, key("the entropy in nats from which a mismatch may pass", ge=0, allow_inf_nan=False)]
#: Number of likeliest tokens that the entropy sums over.
LIKELIEST = 3


@rules.register("fly_minus")
class FlyMinusRule(LooseRule):
    """The entropy gate of FLy.

    With p the target's distribution at the position of a drafted token, softmax over the whole vocabulary::

        H_i = - sum over the three largest p of p ln p     (nats; p is not renormalised)
        accept d_i  if  d_i = t_i  or  H_i >= theta

    Args:
        sampling, eos, protected: see :class:`LooseRule`.
    """

    def __init__(
        self,
        sampling: Sampling,
        eos: frozenset[int] = frozenset(),
        protected: frozenset[int] = frozenset(),
        theta: Theta = 0.3,
    ) -> None:
        super().__init__(sampling, eos, protected)
        self.theta = theta

    def measure(self, draft: Draft, passed: PassResult, rng: torch.Generator) -> Sequence[float]:
        """Return the entropy at the position of each drafted token, of the distribution after its parent."""
        import torch

        logits = passed.logits
        places = torch.tensor([parent + 1 for parent in draft.parents], device=logits.device)
        probs = logits.float().softmax(-1).topk(min(LIKELIEST, logits.shape[-1]), dim=-1).values
        return torch.special.entr(probs).sum(-1)[places].tolist()  # type: ignore[no-any-return]

    def accepted_mismatches(self, branch: WindowBranch) -> Mapping[int, LooseToken]:
        entropy = branch.measured
        return {
            i: LooseToken(i, branch.wanted[i], "entropy", entropy=entropy[i])
            for i in branch.mismatches
            if entropy[i] >= self.theta
        }
