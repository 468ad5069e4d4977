"""DyCoke: similar tokens of neighbouring frames are merged before the target, and decoding reads part of the cache.

Tao et al. 2025 (arXiv 2411.15024). Merging: in groups of four frames, the second loses the share k of its tokens most
similar to the same cells of the first, the fourth those most similar to the third, the third those most similar to the
first (cosine of the features). Decoding: of the prompt's visual entries, blocks from ``layer`` on read those the
current token attends to most in the block before; the others stay in memory and may be chosen later.

**D**: a block reads a tenth of the video's tokens on average, the retention of ParallelVLM's Table 2, merged ones
counted as not read; DyCoke itself keeps 30% of the entries. Fewer blocks than ``layer`` read everything if those
exceed the tenth already. Entries are chosen again when the cosine of the attention with that of the last choice is
below 0.9; the released code compares with the step before. Merged tokens are dropped, not averaged, as in that code.
The rule also applies to a last group of fewer than four frames, as far as it has the frames. Kept tokens keep their
positions. Separators belong to no frame and stay.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, ClassVar

from vidspec.baselines.base import WholeBlocks, whole_blocks
from vidspec.baselines.pruner import TargetPruner
from vidspec.errors import ProfileError, option
from vidspec.lossy import lossy
from vidspec.pruning.base import token_grid
from vidspec.registry import key

if TYPE_CHECKING:
    import torch

    from vidspec.models.base import EmbeddedPrompt

#: Frame of a group -> the frame it is compared with.
_LIKE = {1: 0, 2: 0, 3: 2}


def merge_frames(features: torch.Tensor, grid: torch.Tensor, merge: float) -> torch.Tensor:
    """Return the tokens that remain after merging similar ones in groups of four frames.

    Args:
        features: (N, d).
        grid: (frames, rows, columns) token indices, -1 for empty cells.
        merge: k, the share of its tokens that a later frame of a group loses, rounded up.

    Returns:
        (K,) sorted indices; tokens outside the grid are kept.
    """
    import torch
    from torch.nn import functional as F

    stays = torch.ones(len(features), dtype=torch.bool, device=features.device)
    cells = grid.flatten(1).to(features.device)
    for frame in range(len(cells)):
        if frame % 4 not in _LIKE:
            continue
        own, other = cells[frame], cells[frame - frame % 4 + _LIKE[frame % 4]]
        both = (own >= 0) & (other >= 0)
        own, other = own[both], other[both]
        alike = F.cosine_similarity(features[own].float(), features[other].float(), dim=-1)
        kept = math.floor((1 - merge) * len(own) + 1e-6)  # 0.3 of 10 is 3, despite binary fractions
        stays[own[alike.sort(stable=True).indices[kept:]]] = False
    return stays.nonzero()[:, 0]


@lossy.register("dycoke")
class DyCokeTargetPruner(TargetPruner):
    """DyCoke's merging and dynamic cache reads.

    Args:
        retention: mean share of the visual tokens that a block reads.
        keep: share of the visual entries read after ``layer`` blocks, 1 - p; replaces ``retention``.
        layer: 3 if None.
    """

    shares: ClassVar[int] = 1

    def __init__(
        self,
        merge: Annotated[
            float, key("k, the share of like tokens merged between frames", ge=0, le=1, allow_inf_nan=False)
        ] = 0.7,
        keep: Sequence[float] | None = None,
        layer: WholeBlocks = None,
        similarity: Annotated[
            float, key("of attention, below which entries are chosen anew", ge=-1, le=1, allow_inf_nan=False)
        ] = 0.9,
        retention: float = 0.1,
    ) -> None:
        available = 1 - 0.75 * merge  # three of four frames are merged
        if keep is None and retention > available:
            raise ProfileError(
                f"{option('lossy.retention')}: {retention:g} is more than the {available:g} that merging leaves",
                hint=f"{option('lossy.merge', round((1 - retention) / 0.75, 2))} leaves as much",
            )
        self.merge, self.keep, self.similarity, self.retention = merge, keep, similarity, retention
        self.layer = 3 if layer is None else layer

    def reads(self, depth: int, entered: float) -> tuple[int, float]:
        whole = min(self.layer, depth - 1)
        if self.keep is not None:
            (share,) = self.keep
            return whole, share
        of_entries = min(1.0, self.retention / entered)
        whole = min(whole, whole_blocks(whole, depth, of_entries))
        return whole, min(1.0, (of_entries * depth - whole) / (depth - whole))

    def before(self, prefix: EmbeddedPrompt) -> torch.Tensor | None:
        return merge_frames(prefix.visual.features, token_grid(prefix.visual), self.merge)

    def stages(self, depth: int) -> Mapping[int, float]:
        self.reads(depth, 1.0)  # raises for too few blocks
        return {}
