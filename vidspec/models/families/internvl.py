"""InternVL 3 and 3.5: frames resized to squares, four patches per token, numbered frames in the prompt."""

from __future__ import annotations

from typing import ClassVar

from vidspec.models.base import Pixels, StockConfig, VisionOutput, families
from vidspec.models.families.llava import Llava
from vidspec.models.frame_rules import FrameRule, SquareFrames
from vidspec.models.preprocess import CLIP_MEAN, CLIP_STD, PixelRules, ProcessorConfig, resize_to_square, seconds_of
from vidspec.video.base import Clip

CHAT_TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' }}"
    "{% for content in message['content'] %}{% if content['type'] == 'video' %}{{ '<video>\n' }}"
    "{% elif content['type'] == 'text' %}{{ content['text'] }}{% endif %}{% endfor %}{{ '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


@families.register("internvl")
class InternVL(Llava):
    """An ``InternVLForConditionalGeneration`` (the checkpoints whose names end in ``-HF``); its prompt is
    ``<|im_start|>user\\nFrame1: <img>{frame}</img>\\nFrame2: ...\\n{prompt}<|im_end|>\\n<|im_start|>assistant\\n``.
    """

    family = "internvl"
    content: ClassVar[str] = "video"
    chat_template: ClassVar[str] = CHAT_TEMPLATE

    def set_up(self, processor: ProcessorConfig) -> None:
        config, tokenizer = self.model.config, self.tokenizer
        size, patch = config.vision_config.image_size[0], config.vision_config.patch_size[0]
        given = {"image_mean": CLIP_MEAN, "image_std": CLIP_STD, **processor}
        self.square = PixelRules.from_config(given, size)
        self.side = int(size // patch * config.downsample_ratio)
        self.tower_rows = (size // patch) ** 2 + 1
        self.opens = getattr(tokenizer, "start_image_token", None) or "<img>"
        self.closes = getattr(tokenizer, "end_image_token", None) or "</img>"
        self.template.video_text = getattr(tokenizer, "video_token", None) or "<video>"

    @classmethod
    def frame_rule_of(cls, config: StockConfig, processor: ProcessorConfig) -> FrameRule:
        patches = config.vision_config.image_size[0] // config.vision_config.patch_size[0]
        return SquareFrames(int(patches * config.downsample_ratio) ** 2, patches**2 + 1)

    def prompt_pieces(self, vision: VisionOutput) -> list[str | range]:
        each = len(vision) // vision.grid[0]
        pieces: list[str | range] = []
        for frame in range(vision.grid[0]):
            start = f"{self.closes}\n" if frame else ""
            pieces += [f"{start}Frame{frame + 1}: {self.opens}", range(frame * each, (frame + 1) * each)]
        return [*pieces, self.closes]

    def preprocess(self, clip: Clip) -> Pixels:
        """Return square frames (T, 3, S, S)."""
        shown = resize_to_square(clip.frames, self.square, self.device)
        return Pixels(shown, (len(shown), self.side, self.side), seconds_of(clip), rules=self.square)
