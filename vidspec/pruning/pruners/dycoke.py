"""Temporal merging in groups of four frames (SD-DyCoke in SpecVLM 4.4), by the target's visual features.

In the later frames of each group the tokens most similar to the same cell of an earlier frame are dropped first; merged
tokens are dropped, not averaged. When these frames are used up, the groups' first frames are merged in the same way,
and so on (see :func:`~vidspec.pruning.scores.merge_similarity`).

**D**: a budget smaller than the video's first frame keeps evenly spaced tokens of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from vidspec.pruning.base import Pruner, Signals, evenly_spaced, pruners, split, token_grid

if TYPE_CHECKING:
    import torch


@pruners.register("dycoke")
class DyCokePruner(Pruner):
    needs = frozenset({"features"})

    def __call__(self, signals: Signals, alpha: float) -> torch.Tensor:
        from vidspec.pruning.scores import merge_similarity

        visual = signals.visual
        parts = split(visual, alpha)
        alike, level = merge_similarity(visual.features, token_grid(visual))
        free = parts.free.to(level.device)
        first = free[level[free] == level.max()]
        if len(first) >= parts.wanted:
            return parts.kept(first[evenly_spaced(len(first), parts.wanted, first.device)])
        order = free[alike[free].sort(stable=True).indices]  # least similar first
        order = order[level[order].sort(descending=True, stable=True).indices]
        return parts.kept(order[: parts.wanted])
