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
        path: indices of the window's tokens that are emitted, in order; of a chain 0, 1, ...
        token: the target's own token that follows them: a correction, or a bonus when the whole window passed.
        loose: window indices of accepted tokens that the target would not have chosen; empty for lossless rules.
    """

    path: tuple[int, ...]
    token: int
    loose: tuple[int, ...] = ()

    @property
    def accepted(self) -> int:
        """How many drafted tokens are emitted."""
        return len(self.path)

    @classmethod
    def chain(cls, accepted: int, token: int, loose: tuple[int, ...] = ()) -> Verdict:
        """Of a chain the first ``accepted`` tokens."""
        return cls(tuple(range(accepted)), token, loose)


class Acceptance(Protocol):
    """A rule; ``lossless`` tells whether the output is exactly the target's own."""

    lossless: ClassVar[bool]

    def __call__(
        self, draft: Draft, target_logits: torch.Tensor, hidden: torch.Tensor | None, rng: torch.Generator
    ) -> Verdict:
        """Judge a window.

        Args:
            draft: gamma proposed tokens, with their distributions unless they were chosen greedily.
            target_logits: (gamma + 1, V); row 0 follows the last emitted token, row i + 1 the i-th drafted one.
            hidden: (gamma + 1, hidden) the target's last states at the same places, for rules that look at them.
            rng: CPU generator.
        """
        ...
