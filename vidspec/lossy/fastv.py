"""FastV: from one block on, the target keeps the visual tokens that its last prompt token attends to most.

Chen et al. 2024 (arXiv 2403.06764), K = 2: the first two blocks read everything, and the ranking is the head-mean
attention of the prompt's last token in the second. Kept tokens keep their positions.

**D**: 10% stay, the average retention of ParallelVLM's Table 2; FastV itself reports 50% most often. In a model of K
blocks or fewer the last one is the pruned one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from vidspec.lossy.base import Choice, Reading, best, places, without_overlap
from vidspec.models.base import Prefix
from vidspec.registry import lossy


@lossy.register("fastv")
class FastV:
    """Args: ``layer``, FastV's K, the blocks that read everything; ``keep``, one share of the visual tokens."""

    def __init__(self, layer: int = 2, keep: Sequence[float] = (0.1,)) -> None:
        self.layer = layer
        (self.share,) = keep

    def before(self, prefix: Prefix) -> torch.Tensor | None:
        return None

    def stages(self, depth: int) -> Mapping[int, float]:
        return without_overlap([(min(self.layer, depth - 1), self.share)], depth)

    def choose(self, reading: Reading, share: float) -> Choice:
        return Choice(best(reading.last_attention(), reading.visual, places(reading, share)))
