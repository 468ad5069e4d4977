"""Every 1/(1-alpha)-th visual token in raster order (SD-Uniform in SpecVLM 4.3)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vidspec.pruning.base import Pruner, Signals, evenly_spaced, split
from vidspec.registry import pruners

if TYPE_CHECKING:
    import torch


@pruners.register("uniform")
class Uniform(Pruner):
    def __call__(self, signals: Signals, alpha: float) -> torch.Tensor:
        parts = split(signals.visual, alpha)
        return parts.kept(parts.free[evenly_spaced(len(parts.free), parts.wanted, parts.free.device)])
