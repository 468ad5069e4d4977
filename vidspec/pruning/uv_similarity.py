"""The tokens closest to the text at one of the target's layers: UV-Prune without variation (ParallelVLM Fig. 9)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vidspec.pruning.base import Signals, top_scored
from vidspec.pruning.uv import Layer, signal_layer
from vidspec.registry import pruners

if TYPE_CHECKING:
    import torch


@pruners.register("uv_similarity")
class UVSimilarity:
    """Similarity to the text at layer L alone.

    Args:
        depth: blocks of the target.
    """

    def __init__(self, layer: Layer = None, depth: int | None = None) -> None:
        self.layer = signal_layer(layer, depth)

    @property
    def needs(self) -> frozenset[str]:
        return frozenset({f"hidden@{self.layer}"})

    def __call__(self, signals: Signals, alpha: float) -> torch.Tensor:
        from vidspec.pruning.scores import text_similarity

        scores = text_similarity(signals.require_hidden(self.layer), signals.visual.index, signals.require_text())
        return top_scored(scores, signals.visual, alpha)
