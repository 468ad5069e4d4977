"""Random tokens (SD-Rand in SpecVLM 4.1): the baseline that a pruner must beat."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vidspec.pruning.base import Pruner, Signals, kept_count, pruners, with_required

if TYPE_CHECKING:
    import torch


@pruners.register("random")
class RandomPruner(Pruner):
    def __call__(self, signals: Signals, alpha: float) -> torch.Tensor:
        import torch

        rng = torch.Generator().manual_seed(signals.seed)
        order = torch.randperm(len(signals.visual), generator=rng)
        return with_required(order, signals.visual, kept_count(len(order), alpha))
