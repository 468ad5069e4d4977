"""Accepts a mismatch if the target is unsure and agrees with the tokens right after it (FLy, Li et al. 2025)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated

from vidspec.acceptance.base import rules
from vidspec.acceptance.rules.fly_minus import FlyMinusRule, Theta
from vidspec.bounds import MANY
from vidspec.events.events import LooseToken
from vidspec.registry import key

if TYPE_CHECKING:
    from vidspec.acceptance.loose import WindowBranch
    from vidspec.engine.sampling import Sampling


@rules.register("fly")
class FlyRule(FlyMinusRule):
    """FLy's entropy gate and deferred window.

    With H as in :class:`~vidspec.acceptance.rules.fly_minus.FlyMinusRule` and t the target's argmax given the drafted
    tokens before it, including the loose one::

        accept d_i  if  d_i = t_i
                    or  H_i >= theta  and  d_j = t_j for j = i + 1 ... i + W - 1

    The window W includes the mismatch itself. The last W of the K drafted positions are never loose, as in the released
    code; for the last W - 1 of them too few tokens follow.

    Args:
        sampling, eos, protected: see :class:`LooseRule`.
    """

    def __init__(
        self,
        sampling: Sampling,
        eos: frozenset[int] = frozenset(),
        protected: frozenset[int] = frozenset(),
        theta: Theta = 0.3,
        window: Annotated[int, key("W, places that must be seen from a mismatch on", ge=1, le=MANY)] = 6,
    ) -> None:
        super().__init__(sampling, eos, protected, theta)
        self.window = window

    def accepted_mismatches(self, branch: WindowBranch) -> Mapping[int, LooseToken]:
        wrong = set(branch.mismatches)
        return {
            i: one
            for i, one in super().accepted_mismatches(branch).items()
            if i < len(branch.tokens) - self.window and wrong.isdisjoint(range(i + 1, i + self.window))
        }
