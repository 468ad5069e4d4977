"""GLM-4.1V to GLM-4.6V: frames in pairs at their own resolution, the time after each pair (M-RoPE)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import torch

from vidspec.models.base import Pixels, StockConfig, VisionOutput, families
from vidspec.models.families.qwen2_5_vl import Qwen25VL
from vidspec.models.preprocess import (
    CLIP_MEAN,
    CLIP_STD,
    GridRules,
    ProcessorConfig,
    patches,
    pool_features,
    seconds_of,
)
from vidspec.models.vision import calls_of
from vidspec.video.base import Clip

#: With thinking disabled, as the published templates write it.
CHAT_TEMPLATE = (
    "[gMASK]<sop>{% for message in messages %}{{ '<|' + message['role'] + '|>\n' }}"
    "{% if message['role'] == 'assistant' %}{{ '<think></think>\n' }}{% endif %}"
    "{% for content in message['content'] %}"
    "{% if content['type'] == 'video' %}{{ '<|begin_of_video|><|video|><|end_of_video|>' }}"
    "{% elif content['type'] == 'text' %}{{ content['text'] }}{% endif %}{% endfor %}"
    "{% if message['role'] == 'user' %}{{ '/nothink' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>\n<think></think>\n' }}{% endif %}"
)


@families.register("glm4v")
class Glm4v(Qwen25VL):
    """A ``Glm4vForConditionalGeneration`` (GLM-4.1V, GLM-4.6V-Flash), ``Glm46V...`` (by the name of its processor) or
    ``Glm4vMoe...`` (GLM-4.5V, GLM-4.6V); its prompt is ``[gMASK]<sop><|user|>\\n
    <|begin_of_video|>{steps}<|end_of_video|>{prompt}/nothink<|assistant|>\\n<think></think>\\n``, each step being
    ``<|begin_of_image|>{step}<|end_of_image|>{time}``.

    The time is written in whole seconds, or as ``{time:.1f} seconds`` by the processor of GLM-4.6V.
    """

    family = "glm4v"
    step_positions: ClassVar[float | None] = 0.0  # text separates the steps, and each starts its own time axis
    visual_token: ClassVar[str] = "image_token_id"
    chat_template: ClassVar[str] = CHAT_TEMPLATE
    default_rules: ClassVar[GridRules] = GridRules(
        min_pixels=112**2,
        max_pixels=28**2 * 2 * 30_000,
        max_video_tokens=0,
        whole_clip=True,
        mean=CLIP_MEAN,
        std=CLIP_STD,
    )

    @staticmethod
    def config_of(config: StockConfig) -> StockConfig:
        """Return the config with the sections of M-RoPE that ``transformers`` takes if it names none."""
        config.text_config.rope_parameters.setdefault("mrope_section", [8, 12, 12])
        return config

    def set_up(self, processor: ProcessorConfig) -> None:
        config = self.model.config
        self.tower = self.model.model.visual
        self.merge = int(config.vision_config.spatial_merge_size)
        self.rules = self.rules_of(processor, config.vision_config)
        keys = ("video_start", "video_end", "image_start", "image_end", "video")
        marks = self.tokenizer.convert_ids_to_tokens([getattr(config, f"{key}_token_id") for key in keys])
        self.opens, self.closes, self.step_opens, self.step_closes, video = marks
        self.template.video_text = f"{self.opens}{video}{self.closes}"
        # GLM-4.6V-Flash has the model type of GLM-4.1V and another processor.
        named = [processor.get(key) for key in ("processor_class", "video_processor_type", "image_processor_type")]
        self.tenths = "46V" in f"{named} {type(config).__name__}"

    def prompt_pieces(self, vision: VisionOutput) -> Sequence[str | range]:
        each, before = vision.grid[1] * vision.grid[2], self.opens
        pieces: list[str | range] = []
        for step, seconds in enumerate(vision.seconds):
            pieces += [before + self.step_opens, range(step * each, (step + 1) * each)]
            before = self.step_closes + (f"{seconds:.1f} seconds" if self.tenths else f"{int(seconds)}")
        return [*pieces, before + self.closes]

    def preprocess(self, clip: Clip) -> Pixels:
        """Return (patches, values of a patch); ``seconds`` is that of the first frame of each temporal step."""
        shown, grid, rules = patches(clip.frames, self.rules, self.device)
        return Pixels(shown, grid, seconds_of(clip)[:: self.rules.steps], rules=rules)

    def _chunk(self, pixels: Pixels, pooled: bool) -> tuple[list[torch.Tensor], tuple[int, int]]:
        """Encode some steps; ``pooled`` averages the patches before the convolution that merges them."""
        if not pooled:
            return super()._chunk(pixels, pooled)
        with calls_of(self.tower.post_layernorm) as calls:
            super()._chunk(pixels, False)
        halved = pool_features(self._ungroup_patches(calls[0][1], pixels.grid))
        units, (_, rows, columns) = self._group_patches(halved)
        squares = units.unflatten(0, (-1, self.merge, self.merge)).permute(0, 3, 1, 2)
        return [self.tower.merger(self.tower.downsample(squares).flatten(1))], (rows, columns)
