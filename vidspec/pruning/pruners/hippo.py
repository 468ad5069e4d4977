"""Attention, temporal novelty and spatial variance, normalised within each frame and summed (HIPPO 5.1, Eq. 2-7)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from vidspec.errors import ProfileError, option
from vidspec.pruning.base import ScoringPruner, Signals, pruners, token_grid
from vidspec.pruning.pruners.attention import SoftmaxKeys
from vidspec.registry import key

if TYPE_CHECKING:
    import torch

#: Standard deviations that float32 rounding may cause: of cosines, of variances of cosines.
_COSINE, _VARIANCE = 1e-6, 1e-12


@pruners.register("hippo")
class HippoPruner(ScoringPruner):
    """Pruning by HIPPO's three terms, each of which can be switched off, as in the paper's ablations."""

    def __init__(
        self,
        attention_term: Annotated[bool, key("global semantic relevance (Eq. 2) counts")] = True,
        temporal_term: Annotated[bool, key("difference of frames (Eq. 3-4) counts")] = True,
        spatial_term: Annotated[bool, key("variety in 5 x 5 tokens (Eq. 5-6) counts")] = True,
        keys: SoftmaxKeys = "all",
    ) -> None:
        if not (attention_term or temporal_term or spatial_term):
            raise ProfileError(
                f"{option('prune.attention_term')}: hippo needs one of its three terms, and all are off; "
                f"nearest valid choice: {option('prune.attention_term', True)}"
            )
        self.attention_term, self.temporal_term, self.spatial_term = attention_term, temporal_term, spatial_term
        attention = "visual_attention" if keys == "visual" else "attention"
        wanted = {attention: attention_term, "features": temporal_term or spatial_term}
        self.needs = frozenset(name for name, term in wanted.items() if term)

    def scores(self, signals: Signals) -> torch.Tensor:
        """Return (N,) float32: the sum of the frame-normalised terms (Eq. 7).

        **D**: separators belong to no frame's raster. They do not enter a frame's mean and deviation, and score 0, the
        mean.
        """
        import torch

        from vidspec.pruning.scores import crop_variance, frame_normalised, temporal_novelty

        visual = signals.visual
        grid = token_grid(visual)
        placed = grid[grid >= 0]
        total = torch.zeros(len(visual), dtype=torch.float32, device=placed.device)

        def add(scores: torch.Tensor, floor: float) -> None:
            total[placed] += frame_normalised(scores.to(placed.device)[placed], visual.frame[placed], floor)

        if self.attention_term:
            add(signals.require_attention(), 0.0)
        if self.spatial_term:
            add(crop_variance(visual.features, grid), _VARIANCE)
        if self.temporal_term:
            add(temporal_novelty(visual.features, grid), _COSINE)
        return total
