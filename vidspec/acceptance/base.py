"""The acceptance rule's contract: the only place that decides what is emitted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Protocol

import torch

from vidspec.drafting.base import Draft

__all__ = ["Acceptance", "Verdict"]


@dataclass(frozen=True)
class Verdict:
    """What becomes of a window.

    Attributes:
        accepted: how many drafted tokens are emitted, from the left.
        token: the target's own token that follows them: a correction, or a bonus when the whole window passed.
        loose: window indices of accepted tokens that the target would not have chosen; empty for lossless rules.
    """

    accepted: int
    token: int
    loose: tuple[int, ...] = ()


class Acceptance(Protocol):
    """A rule; ``lossless`` tells whether the output is exactly the target's own."""

    lossless: ClassVar[bool]

    def __call__(
        self, draft: Draft, target_logits: torch.Tensor, hidden: torch.Tensor | None, rng: torch.Generator
    ) -> Verdict:
        """Judge a window.

        Args:
            draft: gamma proposed tokens, with their distributions unless they were chosen greedily.
            target_logits: (gamma + 1, V); row i follows the i-th drafted token's predecessor.
            hidden: (gamma + 1, hidden) the target's last states, for rules that look at them.
            rng: CPU generator.
        """
        ...
