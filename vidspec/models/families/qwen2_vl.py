"""Qwen2-VL: Qwen2.5-VL's prompts and sizes; every temporal step is one position long."""

from __future__ import annotations

from typing import ClassVar

from vidspec.models.base import families
from vidspec.models.families.qwen2_5_vl import Qwen25VL


@families.register("qwen2_vl")
class Qwen2VL(Qwen25VL):
    """A ``Qwen2VLForConditionalGeneration``; its tower has no windows, and its positions do not follow the clock."""

    family = "qwen2_vl"
    step_positions: ClassVar[float | None] = 1.0
