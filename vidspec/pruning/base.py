"""The pruner's contract: signals in, sorted kept indices out, exactly the budget."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Protocol

import torch

from vidspec.models.base import VisualTokens

__all__ = ["Pruner", "Signals", "budget", "top_scored", "with_required"]


@dataclass(frozen=True)
class Signals:
    """What a pruner may look at.

    Attributes:
        visual: places and features of the N visual tokens.
        attention: (N,) language-to-video attention of the target, if the pruner needs ``attention``.
        seed: for pruners that draw.
    """

    visual: VisualTokens
    attention: torch.Tensor | None = None
    seed: int = 0


class Pruner(Protocol):
    """Chooses the visual tokens the draft may see.

    ``needs`` names the signals the engine must observe while the target reads its prompt: ``attention``, or nothing.
    """

    needs: ClassVar[frozenset[str]]

    def __call__(self, signals: Signals, alpha: float) -> torch.Tensor:
        """(K,) sorted indices of the visual tokens kept, K = :func:`budget` of N and ``alpha``."""
        ...


def budget(n: int, alpha: float) -> int:
    """How many of ``n`` visual tokens stay when a share ``alpha`` is pruned: at least one."""
    return max(1, round((1 - alpha) * n))


def with_required(order: torch.Tensor, visual: VisualTokens, alpha: float) -> torch.Tensor:
    """Fill the budget: required tokens first, then others in the given order of preference.

    Args:
        order: a permutation of the N tokens, best first.
        visual: the tokens; those ``required`` count towards the budget.
        alpha: share to prune.

    Returns:
        (K,) sorted indices.
    """
    required = visual.required.to(order.device)[order]
    preferred = torch.cat([order[required], order[~required]])
    return preferred[: budget(len(visual), alpha)].sort().values


def top_scored(scores: torch.Tensor, visual: VisualTokens, alpha: float) -> torch.Tensor:
    """The best-scored tokens within the budget; of equal scores the earlier token."""
    return with_required(scores.sort(descending=True, stable=True).indices, visual, alpha)
