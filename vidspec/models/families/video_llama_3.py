"""VideoLLaMA 3: every frame after its time, without the tokens whose pixels are those of the frame before."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

import torch

from vidspec.engine.requests import Steps
from vidspec.models.base import Pixels, StockConfig, VisionOutput, families
from vidspec.models.families.qwen2_5_vl import Qwen25VL
from vidspec.models.preprocess import GridRules, ProcessorConfig, pool_features
from vidspec.models.video_language_model import VideoLanguageModel
from vidspec.models.vision import calls_of

CHAT_TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' }}"
    "{% for content in message['content'] %}{% if content['type'] == 'video' %}{{ '<|video_pad|>\n' }}"
    "{% elif content['type'] == 'text' %}{{ content['text'] }}{% endif %}{% endfor %}{{ '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
#: Mean difference of a token's pixels from those before, in bytes of a range of two, above which it is kept.
CHANGE = 0.1


@families.register("video_llama_3")
class VideoLlama3(Qwen25VL):
    """A ``VideoLlama3ForConditionalGeneration``; its prompt is ``<|im_start|>user\\n{frames}\\n{prompt}<|im_end|>\\n
    <|im_start|>assistant\\n``, the frames, separated by commas, being ``Time {time:.1f}s:{frame}``.
    """

    family = "video_llama_3"
    even_steps: ClassVar[bool] = False
    chat_template: ClassVar[str] = CHAT_TEMPLATE
    default_rules: ClassVar[GridRules] = GridRules(
        min_pixels=128 * 28**2, max_pixels=768 * 28**2, max_video_tokens=0, steps=1, shared=True
    )

    def set_up(self, processor: ProcessorConfig) -> None:
        self.tower = self.model.model.vision_model
        self.rules = self.rules_of(processor, self.model.config.vision_config)
        self.merge = self.rules.merge
        self.compresses = bool(processor.get("use_token_compression", True))

    @classmethod
    def rules_of(cls, processor: ProcessorConfig, vision: StockConfig) -> GridRules:
        return GridRules.from_config(processor, replace(cls.default_rules, patch=int(vision.patch_size)))

    def prompt_pieces(self, vision: VisionOutput) -> Sequence[str | range]:
        pieces, end, before = list[str | range](), 0, ""
        for count, seconds in zip(vision.frame.bincount().tolist(), vision.seconds, strict=True):
            pieces += [f"{before}Time {seconds:.1f}s:", range(end, end + count)]
            end, before = end + count, ","
        return pieces

    @torch.inference_mode()
    def encode_steps(self, pixels: Pixels, *, pooled: bool = False) -> Steps[VisionOutput]:
        """Return the tokens in raster order that differ from those of the frame before; all if ``pooled``."""
        seen = yield from super().encode_steps(pixels, pooled=pooled)
        if pooled or not self.compresses:
            return seen
        kept = self.changed(pixels).flatten().to(seen.features.device)
        return replace(
            seen,
            features=seen.features[kept],
            frame=seen.frame[kept],
            row=seen.row[kept],
            column=seen.column[kept],
        )

    def changed(self, pixels: Pixels) -> torch.Tensor:
        """Return (frames, tokens), whether the pixels of a token changed; at least the first of every frame."""
        frames, rows, columns = pixels.grid
        stored = pixels.stored.view(frames, rows * columns // self.merge**2, -1)
        kept = torch.ones(stored.shape[:2], dtype=torch.bool)
        for frame in range(1, frames):
            before, now = replace(pixels, stored=stored[frame - 1 : frame + 1].flatten(0, 1)).values.chunk(2)
            difference = (now - before).abs().view(stored.shape[1], -1).mean(-1) * 255
            kept[frame] = difference > CHANGE
            kept[frame, 0] |= not kept[frame].any()
        return kept

    def _chunk(self, pixels: Pixels, pooled: bool) -> tuple[list[torch.Tensor], tuple[int, int]]:
        """Encode some frames; ``pooled`` averages the tower's merged features 2 x 2 before the projector."""
        frames, rows, columns = pixels.grid
        sides, projector = (rows // self.merge, columns // self.merge), self.model.model.projector
        with calls_of(projector) as calls:
            features = self.model.model.get_video_features(*self.tower_inputs(pixels).values()).pooler_output[0]
        if not pooled:
            return [features], sides
        halved = pool_features(calls[0][0].view(frames, *sides, -1))
        return [projector(halved.flatten(0, 2))], (halved.shape[1], halved.shape[2])

    def tower_inputs(self, pixels: Pixels) -> dict[str, object]:
        return {
            "pixel_values_videos": pixels.on(self.device, self.vision_dtype),
            "video_grid_thw": torch.tensor([pixels.grid], device=self.device),
            "video_merge_sizes": torch.tensor([self.merge], device=self.device),
        }

    def positions(
        self, token_ids: torch.Tensor, vision: VisionOutput | None, rows: torch.Tensor
    ) -> tuple[torch.Tensor, float]:
        """Return positions on one axis."""
        return VideoLanguageModel.positions(self, token_ids, vision, rows)
