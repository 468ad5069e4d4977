"""Qwen3-VL MoE: prompts of the dense model; the stock modules route the experts."""

from __future__ import annotations

from vidspec.models.base import families
from vidspec.models.families.qwen3_vl import Qwen3VL


@families.register("qwen3_vl_moe")
class Qwen3VLMoE(Qwen3VL):
    """A ``Qwen3VLMoeForConditionalGeneration``."""

    family = "qwen3_vl_moe"
