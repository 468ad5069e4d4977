"""Pruning by similarity to the text at one of the target's layers: UV-Prune without variation (ParallelVLM Fig. 9)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vidspec.pruning.base import ScoringPruner, Signals, pruners
from vidspec.pruning.pruners.uv import SignalLayer, signal_layer

if TYPE_CHECKING:
    import torch


@pruners.register("uv_similarity")
class UVSimilarityPruner(ScoringPruner):
    """Similarity to the text at layer L alone.

    Args:
        depth: blocks of the target.
    """

    def __init__(self, layer: SignalLayer = None, depth: int | None = None) -> None:
        self.layer = signal_layer(layer, depth)
        self.needs = frozenset({f"hidden@{self.layer}"})

    def scores(self, signals: Signals) -> torch.Tensor:
        from vidspec.pruning.scores import text_similarity

        return text_similarity(signals.require_hidden(self.layer), signals.visual.index, signals.require_text())
