"""Accepts a mismatch at random: the baseline without any signal (random relaxation, LVSpec Fig. 7)."""

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


@rules.register("random_loose")
class RandomLoose(LooseRule):
    """Random relaxation::

        accept d_i  if  d_i = t_i  or  u_i < r,  u_i uniform in [0, 1)

    Each node of the window has one draw, so that branches of a tree that share the node agree.

    Args:
        sampling, eos, protected: see :class:`LooseRule`.
    """

    def __init__(
        self,
        sampling: Sampling,
        eos: frozenset[int] = frozenset(),
        protected: frozenset[int] = frozenset(),
        rate: Annotated[float, key("r, the probability that a mismatch passes", ge=0, le=1, allow_inf_nan=False)] = 0.5,
    ) -> None:
        super().__init__(sampling, eos, protected)
        self.rate = rate

    def measure(self, draft: Draft, passed: PassResult, rng: torch.Generator) -> Sequence[float]:
        import torch

        return torch.rand(len(draft.tokens), generator=rng).tolist()

    def accepted_mismatches(self, branch: WindowBranch) -> Mapping[int, LooseToken]:
        return {
            i: LooseToken(i, branch.wanted[i], "chance") for i in branch.mismatches if branch.measured[i] < self.rate
        }
