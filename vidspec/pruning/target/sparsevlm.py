"""SparseVLM: text tokens that have to do with the video rate its tokens, and the best of the dropped are recycled.

Zhang et al. 2025 (arXiv 2410.04417). Raters are the text tokens behind the video whose relevance, the mean over visual
tokens of the softmax over text tokens of their products as embeddings, is above the mean. Behind three blocks (of 32:
the 3rd, 7th and 16th) the visual tokens with the highest attention of the raters (mean over heads and raters) stay; of
the dropped, the top 30% are clustered ten to one, and each cluster leaves its mean.

**D**: the shares of the three stages are to each other as in the paper's smallest setting (66, 30 and 17 of 576), and
such that a block reads a tenth on average, the retention of ParallelVLM's Table 2. What is recycled is part of a
stage's share, at most half of it. Of n tokens dropped floor(0.3 n) + 1 are clustered, m of them into floor(m / 10) + 1,
the released code's counts. A cluster's mean stands at the place and the position of its centre; the released code puts
all of them behind the other visual tokens and renumbers. Stages of models of other depths are at the same share of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, ClassVar

from vidspec.config.bounds import MANY
from vidspec.pruning.base import best
from vidspec.pruning.target.base import BlockSignals, KeptTokens, StagedPruner, places
from vidspec.registry import key, lossy

if TYPE_CHECKING:
    import torch

__all__ = ["SparseVLMPruner", "assign_clusters", "rater_tokens"]

#: Blocks behind which LLaVA-1.5-7B is pruned, of its 32.
_BLOCKS, _OF = (3, 7, 16), 32


def rater_tokens(visual: torch.Tensor, text: torch.Tensor) -> torch.Tensor:
    """Text tokens whose relevance to the video is above the mean.

    Args:
        visual: (N, d) embeddings.
        text: (r, d) embeddings.

    Returns:
        (k,) sorted indices; all r if none is above the mean.
    """
    relevance = (visual.float() @ text.float().T).softmax(dim=-1).mean(dim=0)
    above = (relevance > relevance.mean()).nonzero()[:, 0]
    return above if len(above) else above.new_tensor(range(len(text)))


def assign_clusters(states: torch.Tensor, count: int) -> torch.Tensor:
    """Assign tokens to ``count`` of them, by density peaks over nearest neighbours (SparseVLM, recycling).

    Distances are Euclidean over sqrt(d). A token's density is exp(-mean squared distance to its ``count`` nearest,
    itself included), its separation the distance to the nearest token that is denser (the largest distance of all if
    none is). The centres are those with the largest product of both, of equal ones the earlier; the others join the
    nearest centre.

    **D**: the released code adds noise of 1e-6 to the densities so that none are equal; here equal ones stay equal.

    Args:
        states: (m, d), computed in float32.
        count: from 1 to m.

    Returns:
        (m,) of each token its centre; a centre is its own.
    """
    import torch

    points = states.float()
    distance = torch.cdist(points, points, compute_mode="donot_use_mm_for_euclid_dist") / points.shape[1] ** 0.5
    density = (-distance.topk(count, largest=False).values.square().mean(dim=-1)).exp()
    denser = density[None, :] > density[:, None]
    separation = distance.masked_fill(~denser, float(distance.max())).amin(dim=-1)
    centres = (separation * density).sort(descending=True, stable=True).indices[:count]
    nearest: torch.Tensor = centres[distance[:, centres].argmin(dim=-1)]
    nearest[centres] = centres
    return nearest


@lossy.register("sparsevlm")
class SparseVLMPruner(StagedPruner):
    """Args: ``retention``, the mean share of the visual tokens that a block reads, or ``keep``, that behind a stage."""

    shares: ClassVar[int] = 3
    paper: ClassVar[tuple[float, ...]] = (66, 30, 17)  # tokens of 576, its smallest setting

    def __init__(
        self,
        keep: Sequence[float] | None = None,
        recycle: Annotated[float, key("share of the dropped that is clustered", ge=0, le=1, allow_inf_nan=False)] = 0.3,
        cluster: Annotated[int, key("tokens per cluster", ge=1, le=MANY)] = 10,
        retention: float = 0.1,
    ) -> None:
        super().__init__(keep, retention)
        self.recycle, self.cluster = recycle, cluster

    def placed(self, depth: int, shares: Sequence[float]) -> list[tuple[int, float]]:
        return [(depth * blocks // _OF, share) for blocks, share in zip(_BLOCKS, shares, strict=True)]

    def choose(self, reading: BlockSignals, share: float) -> KeptTokens:
        import torch

        visual, prompt = reading.visual, reading.prompt
        text = reading.text
        if len(text):
            embeds = prompt.embeds[0]
            rating = rater_tokens(embeds[prompt.visual.index], embeds[prompt.text_rows_after_video])
            text = text[rating.to(text.device)]
        scores = reading.attention(text) if len(text) else reading.last_attention()
        wanted = places(reading, share)
        again, centres = self._recycled(len(visual), wanted)
        kept = best(scores, visual, wanted - centres)
        if not centres:
            return KeptTokens(kept)
        dropped = torch.ones(len(visual), dtype=torch.bool, device=kept.device)
        dropped[kept] = False
        rest = dropped.nonzero()[:, 0]
        again_at = rest[scores[rest].sort(descending=True, stable=True).indices[:again]].sort().values
        states = reading.states[visual.index.to(reading.states.device)[again_at.to(reading.states.device)]]
        centre = again_at[assign_clusters(states, centres).to(again_at.device)]
        into = torch.full((len(visual),), -1, dtype=torch.long, device=kept.device)
        into[again_at] = centre
        return KeptTokens(torch.cat([kept, centre.unique()]).sort().values, into)

    def _recycled(self, tokens: int, wanted: int) -> tuple[int, int]:
        """How many of the dropped tokens are clustered, and into how many of the ``wanted`` that stay."""
        dropped = tokens - wanted
        if not dropped or not self.recycle:
            return 0, 0
        again = min(dropped, int(dropped * self.recycle) + 1)
        return again, min(again, again // self.cluster + 1, wanted // 2)
