"""MiniCPM-V 4.6: each frame whole and, if large, in slices; a tower that merges patches midway; Qwen3.5's blocks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import torch

from vidspec.engine.requests import Steps
from vidspec.errors import ModelError
from vidspec.models.base import Pixels, StockConfig, VisionOutput, families
from vidspec.models.frame_rules import Size, SlicedFrames
from vidspec.models.preprocess import PixelRules, ProcessorConfig, channels_first, pool_features, resize, seconds_of
from vidspec.models.video_language_model import VideoLanguageModel
from vidspec.models.vision import WINDOWS, calls_of
from vidspec.video.base import Clip

CHAT_TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' }}"
    "{% for content in message['content'] %}{% if content['type'] == 'video' %}{{ '<|video_pad|>\n' }}"
    "{% elif content['type'] == 'text' %}{{ content['text'] | trim }}{% endif %}{% endfor %}{{ '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n<think>\n\n</think>\n\n' }}{% endif %}"
)


@families.register("minicpmv4_6")
class MiniCPMV46(VideoLanguageModel):
    """A ``MiniCPMV4_6ForConditionalGeneration``; its prompt is ``<|im_start|>user\\n<image_id>0</image_id>{frames}\\n
    {prompt}<|im_end|>\\n<|im_start|>assistant\\n<think>\\n\\n</think>\\n\\n``, each frame being
    ``<image>{whole}</image>``, then ``<slice>{slice}</slice>`` for each slice, rows of slices on lines of their own.
    """

    family = "minicpmv4_6"
    vision_attention: ClassVar[str | None] = WINDOWS
    chat_template: ClassVar[str] = CHAT_TEMPLATE
    frame_rule: SlicedFrames

    def set_up(self, processor: ProcessorConfig) -> None:
        if int(processor.get("stack_frames") or 1) > 1:
            raise ModelError(f"{self.name}: its processor puts several frames in one picture", kind="family")
        self.rules = PixelRules.from_config(processor, self.frame_rule.side)
        self.mode = str(processor.get("downsample_mode") or "16x")
        self.begins = "<image_id>0</image_id>" if processor.get("use_image_id", True) else ""
        #: Patches per side of a row of the tower's output.
        self.window = 1 if self.mode == "4x" else 2

    @classmethod
    def frame_rule_of(cls, config: StockConfig, processor: ProcessorConfig) -> SlicedFrames:
        return SlicedFrames(
            side=int(processor.get("scale_resolution") or 448),
            most=int(processor.get("max_slice_nums") or 9) if processor.get("slice_mode", True) else 1,
            patch=int(config.vision_config.patch_size),
            merge=2 if processor.get("downsample_mode") == "4x" else 4,
        )

    def prompt_pieces(self, vision: VisionOutput) -> Sequence[str | range]:
        whole, *sliced = (rows * columns for rows, columns in vision.views or (vision.grid[1:],))
        down, across = vision.slices
        pieces, text, end = list[str | range](), self.begins, 0
        for _ in vision.seconds:
            pieces += [f"{text}<image>", range(end, end + whole)]
            end, text = end + whole, "</image>"
            for cell in range(down * across):
                each = sliced[0] // (down * across)
                text += "\n" if cell and cell % across == 0 else ""
                pieces += [f"{text}<slice>", range(end, end + each)]
                end, text = end + each, "</slice>"
        return [*pieces, text]

    def preprocess(self, clip: Clip) -> Pixels:
        """Return patches (T * P, 3 * patch ** 2), of the whole frame, then of its slices; in raster order in each.

        The grid has the frames' height and width in pixels.
        """
        frames = channels_first(clip.frames, self.device)
        height, width = frames.shape[-2:]
        whole, (down, across), each = self.frame_rule.views(height, width)
        parts = [self._cut(resize(frames, *whole, self.rules.mode))]
        if down:
            large = resize(frames, down * each[0], across * each[1], self.rules.mode)
            slices = large.unflatten(3, (across, -1)).unflatten(2, (down, -1)).permute(0, 2, 4, 1, 3, 5)
            parts.append(self._cut(slices).flatten(1, 3))
        return Pixels(
            torch.cat(parts, 1).flatten(0, 1), (len(frames), height, width), seconds_of(clip), rules=self.rules
        )

    def _cut(self, pictures: torch.Tensor) -> torch.Tensor:
        """Cut pictures (..., 3, H, W) to patches (..., N, 3 * patch ** 2)."""
        patch = self.frame_rule.patch
        cells: torch.Tensor = pictures.unflatten(-1, (-1, patch)).unflatten(-3, (-1, patch))
        cells = cells.movedim(-4, -5).movedim(-2, -4)  # rows and columns of patches first
        return cells.flatten(-3).flatten(-3, -2)

    @torch.inference_mode()
    def encode_steps(self, pixels: Pixels, *, pooled: bool = False) -> Steps[VisionOutput]:
        """Return per frame the tokens of the whole, then of each slice; ``pooled`` averages the tower's output 2 x 2.

        In the frame's raster of visual tokens, the rows of the slices come below those of the whole.
        """
        frames, height, width = pixels.grid
        _, slices, _ = self.frame_rule.views(height, width)
        outputs = yield from self.encode_chunks(pixels, len(pixels.stored) // frames, self._chunk, pooled)
        features, sizes = zip(*outputs, strict=True)
        views, places = _layout(sizes[0][0], sizes[0][-1], slices)
        row, column = places.to(features[0].device).repeat(1, frames)
        return VisionOutput(
            features=torch.cat(features),
            frame=torch.arange(frames, device=row.device).repeat_interleave(places.shape[1]),
            row=row,
            column=column,
            grid=(frames, sum(view[0] for view in views), max(view[1] for view in views)),
            seconds=pixels.seconds,
            views=views if len(views) > 1 else (),
            slices=slices,
        )

    def _chunk(self, pixels: Pixels, pooled: bool) -> tuple[torch.Tensor, list[Size]]:
        """Encode some frames to (N, hidden); also return the rows and columns of tokens of each view."""
        merger, inputs = self.model.model.merger, self.tower_inputs(pixels)
        with calls_of(merger) as calls:
            features = self.model.get_image_features(**inputs, downsample_mode=self.mode).pooler_output
        sizes = inputs["target_sizes"] // self.window
        if pooled:
            halved = []
            for view, size in zip(calls[0][0][0].split(sizes.prod(-1).tolist()), sizes.tolist(), strict=True):
                cells = pool_features(view.view(1, *size, -1))[0]
                rows, columns = (torch.arange(side + side % 2).clamp(max=side - 1) for side in cells.shape[:2])
                halved.append(cells[rows][:, columns])
            sizes = torch.tensor([cells.shape[:2] for cells in halved])
            features = merger(torch.cat([cells.flatten(0, 1) for cells in halved])[None], sizes)
        return torch.cat(list(features)), [(rows // 2, columns // 2) for rows, columns in sizes.tolist()]

    def tower_inputs(self, pixels: Pixels) -> dict[str, torch.Tensor]:
        frames, height, width = pixels.grid
        whole, (down, across), each = self.frame_rule.views(height, width)
        patch, values = self.frame_rule.patch, pixels.on(self.device, self.vision_dtype)
        sizes = torch.tensor([whole, *[each] * (down * across)], dtype=torch.int32) // patch
        rows = values.unflatten(1, (3, patch, patch)).permute(1, 2, 0, 3).flatten(2)
        return {"pixel_values": rows[None], "target_sizes": sizes.repeat(frames, 1)}


def _layout(whole: Size, each: Size, slices: Size) -> tuple[tuple[Size, ...], torch.Tensor]:
    """Return rows and columns of the whole and of all slices together, and row and column (2, N) of each token.

    Args:
        whole, each: rows and columns of tokens of the whole frame and of a slice.
        slices: rows and columns of slices.
    """
    cell = torch.arange(whole[0] * whole[1])
    places = torch.stack([cell // whole[1], cell % whole[1]])
    if slices == (0, 0):
        return (whole,), places
    (down, across), (rows, columns) = slices, each
    grid = torch.arange(down * rows * across * columns).view(down, rows, across, columns).transpose(1, 2).flatten()
    wide = across * columns
    below = torch.stack([whole[0] + grid // wide, grid % wide])
    return (whole, (down * rows, wide)), torch.cat([places, below], 1)
