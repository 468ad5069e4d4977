"""Qwen3.5 MoE: prompts of the dense model; the stock modules route the experts."""

from __future__ import annotations

from vidspec.models.base import families
from vidspec.models.families.qwen3_5 import Qwen35


@families.register("qwen3_5_moe")
class Qwen35MoE(Qwen35):
    """A ``Qwen3_5MoeForConditionalGeneration``."""

    family = "qwen3_5_moe"
