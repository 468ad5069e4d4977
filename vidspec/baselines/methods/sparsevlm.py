"""SparseVLM: text tokens relevant to the video rate its tokens, and the best of the dropped ones are recycled.

Zhang et al. 2025 (arXiv 2410.04417). Raters are the text tokens after the video of above-average relevance: the mean
over visual tokens of the softmax over text tokens of their embeddings' products. After three blocks (of 32: the 3rd,
7th and 16th) the visual tokens with the highest attention of the raters (mean over heads and raters) are kept; of the
dropped, the top 30% are clustered ten to one, and each cluster is replaced by its mean.

**D**: the shares of the three stages have the ratios of the paper's smallest setting (66, 30 and 17 of 576), scaled so
that a block reads a tenth on average, the retention of ParallelVLM's Table 2. Recycled tokens are part of a stage's
share, at most half of it. Of n dropped tokens m = floor(0.3 n) + 1 are clustered into floor(m / 10) + 1, the released
code's counts. A cluster's mean takes the row and the position of its centre; the released code appends all means after
the other visual tokens and renumbers. In models of other depths the stages are at the same relative depth.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, ClassVar

from vidspec.baselines.base import BlockSignals, KeptTokens, places
from vidspec.baselines.pruner import StagedPruner
from vidspec.bounds import MANY
from vidspec.lossy import lossy
from vidspec.pruning.base import best
from vidspec.registry import key

if TYPE_CHECKING:
    import torch

#: Blocks after which LLaVA-1.5-7B is pruned, of its 32.
_BLOCKS, _OF = (3, 7, 16), 32


def rater_tokens(visual: torch.Tensor, text: torch.Tensor) -> torch.Tensor:
    """Return the text tokens whose relevance to the video is above the mean.

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
    """Cluster tokens around ``count`` of them, by density peaks over nearest neighbours (SparseVLM, recycling).

    Distances are Euclidean over sqrt(d). A token's density is exp(-mean squared distance to its ``count`` nearest,
    itself included), its separation the distance to the nearest denser token (the largest distance of all if there is
    none). The tokens with the largest product of both are the centres, ties going to the earlier; the others join the
    nearest centre.

    **D**: the released code breaks ties of density by noise of 1e-6; here they remain.

    Args:
        states: (m, d), computed in float32.
        count: from 1 to m.

    Returns:
        (m,) centre of each token; a centre is its own.
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
    """SparseVLM's three stages, with recycling.

    Args:
        keep: share of the visual tokens after each stage; replaces ``retention``.
        retention: mean share of the visual tokens that a block reads.
    """

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
        again, centres = self._recycle_counts(len(visual), wanted)
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

    def _recycle_counts(self, tokens: int, wanted: int) -> tuple[int, int]:
        """Return how many dropped tokens are clustered, and into how many of the ``wanted`` kept ones."""
        dropped = tokens - wanted
        if not dropped or not self.recycle:
            return 0, 0
        again = min(dropped, int(dropped * self.recycle) + 1)
        return again, min(again, again // self.cluster + 1, wanted // 2)
