"""The tokens that come closest to the text on their way through the target's first layers (UV-Prune, ParallelVLM 4.1).

**D**: the text is what follows the video in the prompt, as in the paper's sequence V_1:m, X_1:n. What stands before the
video cannot have seen it.
"""

from __future__ import annotations

import torch

from vidspec.pruning.base import Signals, top_scored
from vidspec.pruning.scores import similarity_variation
from vidspec.registry import pruners


@pruners.register("uv")
class UVPrune:
    """UV-Prune: similarity variation between layer 0 and layer L.

    Args:
        layer: L of Eq. 3 (20 in App. D).
        depth: blocks of the target; L is at most half of them. None: no cap.
    """

    def __init__(self, layer: int = 20, depth: int | None = None) -> None:
        self.layer = layer if depth is None else min(layer, max(1, depth // 2))

    @property
    def needs(self) -> frozenset[str]:
        return frozenset({"hidden@0", f"hidden@{self.layer}"})

    def __call__(self, signals: Signals, alpha: float) -> torch.Tensor:
        deep, shallow = signals.require_hidden(self.layer), signals.require_hidden(0)
        scores = similarity_variation(deep, shallow, signals.visual.index, signals.require_text())
        return top_scored(scores, signals.visual, alpha)
