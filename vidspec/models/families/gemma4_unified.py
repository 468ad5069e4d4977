"""Gemma 4 unified (12B): Gemma 4's prompts and frames without a vision tower; a token is one large patch."""

from __future__ import annotations

from typing import ClassVar

import torch

from vidspec.models.base import Pixels, StockConfig, families
from vidspec.models.families.gemma4 import Gemma4
from vidspec.models.frame_rules import TokenGrid
from vidspec.models.preprocess import ProcessorConfig, pool_features
from vidspec.models.vision import calls_of


@families.register("gemma4_unified")
class Gemma4Unified(Gemma4):
    """A ``Gemma4UnifiedForConditionalGeneration``, with Gemma 4's prompt; no audio input."""

    family = "gemma4_unified"
    vision_attention: ClassVar[str | None] = None

    def set_up(self, processor: ProcessorConfig) -> None:
        super().set_up(processor)
        self.patch, self.pool = self.patch * self.pool, 1

    @classmethod
    def frame_rule_of(cls, config: StockConfig, processor: ProcessorConfig) -> TokenGrid:
        rule = super().frame_rule_of(config, processor)
        return TokenGrid(rule.side, 1, rule.max_tokens)

    def _chunk(self, pixels: Pixels, pooled: bool) -> torch.Tensor:
        """Encode some frames to (N, hidden); ``pooled`` averages the embedded patches before the projector."""
        embedder = self.model.model.embed_vision
        with calls_of(embedder.multimodal_embedder) as calls:
            features: torch.Tensor = embedder(*self.patches(pixels)).pooler_output.flatten(0, 1)
        if not pooled:
            return features
        halved = pool_features(calls[0][0].view(*pixels.grid, -1)).flatten(0, 2)
        return embedder.multimodal_embedder(halved)  # type: ignore[no-any-return]
