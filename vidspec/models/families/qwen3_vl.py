"""Qwen3-VL: a text timestamp before each temporal step, and features of early tower blocks (deepstack)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from vidspec.models.base import Pixels, VisionOutput, families
from vidspec.models.families.qwen2_5_vl import TURNS, Qwen25VL
from vidspec.models.preprocess import GridRules, patches
from vidspec.video.base import Clip

CHAT_TEMPLATE = "{% for message in messages %}" + TURNS


@families.register("qwen3_vl")
class Qwen3VL(Qwen25VL):
    """A ``Qwen3VLForConditionalGeneration`` or ``Qwen3VLMoe...``; its prompt is
    ``<|im_start|>user\\n<|vision_start|>{steps}<|vision_end|>{prompt}<|im_end|>\\n<|im_start|>assistant\\n``, each step
    being ``<{time:.1f} seconds><|vision_start|>{step}<|vision_end|>``.

    ``VisionOutput.deepstack`` holds the features added after the first blocks of the language model. The processor of
    ``transformers`` 5.23 leaves the outer markers around the steps; that of 4.57 replaced them.
    """

    family = "qwen3_vl"
    step_positions: ClassVar[float | None] = 0.0  # text separates the steps, and each starts its own time axis
    chat_template: ClassVar[str] = CHAT_TEMPLATE
    default_rules: ClassVar[GridRules] = GridRules(
        min_pixels=128 * 32**2, max_pixels=768 * 32**2, max_video_tokens=768, whole_clip=True
    )

    def preprocess(self, clip: Clip) -> Pixels:
        """Return (patches, values of a patch); ``seconds`` is the middle of each temporal step, as in the prompt."""
        shown, grid, rules = patches(clip.frames, self.rules, self.device)
        size = self.rules.steps
        times = np.asarray(clip.timestamps, dtype=np.float64)
        last = np.minimum(np.arange(grid[0]) * size + size - 1, len(times) - 1)
        return Pixels(shown, grid, tuple(((times[::size] + times[last]) / 2).tolist()), rules=rules)

    def prompt_pieces(self, vision: VisionOutput) -> Sequence[str | range]:
        each = vision.grid[1] * vision.grid[2]
        pieces: list[str | range] = [self.opens]
        for step, seconds in enumerate(vision.seconds):
            pieces += [f"<{seconds:.1f} seconds>{self.opens}", range(step * each, (step + 1) * each), self.closes]
        return [*pieces, self.closes]
