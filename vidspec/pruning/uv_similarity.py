"""The tokens closest to the text at one of the target's layers: UV-Prune without variation (ParallelVLM Fig. 9)."""

from __future__ import annotations

import torch

from vidspec.pruning.base import Signals, top_scored
from vidspec.pruning.scores import text_similarity
from vidspec.registry import pruners


@pruners.register("uv_similarity")
class UVSimilarity:
    """Similarity to the text at layer L alone.

    Args:
        layer: the layer L.
        depth: blocks of the target; L is at most half of them. None: no cap.
    """

    def __init__(self, layer: int = 20, depth: int | None = None) -> None:
        self.layer = layer if depth is None else min(layer, max(1, depth // 2))

    @property
    def needs(self) -> frozenset[str]:
        return frozenset({f"hidden@{self.layer}"})

    def __call__(self, signals: Signals, alpha: float) -> torch.Tensor:
        scores = text_similarity(signals.require_hidden(self.layer), signals.visual.index, signals.require_text())
        return top_scored(scores, signals.visual, alpha)
