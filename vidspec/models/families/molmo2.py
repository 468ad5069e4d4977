"""Molmo 2: every frame is a square after its time; the tokens of all frames see each other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

import torch
from torch.nn import functional as F

from vidspec.engine.requests import Steps
from vidspec.errors import ModelError
from vidspec.models.base import EmbeddedPrompt, Pixels, StockConfig, VisionOutput, families
from vidspec.models.frame_rules import FrameRule, SquareFrames
from vidspec.models.preprocess import PixelRules, ProcessorConfig, channels_first, pool_features, seconds_of
from vidspec.models.video_language_model import VideoLanguageModel
from vidspec.models.vision import calls_of
from vidspec.video.base import Clip

CHAT_TEMPLATE = (
    "{% for message in messages %}{% for content in message['content'] %}"
    "{% if content['type'] == 'video' %}{{ '<|video|>' }}{% endif %}{% endfor %}{% endfor %}"
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' }}"
    "{% for content in message['content'] %}{% if content['type'] == 'text' %}{{ content['text'] }}{% endif %}"
    "{% endfor %}{{ '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
#: Tokens of pictures and frames, which see each other both ways.
MARKS = (
    "<im_patch>",
    "<im_col>",
    "<im_start>",
    "<low_res_im_start>",
    "<frame_start>",
    "<im_end>",
    "<frame_end>",
    "<im_low>",
)
#: Frames resized at once as floats.
_BATCH = 8


@families.register("molmo2")
class Molmo2(VideoLanguageModel):
    """A ``Molmo2ForConditionalGeneration``; its prompt is ``<|im_end|>{frames}<|im_start|>user\\n{prompt}<|im_end|>\\n
    <|im_start|>assistant\\n``, the frames, separated by spaces, being ``{time:.1f} <frame_start>{frame}<frame_end>``.

    A visual token's features are the projected ones plus the embedding of its placeholder.
    """

    family = "molmo2"
    visual_token: ClassVar[str] = "image_patch_id"
    has_bidirectional_rows: ClassVar[bool] = True
    keeps_blocks: ClassVar[bool] = True
    chat_template: ClassVar[str] = CHAT_TEMPLATE

    def set_up(self, processor: ProcessorConfig) -> None:
        if len({*self.language.rope_types}) > 1 and self.language.rotary_emb.rope_type != "default":
            raise ModelError(f"{self.name}: only some of its blocks scale rotary positions", kind="family")
        vision = self.model.config.vision_config
        self.square = PixelRules.from_config({"resample": 2, **processor}, int(vision.image_size[0]))
        self.patch, self.pool = int(vision.patch_size), _pool_of(processor)
        special = processor.get("use_frame_special_tokens", True)
        self.opens, self.closes = ("<frame_start>", "<frame_end>") if special else ("<im_start>", "<im_end>")
        self.row_end = "<im_col>" if processor.get("video_use_col_tokens", False) else ""
        self._marks = torch.tensor(self.tokenizer.convert_tokens_to_ids([*MARKS]))
        self.template.video_text = "<|video|>"
        # The library's processor puts BOS first, or the end token where there is none.
        first = self.tokenizer.bos_token or self.tokenizer.eos_token
        if not self.template.rendered("?").startswith(first):
            self.template.leading_ids = [int(self.tokenizer.convert_tokens_to_ids(first))]

    @classmethod
    def frame_rule_of(cls, config: StockConfig, processor: ProcessorConfig) -> FrameRule:
        vision = config.vision_config
        side = PixelRules.from_config(processor, int(vision.image_size[0])).height // int(vision.patch_size)
        down, across = _pool_of(processor)
        return SquareFrames(tokens=-(-side // down) * -(-side // across), rows=side**2)

    def prompt_pieces(self, vision: VisionOutput) -> Sequence[str | range]:
        (_, rows, columns), end, before = vision.grid, 0, ""
        pieces: list[str | range] = []
        for seconds in vision.seconds:
            before += f"{seconds:.1f} {self.opens}"
            for _ in range(rows if self.row_end else 1):
                begin, end = end, end + (columns if self.row_end else rows * columns)
                pieces += [before, range(begin, end)]
                before = self.row_end
            before += f"{self.closes} "
        return [*pieces, before.removesuffix(" ")]

    def preprocess(self, clip: Clip) -> Pixels:
        """Return (T, 3, side, side) bytes, resized without antialiasing."""
        size, parts = (self.square.height, self.square.width), []
        for part in channels_first(clip.frames, self.device).split(_BATCH):
            resized = F.interpolate(part.float(), size=size, mode=self.square.mode, align_corners=False)
            parts.append(resized.round_().clamp_(0, 255).to(torch.uint8))
        side = size[0] // self.patch
        return Pixels(torch.cat(parts), (len(clip), side, side), seconds_of(clip), rules=self.square)

    @torch.inference_mode()
    def encode_steps(self, pixels: Pixels, *, pooled: bool = False) -> Steps[VisionOutput]:
        """Return the tokens of all frames in raster order; ``pooled`` averages patches 2 x 2 before the projector."""
        frames, side, _ = pixels.grid
        outputs = yield from self.encode_chunks(pixels, side**2, self._chunk, pooled)
        placeholder = self.embed(torch.tensor(self.visual_id, device=self.device))
        side = -(-side // 2) if pooled else side
        down, across = (-(-side // size) for size in self.pool)
        grid = (frames, down, across)
        features = torch.cat(outputs)
        return VisionOutput.raster(features + placeholder.to(features), grid, pixels.seconds)

    def _chunk(self, pixels: Pixels, pooled: bool) -> torch.Tensor:
        """Encode some frames to (N, hidden)."""
        projector, inputs = self.model.model.multi_modal_projector, self.tower_inputs(pixels)
        with calls_of(projector) as calls:
            features: torch.Tensor = self.model.get_video_features(**inputs).pooler_output[0]
        if not pooled:
            return features
        halved = pool_features(calls[0][0].view(*pixels.grid, -1))
        index = pooling_index(pixels.grid[0], halved.shape[1], self.pool).to(self.device)
        return projector(halved.flatten(1, 2), index).last_hidden_state  # type: ignore[no-any-return]

    def tower_inputs(self, pixels: Pixels) -> dict[str, torch.Tensor]:
        frames, side, _ = pixels.grid
        cells = pixels.on(self.device, self.vision_dtype).unflatten(3, (side, -1)).unflatten(2, (side, -1))
        grid = [frames, *(-(-side // size) for size in self.pool)]
        return {
            "pixel_values_videos": cells.permute(0, 2, 4, 3, 5, 1).flatten(3).flatten(1, 2),
            "video_token_pooling": pooling_index(frames, side, self.pool).to(self.device),
            "video_grids": torch.tensor([grid], device=self.device),
        }

    def _embed_prompt(self, token_ids: list[int], rows: torch.Tensor, vision: VisionOutput | None) -> EmbeddedPrompt:
        prefix = super()._embed_prompt(token_ids, rows, vision)
        seen = torch.isin(prefix.token_ids.cpu(), self._marks).nonzero()[:, 0]
        return replace(prefix, bidirectional=seen.to(self.device))


def _pool_of(processor: ProcessorConfig) -> tuple[int, int]:
    """Return the rows and columns of patches that make a token."""
    down, across = processor.get("pooling_size") or (3, 3)
    return int(down), int(across)


def pooling_index(frames: int, side: int, pool: tuple[int, int]) -> torch.Tensor:
    """Return the patches (frames * tokens, rows * columns) of each token; -1 outside the frame, which is centred."""
    down, across = (-side % size for size in pool)
    grid = torch.arange(side**2).view(side, side)
    grid = F.pad(grid, (across // 2, across - across // 2, down // 2, down - down // 2), value=-1)
    tokens = grid.unfold(0, pool[0], pool[0]).unfold(1, pool[1], pool[1]).flatten(2).flatten(0, 1)
    of_frames = tokens + torch.arange(frames)[:, None, None] * side**2
    return torch.where(tokens >= 0, of_frames, -1).flatten(0, 1)
