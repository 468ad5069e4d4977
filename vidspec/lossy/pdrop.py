"""PyramidDrop: behind each quarter of the target's blocks, fewer visual tokens stay.

Xing et al. 2025 (arXiv 2410.17247): four stages of equal depth with 1, 1/2, 1/4 and 1/8 of the visual tokens, ranked at
the end of a stage by the attention of the last instruction token, the mean over heads.

**D**: that token is the last one of the prompt, as in the released code at inference. The attention is the one that
the last block of the stage computed; the released code projects its output once more with the next block's weights.
Kept tokens keep their positions; the released code renumbers them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from vidspec.lossy.base import Choice, Reading, best, places, without_overlap
from vidspec.models.base import Prefix
from vidspec.registry import lossy


@lossy.register("pdrop")
class PyramidDrop:
    """Args: ``keep``, the shares of the visual tokens behind a quarter, a half and three quarters of the blocks."""

    def __init__(self, keep: Sequence[float] = (0.5, 0.25, 0.125)) -> None:
        self.keep = tuple(keep)

    def before(self, prefix: Prefix) -> torch.Tensor | None:
        return None

    def stages(self, depth: int) -> Mapping[int, float]:
        quarters = len(self.keep) + 1
        return without_overlap([(depth * i // quarters, share) for i, share in enumerate(self.keep, 1)], depth)

    def choose(self, reading: Reading, share: float) -> Choice:
        return Choice(best(reading.last_attention(), reading.visual, places(reading, share)))
