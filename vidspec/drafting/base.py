"""The drafter's contract: propose a window, then hear what became of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch

__all__ = ["Draft", "Drafter"]


@dataclass(frozen=True)
class Draft:
    """A proposed window.

    Attributes:
        tokens: token ids, gamma of them or fewer.
        parents: index of each token's parent in the window, -1 for the last committed token; a chain is -1, 0, 1, ...
        probs: (gamma, V) the distributions the tokens were drawn from; None if they were chosen greedily.
    """

    tokens: tuple[int, ...]
    parents: tuple[int, ...]
    probs: torch.Tensor | None = None


class Drafter(Protocol):
    """Proposes continuations of what has been committed."""

    forwards: int  # passes of the draft model so far, prefill excluded

    def begin(self, token: int) -> None:
        """The target's first token, behind the prompt."""
        ...

    def propose(self, gamma: int) -> Draft:
        """A window of at most ``gamma`` tokens."""
        ...

    def commit(self, accepted: int, correction: int) -> None:
        """Of the last window ``accepted`` tokens were emitted, then the target's own ``correction`` (or bonus)."""
        ...
