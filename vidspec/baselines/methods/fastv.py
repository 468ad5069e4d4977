"""FastV: after K blocks, the target keeps the visual tokens that its last prompt token attends to most.

Chen et al. 2024 (arXiv 2403.06764), K = 2: the first two blocks read everything, and tokens are ranked by the head-mean
attention of the prompt's last token in the second. Kept tokens keep their positions.

**D**: blocks read a tenth on average, the retention of ParallelVLM's Table 2; FastV itself mostly keeps 50% after its K
blocks. Fewer than K blocks read everything if K exceed that mean. In a model of K blocks or fewer the last one is
pruned.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from vidspec.baselines.base import WholeBlocks
from vidspec.baselines.pruner import StagedPruner
from vidspec.lossy import lossy


@lossy.register("fastv")
class FastVPruner(StagedPruner):
    """FastV's single stage.

    Args:
        layer: K, 2 if None.
        keep: the one share after K blocks; replaces ``retention``.
        retention: mean share of the visual tokens that a block reads.
    """

    shares: ClassVar[int] = 1

    def __init__(self, layer: WholeBlocks = None, keep: Sequence[float] | None = None, retention: float = 0.1) -> None:
        super().__init__(keep, retention)
        self.layer = 2 if layer is None else layer

    def placed(self, depth: int, shares: Sequence[float]) -> list[tuple[int, float]]:
        (share,) = shares
        return [(min(self.layer, depth - 1), share)]
