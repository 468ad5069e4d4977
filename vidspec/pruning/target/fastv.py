"""FastV: from one block on, the target keeps the visual tokens that its last prompt token attends to most.

Chen et al. 2024 (arXiv 2403.06764), K = 2: the first two blocks read everything, and the ranking is the head-mean
attention of the prompt's last token in the second. Kept tokens keep their positions.

**D**: on average over the blocks a tenth is read, the retention of ParallelVLM's Table 2; FastV itself most often
keeps 50% behind its K blocks. Where K blocks that read everything are more than that, fewer do. In a model of K blocks
or fewer the last one is the pruned one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar

from vidspec.pruning.target.base import Choice, Layer, Reading, best, on_average, places, without_overlap
from vidspec.registry import lossy

if TYPE_CHECKING:
    import torch

    from vidspec.models.base import Prefix


@lossy.register("fastv")
class FastV:
    """Args: ``layer``, FastV's K, 2 if None; ``retention``, the mean share of the visual tokens that a block reads, or
    ``keep``, the one share behind K blocks."""

    shares: ClassVar[int] = 1

    def __init__(self, layer: Layer = None, keep: Sequence[float] | None = None, retention: float = 0.1) -> None:
        self.layer = 2 if layer is None else layer
        self.keep, self.retention = keep, retention

    def before(self, prefix: Prefix) -> torch.Tensor | None:
        return None

    def stages(self, depth: int) -> Mapping[int, float]:
        whole = min(self.layer, depth - 1)
        if self.keep is None:
            return on_average([(whole, 1.0)], depth, self.retention)
        (share,) = self.keep
        return without_overlap([(whole, share)], depth)

    def choose(self, reading: Reading, share: float) -> Choice:
        return Choice(best(reading.last_attention(), reading.visual, places(reading, share)))
