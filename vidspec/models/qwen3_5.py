"""Qwen3.5 (also 3.6 and 3.8): Qwen3-VL's prompts and tower without deepstack; three of four blocks keep a state.

Its blocks are those of ``transformers``; how their states go back is in :mod:`vidspec.engine.recurrent`. A pruned
prompt is one whose dropped tokens are never fed: a recurrent block does not know of them, and positions stay.
"""

from __future__ import annotations

import torch
from torch import nn

from vidspec.models.qwen3_vl import Qwen3VL
from vidspec.registry import families

__all__ = ["Qwen35"]


@families.register("qwen3_5")
class Qwen35(Qwen3VL):
    """A ``Qwen3_5ForConditionalGeneration``, asked not to think: a template that asks it to gets it told not to."""

    family = "qwen3_5"

    @property
    def _mergers(self) -> list[nn.Module]:
        return [self.tower.merger]

    def _levels(self, values: torch.Tensor, grid: torch.Tensor) -> list[torch.Tensor]:
        return [self.model.get_video_features(values, grid).pooler_output[0]]
