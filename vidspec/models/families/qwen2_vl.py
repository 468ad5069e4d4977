"""Qwen2-VL, on which Tarsier2 is built: Qwen2.5-VL's prompts and sizes; every temporal step is one position long."""

from __future__ import annotations

from collections.abc import Sequence

from vidspec.models.base import EmbeddedPrompt, Pixels, families
from vidspec.models.families.qwen2_5_vl import Qwen25VL

__all__ = ["Qwen2VL"]


@families.register("qwen2_vl")
class Qwen2VL(Qwen25VL):
    """A ``Qwen2VLForConditionalGeneration``; its tower has no windows, and its positions do not follow the clock."""

    family = "qwen2_vl"

    def _interval(self, seconds: Sequence[float]) -> float:
        return 1.0

    def stock_pixels(self, pixels: Pixels, prefix: EmbeddedPrompt) -> dict[str, object]:
        inputs = super().stock_pixels(pixels, prefix)
        del inputs["second_per_grid_ts"]
        return inputs
