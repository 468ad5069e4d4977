"""LLaVA-1.5: each frame is an image, cropped square for CLIP; no separators, no newlines."""

from __future__ import annotations

import math
from typing import ClassVar

import torch

from vidspec.engine.requests import Steps
from vidspec.models.base import Pixels, StockConfig, VisionOutput, families
from vidspec.models.frame_rules import FrameRule, SquareFrames
from vidspec.models.preprocess import ImageRules, ProcessorConfig, pool_features, resize_and_crop, seconds_of
from vidspec.models.video_language_model import VideoLanguageModel
from vidspec.models.vision import calls_of
from vidspec.video.base import Clip

VICUNA = (
    "{% for message in messages %}"
    "{% if message['role'] != 'system' %}{{ message['role'].upper() + ': ' }}{% endif %}"
    "{% for content in message['content'] if content['type'] == 'image' %}{{ '<image>\n' }}{% endfor %}"
    "{% for content in message['content'] if content['type'] == 'text' %}{{ content['text'] + ' ' }}{% endfor %}"
    "{% endfor %}{% if add_generation_prompt %}{{ 'ASSISTANT:' }}{% endif %}"
)


@families.register("llava")
class Llava(VideoLanguageModel):
    """A ``LlavaForConditionalGeneration``; its prompt is ``USER: <image>\\n<image>\\n...{prompt} ASSISTANT:``, with one
    ``<image>`` per frame, and a ``<s>`` before it if the tokenizer begins texts with one."""

    family = "llava"
    content: ClassVar[str] = "image"
    visual_token: ClassVar[str] = "image_token_id"
    keeps_blocks: ClassVar[bool] = True
    chat_template: ClassVar[str] = VICUNA

    def set_up(self, processor: ProcessorConfig) -> None:
        vision = self.model.config.vision_config
        self.rules = ImageRules.from_config(processor, vision.image_size)
        self.side = vision.image_size // vision.patch_size
        #: Tower rows of an image: patches and the class token.
        self.tower_rows = self.side**2 + 1
        two = [{"type": self.content}, {"type": self.content}, {"type": "text", "text": "?"}]
        rendered = self.template.render([{"role": "user", "content": two}])
        #: Text of the template between two images.
        self.between = parts[1] if len(parts := rendered.split(self.placeholder)) == 3 else ""

    def prompt_pieces(self, vision: VisionOutput) -> list[str | range]:
        """Return the visual tokens of each frame, separated by :attr:`between`."""
        frames = vision.grid[0]
        each = len(vision) // frames
        shown = [range(start, start + each) for start in range(0, len(vision), each)]
        return [piece for frame in shown for piece in (self.between, frame)][1:]

    @classmethod
    def frame_rule_of(cls, config: StockConfig, processor: ProcessorConfig) -> FrameRule:
        side = config.vision_config.image_size // config.vision_config.patch_size
        return SquareFrames(side**2, side**2 + 1)

    def preprocess(self, clip: Clip) -> Pixels:
        """Return square frames (T, 3, S, S)."""
        shown = resize_and_crop(clip.frames, self.rules, self.device)
        return Pixels(shown, (len(shown), self.side, self.side), seconds_of(clip), rules=self.rules.pixels)

    @torch.inference_mode()
    def encode_steps(self, pixels: Pixels, *, pooled: bool = False) -> Steps[VisionOutput]:
        """Return T * side ** 2 tokens, frames in raster order; a class token that the model keeps comes first in its
        frame and counts as a separator."""
        features, side = yield from self.projected(pixels, pooled)
        frames, each = features.shape[:2]
        cell = torch.arange(each, device=features.device) - (each - side**2)
        return VisionOutput(
            features=features.flatten(0, 1),
            frame=torch.arange(frames, device=features.device).repeat_interleave(each),
            row=torch.where(cell < 0, -1, cell // side).repeat(frames),
            column=torch.where(cell < 0, -1, cell % side).repeat(frames),
            grid=(frames, side, side),
            seconds=pixels.seconds,
        )

    def projected(self, pixels: Pixels, pooled: bool) -> Steps[tuple[torch.Tensor, int]]:
        """Return projected features (n, tokens, hidden) of n images, and tokens per side.

        Args:
            pixels: the n images.
            pooled: average the tower's features 2 x 2 just before the projector.
        """
        tokens = math.prod(pixels.stored.shape[1:-3]) * self.tower_rows  # rows per frame
        outputs = yield from self.encode_chunks(pixels, tokens, self._chunk, pooled)
        features, sides = zip(*outputs, strict=True)
        return torch.cat(features), sides[0]

    def _chunk(self, pixels: Pixels, pooled: bool) -> tuple[torch.Tensor, int]:
        """Run :meth:`projected` on some frames in one pass."""
        projector = self.model.model.multi_modal_projector
        with calls_of(projector) as calls:
            self.model.get_image_features(**self.tower_inputs(pixels))
        tower, features = calls[0]
        if not pooled:
            return features, self.side
        extra = tower.shape[1] - self.side**2
        halved = pool_features(tower[:, extra:].unflatten(1, (self.side, self.side)))
        return projector(torch.cat([tower[:, :extra], halved.flatten(1, 2)], dim=1)), halved.shape[1]

    def tower_inputs(self, pixels: Pixels) -> dict[str, object]:
        return {"pixel_values": pixels.on(self.device, self.vision_dtype)}
