"""Frames that differ most from the one before (SD-FastVID in SpecVLM 4.4), by the target's visual features.

**D**: a budget that is no whole number of frames keeps evenly spaced tokens of the next frame in the ranking.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from vidspec.pruning.base import Pruner, Signals, pruners, token_grid, whole_frames

if TYPE_CHECKING:
    import torch


@pruners.register("fastvid")
class FastVIDPruner(Pruner):
    needs = frozenset({"features"})

    def __call__(self, signals: Signals, alpha: float) -> torch.Tensor:
        from vidspec.pruning.scores import frame_dissimilarity

        visual = signals.visual
        scores = frame_dissimilarity(visual.features, token_grid(visual))
        return whole_frames(scores.sort(descending=True, stable=True).indices.tolist(), visual, alpha)
