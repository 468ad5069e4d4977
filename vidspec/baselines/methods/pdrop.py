"""PyramidDrop: fewer visual tokens are kept after each quarter of the target's blocks.

Xing et al. 2025 (arXiv 2410.17247): four stages of equal depth with 1, 1/2, 1/4 and 1/8 of the visual tokens, ranked at
the end of a stage by the attention of the last instruction token, the mean over heads.

**D**: these shares average 47% over the blocks. ParallelVLM's Table 2 compares at 10%, which a first quarter that reads
everything exceeds alone (25%). So all four stages are scaled alike: the first drops tokens after the first block, and
each later one keeps half of the one before. The ranking token is the last one of the prompt, as in the released code at
inference. The attention is that of the stage's last block; the released code projects its output again with the next
block's weights. Kept tokens keep their positions; the released code renumbers them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from vidspec.baselines.pruner import StagedPruner
from vidspec.lossy import lossy


@lossy.register("pdrop")
class PyramidDropPruner(StagedPruner):
    """PyramidDrop's four stages.

    Args:
        keep: shares after a quarter, a half and three quarters of the blocks; replaces ``retention``.
        retention: mean share of the visual tokens that a block reads.
    """

    shares: ClassVar[int] = 3
    paper: ClassVar[tuple[float, ...]] = (1.0, 0.5, 0.25, 0.125)

    def __init__(self, keep: Sequence[float] | None = None, retention: float = 0.1) -> None:
        super().__init__(keep, retention)

    def placed(self, depth: int, shares: Sequence[float]) -> list[tuple[int, float]]:
        stages = len(self.paper)
        return [(depth * stage // stages, share) for stage, share in enumerate(shares, stages - len(shares))]
