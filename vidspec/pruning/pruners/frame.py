"""Whole frames at regular intervals (SD-Frame in SpecVLM 4.4); for Qwen models a frame is one temporal grid step.

**D**: a budget that is no whole number of frames takes one more frame; the last frame gives evenly spaced tokens.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from vidspec.pruning.base import Pruner, Signals, evenly_spaced, pruners, split, whole_frames

if TYPE_CHECKING:
    import torch


@pruners.register("frame")
class FramePruner(Pruner):
    def __call__(self, signals: Signals, alpha: float) -> torch.Tensor:
        import torch

        visual = signals.visual
        parts = split(visual, alpha)
        sizes = torch.bincount(visual.frame[parts.free], minlength=visual.frames).cpu()
        chosen = next(
            places
            for count in range(visual.frames + 1)
            if int(sizes[places := evenly_spaced(visual.frames, count)].sum()) >= parts.wanted
        )
        return whole_frames(chosen.tolist(), visual, alpha)
