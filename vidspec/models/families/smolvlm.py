"""SmolVLM2: square frames after their timestamps, pixel-shuffled patches, the frame count spelled out in the prompt."""

from __future__ import annotations

import math
from datetime import timedelta
from typing import ClassVar

import torch

from vidspec.engine.requests import Steps
from vidspec.models.base import Pixels, StockConfig, StockModel, VisionOutput, families
from vidspec.models.frame_rules import FrameRule, SquareFrames
from vidspec.models.preprocess import PixelRules, ProcessorConfig, channels_first, pool_features, resize, seconds_of
from vidspec.models.video_language_model import VideoLanguageModel
from vidspec.models.vision import calls_of
from vidspec.video.base import Clip

CHAT_TEMPLATE = (
    "<|im_start|>{% for message in messages %}{{ message['role'] | capitalize + ': ' }}"
    "{% for content in message['content'] %}{% if content['type'] == 'video' %}{{ '<video>' }}"
    "{% elif content['type'] == 'text' %}{{ content['text'] }}{% endif %}{% endfor %}{{ '<end_of_utterance>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ 'Assistant:' }}{% endif %}"
)
INTRODUCTION = "You are provided the following series of {frames} frames from a {duration} [H:MM:SS] video.\n"
#: Defaults of the video processor: longer side of the first resize, side of the square.
LONGEST, SQUARE = 4 * 364, 364
#: Maximum longer side, whatever the config says.
LIMIT = 4096
_TENS = ("twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety")
_ONES = (
    *("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"),
    *("thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen"),
)


@families.register("smolvlm")
class SmolVLM(VideoLanguageModel):
    """A ``SmolVLMForConditionalGeneration``; its prompt is ``<|im_start|>User: {introduction}{frames}\\n\\n{prompt}
    <end_of_utterance>\\nAssistant:``, each frame being ``\\nFrame from {mm:ss}:<fake_token_around_image><global-img>
    {frame}<fake_token_around_image>``.

    The templates of checkpoints do not support videos; the processor of ``transformers`` uses its own instead.
    """

    family = "smolvlm"
    visual_token: ClassVar[str] = "image_token_id"
    chat_template: ClassVar[str] = CHAT_TEMPLATE

    @staticmethod
    def language_of(model: StockModel) -> StockModel:
        return model.model.text_model

    def set_up(self, processor: ProcessorConfig) -> None:
        vision, self.scale = self.model.config.vision_config, int(self.model.config.scale_factor)
        self.patches = vision.image_size // vision.patch_size
        #: Visual tokens per side of a frame.
        self.side = self.patches // self.scale
        sampled = (processor.get("video_sampling") or {}).get("video_size") or {}
        size = processor.get("size") or sampled
        self.longest = int(size.get("longest_edge", LONGEST))
        square = int((processor.get("max_image_size") or {}).get("longest_edge", SQUARE))
        given = {"resample": 1, **processor, "size": {"height": square, "width": square}}
        self.square = PixelRules.from_config(given, square)
        self.template.source, self.template.video_text = CHAT_TEMPLATE, "<video>"
        self.around = getattr(self.tokenizer, "fake_image_token", None) or "<fake_token_around_image>"
        self.whole = getattr(self.tokenizer, "global_image_token", None) or "<global-img>"

    def prompt_pieces(self, vision: VisionOutput) -> list[str | range]:
        each = self.side**2 if not len(vision) else len(vision) // vision.grid[0]
        duration = vision.seconds[-1] if vision.duration is None else vision.duration
        text = INTRODUCTION.format(frames=number_in_words(vision.grid[0]), duration=timedelta(seconds=int(duration)))
        pieces: list[str | range] = []
        for frame, second in enumerate(vision.seconds):
            time = f"{int(second // 60):02d}:{int(second % 60):02d}"
            text += f"\nFrame from {time}:{self.around}{self.whole}"
            pieces += [text, range(frame * each, (frame + 1) * each)]
            text = self.around
        return [*pieces, f"{text}\n\n"]

    @classmethod
    def frame_rule_of(cls, config: StockConfig, processor: ProcessorConfig) -> FrameRule:
        patches = config.vision_config.image_size // config.vision_config.patch_size
        return SquareFrames((patches // int(config.scale_factor)) ** 2, patches**2)

    def preprocess(self, clip: Clip) -> Pixels:
        """Return frames (T, 3, S, S), resized by the longer side, then to squares; on the CPU, which has Lanczos."""
        frames = channels_first(clip.frames)
        shown = resize(frames, *size_by_longest(frames.shape[-2], frames.shape[-1], self.longest), self.square.mode)
        shown = resize(shown, self.square.height, self.square.width, self.square.mode)
        grid = (len(shown), self.side, self.side)
        return Pixels(shown, grid, seconds_of(clip), clip.facts.duration_s, rules=self.square)

    @torch.inference_mode()
    def encode_steps(self, pixels: Pixels, *, pooled: bool = False) -> Steps[VisionOutput]:
        """Return T * side ** 2 tokens, all frames in raster order.

        ``pooled`` averages patches 2 x 2 before the pixel shuffle; the last patches are repeated if a pooled side is
        not divisible by ``scale``.
        """
        outputs = yield from self.encode_chunks(pixels, self.patches**2, self._chunk, pooled)
        features, frames = torch.cat(outputs), pixels.grid[0]
        side = math.isqrt(len(features) // frames)
        return VisionOutput.raster(features, (frames, side, side), pixels.seconds, duration=pixels.duration)

    def _chunk(self, pixels: Pixels, pooled: bool) -> torch.Tensor:
        """Encode some frames to (N, hidden)."""
        values = pixels.on(self.device, self.vision_dtype)[None]
        connector = self.model.model.connector
        with calls_of(connector) as calls:
            features: torch.Tensor = self.model.get_image_features(values).pooler_output[0]
        if not pooled:
            return features
        halved = pool_features(
            calls[0][0].unflatten(1, (self.patches, self.patches))
        )  # the tower's features, (T, patches, d)
        side = -(-halved.shape[1] // self.scale) * self.scale
        index = torch.arange(side, device=halved.device).clamp(max=halved.shape[1] - 1)
        return connector(halved[:, index][:, :, index].flatten(1, 2)).flatten(0, 1)  # type: ignore[no-any-return]


def size_by_longest(height: int, width: int, longest: int) -> tuple[int, int]:
    """Return the height and width of a frame resized to the longer side ``longest``; the other side is even."""
    longest, ratio = min(LIMIT, longest), width / height
    shorter = int(longest / ratio) if width >= height else int(longest * ratio)
    shorter = max(1, shorter + shorter % 2)
    return (shorter, longest) if width >= height else (longest, shorter)


def number_in_words(count: int) -> str:
    """Spell out a number below a million like num2words, which ``transformers``' processor uses for frame counts."""
    if count < 20:
        return _ONES[count]
    if count < 100:
        tens, ones = divmod(count, 10)
        return _TENS[tens - 2] + (f"-{_ONES[ones]}" if ones else "")
    if count < 1000:
        hundreds, rest = divmod(count, 100)
        return f"{_ONES[hundreds]} hundred" + (f" and {number_in_words(rest)}" if rest else "")
    thousands, rest = divmod(count, 1000)
    join = " and " if rest < 100 else ", "
    return f"{number_in_words(thousands)} thousand" + (f"{join}{number_in_words(rest)}" if rest else "")
