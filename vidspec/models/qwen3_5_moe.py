"""Qwen3.5's mixture of experts: the dense one's prompts; experts are the stock modules', chosen row by row."""

from __future__ import annotations

from vidspec.models.qwen3_5 import Qwen35
from vidspec.registry import families

__all__ = ["Qwen35MoE"]


@families.register("qwen3_5_moe")
class Qwen35MoE(Qwen35):
    """A ``Qwen3_5MoeForConditionalGeneration``."""

    family = "qwen3_5_moe"
