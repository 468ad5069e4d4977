"""LLaVA-OneVision: whole frames through SigLIP, pooled to half per side, one newline token behind the video."""

from __future__ import annotations

import math
from collections.abc import Generator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch.nn import functional as F

from vidspec.models.adapter import Adapter
from vidspec.models.base import Pixels, Seen
from vidspec.models.preprocess import PixelRules, halve, normalised
from vidspec.models.vision import chunks
from vidspec.registry import families

if TYPE_CHECKING:
    from vidspec.video import Clip

__all__ = ["CHAT_TEMPLATE", "LlavaOnevision"]

CHAT_TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + ' ' }}"
    "{% for content in message['content'] if content['type'] == 'video' %}{{ '<video>' }}{% endfor %}"
    "{% for content in message['content'] if content['type'] == 'text' %}{{ '\n' + content['text'] }}{% endfor %}"
    "{{ '<|im_end|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


@families.register("llava_onevision")
class LlavaOnevision(Adapter):
    """A ``LlavaOnevisionForConditionalGeneration``; its prompt is
    ``<|im_start|>user <video>\\n{prompt}<|im_end|><|im_start|>assistant\\n``."""

    family = "llava_onevision"
    chat_template: ClassVar[str] = CHAT_TEMPLATE

    def set_up(self, processor: Mapping[str, Any]) -> None:
        vision = self.model.config.vision_config
        self.rules = PixelRules.from_config(processor, vision.image_size)
        self.patches = vision.image_size // vision.patch_size

    def visual_tokens(self, frames: int, height: int, width: int) -> int:
        cells: int = math.ceil(self.patches / 2)
        return frames * cells**2 + 1

    def preprocess(self, clip: Clip) -> Pixels:
        """(T, 3, S, S)."""
        shown = normalised(clip.frames, self.rules, self.device)
        return Pixels(shown, (len(shown), self.patches, self.patches), tuple(float(t) for t in clip.timestamps))

    @torch.inference_mode()
    def seeing(self, pixels: Pixels, *, pooled: bool = False) -> Generator[None, None, Seen]:
        """T * cells ** 2 + 1 tokens: pooled features of all frames in raster order, then the newline."""
        frames, side, _ = pixels.grid
        several = chunks(pixels, side**2, self.model.config.vision_config, every_block=True)
        made = []
        for chunk in several:
            with self.looking:
                made.append(self._chunk(chunk, pooled))
            yield
        seen, cells = zip(*made, strict=True)
        newline = self.model.model.image_newline[None].to(seen[0])
        return _placed(torch.cat([*seen, newline]), frames, cells[0], pixels.seconds)

    def _chunk(self, pixels: Pixels, pooled: bool) -> tuple[torch.Tensor, int]:
        """Features of some frames, without the newline; and cells per side."""
        batch = pixels.values[None].to(self.device, self.dtype)
        frames, side, _ = pixels.grid
        if not pooled:
            return self.model.get_video_features(batch).pooler_output[0, :-1], math.ceil(side / 2)
        before: list[torch.Tensor] = []  # the tower's features, (T, patches, d), as the projector is given them
        projector = self.model.model.multi_modal_projector
        handle = projector.register_forward_pre_hook(lambda _module, args: before.append(args[0]))
        try:
            self.model.get_video_features(batch)
        finally:
            handle.remove()
        halved = halve(before[0].reshape(frames, side, side, -1))
        projected = projector(halved.flatten(1, 2)).reshape(*halved.shape[:3], -1).permute(0, 3, 1, 2)
        cells = math.ceil(halved.shape[1] / 2)
        pooled_twice = F.interpolate(projected, size=(cells, cells), mode="bilinear").permute(0, 2, 3, 1)
        return pooled_twice.flatten(0, 2), cells


def _placed(features: torch.Tensor, frames: int, cells: int, seconds: tuple[float, ...]) -> Seen:
    place = torch.arange(len(features), device=features.device)
    newline = place == frames * cells**2
    return Seen(
        features=features,
        frame=(place // cells**2).clamp(max=frames - 1),
        row=(place % cells**2 // cells).masked_fill(newline, -1),
        column=(place % cells).masked_fill(newline, -1),
        grid=(frames, cells, cells),
        seconds=seconds,
    )
