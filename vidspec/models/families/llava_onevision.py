"""LLaVA-OneVision: whole frames through SigLIP, pooled to half per side, one newline token after the video."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import ClassVar

import torch
from torch.nn import functional as F

from vidspec.engine.requests import Steps
from vidspec.models.base import Pixels, StockConfig, VisionOutput, families
from vidspec.models.frame_rules import FrameRule, SquareFrames
from vidspec.models.preprocess import PixelRules, ProcessorConfig, pool_features, resize_to_square, seconds_of
from vidspec.models.video_language_model import VideoLanguageModel
from vidspec.models.vision import calls_of
from vidspec.video.base import Clip

CHAT_TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + ' ' }}"
    "{% for content in message['content'] if content['type'] == 'video' %}{{ '<video>' }}{% endfor %}"
    "{% for content in message['content'] if content['type'] == 'text' %}{{ '\n' + content['text'] }}{% endfor %}"
    "{{ '<|im_end|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


@families.register("llava_onevision")
class LlavaOnevision(VideoLanguageModel):
    """A ``LlavaOnevisionForConditionalGeneration``; its prompt is
    ``<|im_start|>user <video>\\n{prompt}<|im_end|><|im_start|>assistant\\n``."""

    family = "llava_onevision"
    chat_template: ClassVar[str] = CHAT_TEMPLATE
    keeps_blocks: ClassVar[bool] = True

    def set_up(self, processor: ProcessorConfig) -> None:
        vision = self.model.config.vision_config
        self.rules = PixelRules.from_config(processor, vision.image_size)
        self.patches = vision.image_size // vision.patch_size

    @classmethod
    def frame_rule_of(cls, config: StockConfig, processor: ProcessorConfig) -> FrameRule:
        patches = config.vision_config.image_size // config.vision_config.patch_size
        return SquareFrames(math.ceil(patches / 2) ** 2, patches**2, separators=1)

    def preprocess(self, clip: Clip) -> Pixels:
        """Return square frames (T, 3, S, S)."""
        shown = resize_to_square(clip.frames, self.rules, self.device)
        return Pixels(shown, (len(shown), self.patches, self.patches), seconds_of(clip), rules=self.rules)

    @torch.inference_mode()
    def encode_steps(self, pixels: Pixels, *, pooled: bool = False) -> Steps[VisionOutput]:
        """Return T * cells ** 2 + 1 tokens: pooled features of all frames in raster order, then the newline."""
        frames, side, _ = pixels.grid
        parts = yield from self.encode_chunks(pixels, side**2, self._chunk, pooled)
        features = torch.cat(parts)
        cells = math.isqrt(len(features) // frames)
        vision = VisionOutput.raster(features, (frames, cells, cells), pixels.seconds)
        newline = self.model.model.image_newline[None].to(features)
        separator = vision.row.new_tensor([-1])
        return replace(
            vision,
            features=torch.cat([features, newline]),
            frame=torch.cat([vision.frame, vision.frame[-1:]]),
            row=torch.cat([vision.row, separator]),
            column=torch.cat([vision.column, separator]),
        )

    def _chunk(self, pixels: Pixels, pooled: bool) -> torch.Tensor:
        """Encode some frames, without the newline."""
        batch = pixels.on(self.device, self.vision_dtype)[None]
        frames, side, _ = pixels.grid
        projector = self.model.model.multi_modal_projector
        with calls_of(projector) as calls:
            features: torch.Tensor = self.model.get_video_features(batch).pooler_output[0, :-1]
        if not pooled:
            return features
        halved = pool_features(calls[0][0].reshape(frames, side, side, -1))  # the tower's features, (T, patches, d)
        projected = projector(halved.flatten(1, 2)).reshape(*halved.shape[:3], -1).permute(0, 3, 1, 2)
        cells = math.ceil(halved.shape[1] / 2)
        pooled_twice = F.interpolate(projected, size=(cells, cells), mode="bilinear").permute(0, 2, 3, 1)
        return pooled_twice.flatten(0, 2)
