"""Every 1/(1-alpha)-th visual token in raster order (SD-Uniform in SpecVLM 4.3)."""

from __future__ import annotations

from typing import ClassVar

import torch

from vidspec.pruning.base import Signals, budget
from vidspec.registry import pruners


@pruners.register("uniform")
class Uniform:
    needs: ClassVar[frozenset[str]] = frozenset()

    def __call__(self, signals: Signals, alpha: float) -> torch.Tensor:
        visual = signals.visual
        required = visual.required.nonzero()[:, 0]
        free = (~visual.required).nonzero()[:, 0]
        places = budget(len(visual), alpha)
        required = required[:places]
        wanted = places - len(required)
        # The middle of each of `wanted` equal stretches, in integers so that no two coincide.
        chosen = (2 * torch.arange(wanted, device=free.device) + 1) * len(free) // (2 * max(1, wanted))
        return torch.cat([free[chosen], required]).sort().values
