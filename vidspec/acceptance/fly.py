"""A mismatch passes where the target is unsure and agrees again right behind it (FLy, Li et al. 2025)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from vidspec.acceptance.fly_minus import FlyMinus
from vidspec.events.events import Loosened
from vidspec.registry import rules

if TYPE_CHECKING:
    from vidspec.acceptance.loose import Branch
    from vidspec.engine.sampling import Sampling


@rules.register("fly")
class Fly(FlyMinus):
    """FLy's entropy gate and deferred window.

    With H as in :class:`~vidspec.acceptance.fly_minus.FlyMinus` and t the target's argmax given the drafted tokens
    before it, the loose one included::

        accept d_i  if  d_i = t_i
                    or  H_i >= theta  and  d_j = t_j for j = i + 1 ... i + W - 1

    The window W counts the mismatch itself. The last W positions of the K drafted are never loose, because what comes
    behind them was not seen.

    Args:
        theta: the gate, in nats.
        window: W.
        sampling, eos, protected: of :class:`LooseRule`.
    """

    def __init__(
        self,
        sampling: Sampling,
        eos: frozenset[int] = frozenset(),
        protected: frozenset[int] = frozenset(),
        theta: float = 0.3,
        window: int = 6,
    ) -> None:
        super().__init__(sampling, eos, protected, theta)
        self.window = window

    def pardoned(self, branch: Branch) -> Mapping[int, Loosened]:
        wrong = set(branch.mismatches)
        return {
            i: one
            for i, one in super().pardoned(branch).items()
            if i < len(branch.tokens) - self.window and wrong.isdisjoint(range(i + 1, i + self.window))
        }
