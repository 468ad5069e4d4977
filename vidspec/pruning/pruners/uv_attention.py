"""Pruning by gain in the text's attention over the target's first blocks (an ablation, ParallelVLM Fig. 9).

UV-Prune's Eq. 3 with attention in place of cosine. **D**: the attention at layer l is that of the block whose input is
layer l, averaged over heads and over the text after the video, so that the sum over l telescopes to block L minus
block 0.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from vidspec.pruning.base import ScoringPruner, Signals, pruners
from vidspec.pruning.pruners.uv import SignalLayer, signal_layer

if TYPE_CHECKING:
    import torch


@pruners.register("uv_attention")
class UVAttentionPruner(ScoringPruner):
    """Variation of the text's attention between block 0 and block L; the last layer is the last block's input.

    Args:
        depth: blocks of the target.
    """

    def __init__(self, layer: SignalLayer = None, depth: int | None = None) -> None:
        self.layer = signal_layer(layer, depth, last=None if depth is None else depth - 1)
        self.needs = frozenset({"attention@0", f"attention@{self.layer}"})

    def scores(self, signals: Signals) -> torch.Tensor:
        deep, shallow = signals.require_block_attention(self.layer), signals.require_block_attention(0)
        return deep - shallow.to(deep.device)
