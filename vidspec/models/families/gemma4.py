"""Gemma 4: frames in their own aspect ratio, nine patches per token, the time before each frame; no audio input."""

from __future__ import annotations

from typing import ClassVar

import torch

from vidspec.engine.requests import Steps
from vidspec.models.base import Pixels, StockConfig, VisionOutput, families
from vidspec.models.frame_rules import TokenGrid
from vidspec.models.preprocess import MODES, PixelRules, ProcessorConfig, pool_features, resize_to_square, seconds_of
from vidspec.models.video_language_model import VideoLanguageModel
from vidspec.video.base import Clip

CHAT_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}{% set role = message['role'] %}"
    "{{ '<|turn>' + ('model' if role == 'assistant' else role) + '\n' }}"
    "{% for content in message['content'] %}{% if content['type'] == 'video' %}{{ '\n\n<|video|>\n\n' }}"
    "{% elif content['type'] == 'text' %}{{ content['text'] | trim }}{% endif %}{% endfor %}{{ '<turn|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|turn>model\n' }}{% endif %}"
)


@families.register("gemma4")
class Gemma4(VideoLanguageModel):
    """A ``Gemma4ForConditionalGeneration``; its prompt is ``<bos><|turn>user\\n\\n\\n{frames}\\n\\n{prompt}<turn|>\\n
    <|turn>model\\n``, each frame being ``{mm:ss} <|image>{frame}<image|>``.
    """

    family = "gemma4"
    chat_template: ClassVar[str] = CHAT_TEMPLATE
    frame_rule: TokenGrid

    def set_up(self, processor: ProcessorConfig) -> None:
        config, tokens = self.model.config, self.tokenizer
        self.patch, self.pool = int(config.vision_config.patch_size), int(config.vision_config.pooling_kernel_size)
        self.mode = MODES.get(processor.get("resample", 3), "bicubic")
        self.opens, self.closes = (
            tokens.convert_ids_to_tokens(id_) for id_ in (config.boi_token_id, config.eoi_token_id)
        )

    def prompt_pieces(self, vision: VisionOutput) -> list[str | range]:
        each, pieces, before = len(vision) // vision.grid[0], list[str | range](), ""
        for frame, second in enumerate(vision.seconds):
            time = f"{int(second // 60):02d}:{int(second % 60):02d}"
            pieces += [f"{before}{time} {self.opens}", range(frame * each, (frame + 1) * each)]
            before = f"{self.closes} "
        return [*pieces, self.closes]

    @classmethod
    def frame_rule_of(cls, config: StockConfig, processor: ProcessorConfig) -> TokenGrid:
        patch, pool = int(config.vision_config.patch_size), int(config.vision_config.pooling_kernel_size)
        return TokenGrid(patch * pool, pool, int(processor.get("max_soft_tokens", 70)))

    def preprocess(self, clip: Clip) -> Pixels:
        """Return patches (T * P, 3 * patch ** 2), in raster order per frame; within a patch, channels vary fastest."""
        side = self.patch * self.pool
        rows, columns = self.frame_rule.grid(clip.frames.shape[1], clip.frames.shape[2])
        rules = PixelRules(rows * side, columns * side, (0.0,), (1.0,), self.mode)
        shown = resize_to_square(clip.frames, rules, self.device)
        cut = shown.unflatten(3, (-1, self.patch)).unflatten(2, (-1, self.patch)).permute(0, 2, 4, 3, 5, 1)
        return Pixels(cut.flatten(3).flatten(0, 2), (len(shown), rows, columns), seconds_of(clip), rules=rules)

    @torch.inference_mode()
    def encode_steps(self, pixels: Pixels, *, pooled: bool = False) -> Steps[VisionOutput]:
        """Return the tokens of all frames in raster order; ``pooled`` averages them 2 x 2 before the projector."""
        frames, rows, columns = pixels.grid
        outputs = yield from self.encode_chunks(pixels, rows * columns * self.pool**2, self._chunk, pooled)
        if pooled:
            rows, columns = -(-rows // 2), -(-columns // 2)
        return VisionOutput.raster(torch.cat(outputs), (frames, rows, columns), pixels.seconds)

    def _chunk(self, pixels: Pixels, pooled: bool) -> torch.Tensor:
        """Encode some frames to (N, hidden)."""
        values, places = self.patches(pixels)
        states = self.model.model.vision_tower(values, places).last_hidden_state
        if pooled:
            states = pool_features(states.view(*pixels.grid, -1)).flatten(0, 2)
        return self.model.model.embed_vision(states)  # type: ignore[no-any-return]

    def patches(self, pixels: Pixels) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the patches (T, P, 3 * patch ** 2), and the column and row of each (T, P, 2)."""
        frames, _, columns = pixels.grid
        values = pixels.on(self.device, self.vision_dtype).unflatten(0, (frames, -1))
        place = torch.arange(values.shape[1], device=self.device)
        width = columns * self.pool
        return values, torch.stack([place % width, place // width], -1).expand(frames, -1, -1)
