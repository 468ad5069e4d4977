"""Qwen2.5-VL: frames in pairs at their own resolution, positions on three axes (M-RoPE)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import ClassVar

import numpy as np
import torch
from torch import nn

from vidspec.engine.requests import Steps
from vidspec.models.base import Pixels, StockConfig, StockModel, VisionOutput, families
from vidspec.models.frame_rules import FrameRule
from vidspec.models.preprocess import CLIP_MEAN, CLIP_STD, GridRules, ProcessorConfig, patches, pool_features
from vidspec.models.video_language_model import VideoLanguageModel
from vidspec.models.vision import WINDOWS
from vidspec.video.base import Clip

TURNS = (
    "{{ '<|im_start|>' + message['role'] + '\n' }}{% for content in message['content'] %}"
    "{% if content['type'] == 'video' %}{{ '<|vision_start|><|video_pad|><|vision_end|>' }}"
    "{% elif content['type'] == 'text' %}{{ content['text'] }}{% endif %}{% endfor %}{{ '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
CHAT_TEMPLATE = (
    "{% for message in messages %}{% if loop.first and message['role'] != 'system' %}"
    "{{ '<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n' }}{% endif %}" + TURNS
)


@families.register("qwen2_5_vl")
class Qwen25VL(VideoLanguageModel):
    """A ``Qwen2_5_VLForConditionalGeneration``; its prompt is ``<|im_start|>system\\n{system}<|im_end|>\\n
    <|im_start|>user\\n<|vision_start|>{video}<|vision_end|>{prompt}<|im_end|>\\n<|im_start|>assistant\\n``.

    A frame of ``VisionOutput``, and for pruners, is one temporal step: two frames of the clip.
    """

    family = "qwen2_5_vl"
    even_steps: ClassVar[bool] = True
    #: Positions on the time axis per temporal step; None if they follow the clock.
    step_positions: ClassVar[float | None] = None
    vision_attention: ClassVar[str | None] = WINDOWS
    chat_template: ClassVar[str] = CHAT_TEMPLATE
    default_rules: ClassVar[GridRules] = GridRules(
        min_pixels=128 * 28**2, max_pixels=768 * 28**2, max_video_tokens=128_000, mean=CLIP_MEAN, std=CLIP_STD
    )

    def set_up(self, processor: ProcessorConfig) -> None:
        config = self.model.config
        self.tower: StockModel = self.model.model.visual
        self.merge = int(config.vision_config.spatial_merge_size)
        self.rules = self.rules_of(processor, config.vision_config)
        special_ids = [config.vision_start_token_id, config.vision_end_token_id]
        self.opens, self.closes = self.tokenizer.convert_ids_to_tokens(special_ids)
        self.template.video_text = f"{self.opens}{self.placeholder}{self.closes}"

    @classmethod
    def rules_of(cls, processor: ProcessorConfig, vision: StockConfig) -> GridRules:
        """Return the resizing rules of the processor's config, with the published defaults."""
        sizes = {"patch": "patch_size", "merge": "spatial_merge_size", "steps": "temporal_patch_size"}
        defaults = replace(cls.default_rules, **{field: getattr(vision, key) for field, key in sizes.items()})
        return GridRules.from_config(processor, defaults)

    def prompt_pieces(self, vision: VisionOutput) -> Sequence[str | range]:
        return [self.opens, range(len(vision)), self.closes]

    @classmethod
    def frame_rule_of(cls, config: StockConfig, processor: ProcessorConfig) -> FrameRule:
        return cls.rules_of(processor, config.vision_config)

    def preprocess(self, clip: Clip) -> Pixels:
        """Return (patches, values of a patch), the grid in patches, and as ``seconds`` the start of each step.

        The processor derives steps from the mean rate of the frames, so those of frames that were chosen by their
        number are the part's duration apart, divided by it.
        """
        shown, grid, rules = patches(clip.frames, self.rules, self.device)
        starts = clip.timestamps[:: self.rules.steps]
        if clip.interval is not None and self.even_steps:
            starts = starts[0] + np.arange(len(starts)) * self.rules.steps * clip.interval
        return Pixels(shown, grid, tuple(starts.tolist()), rules=rules)

    @torch.inference_mode()
    def encode_steps(self, pixels: Pixels, *, pooled: bool = False) -> Steps[VisionOutput]:
        """Return one token per ``merge`` x ``merge`` patches, in raster order.

        ``pooled`` averages patches 2 x 2 before merging, so the grid has half the sides, rounded up; the last patches
        are repeated if a pooled side is not divisible by ``merge``.
        """
        _, rows, columns = pixels.grid
        outputs = yield from self.encode_chunks(pixels, rows * columns, self._chunk, pooled)
        levels, sides = zip(*outputs, strict=True)
        features, *deepstack = (torch.cat(level) for level in zip(*levels, strict=True))
        return VisionOutput.raster(features, (pixels.grid[0], *sides[0]), pixels.seconds, tuple(deepstack))

    def _chunk(self, pixels: Pixels, pooled: bool) -> tuple[list[torch.Tensor], tuple[int, int]]:
        """Encode some steps: the (N, hidden) output of each of :attr:`_mergers`, and rows and columns of a step."""
        _, rows, columns = pixels.grid
        values, grid = pixels.on(self.device, self.vision_dtype), torch.tensor([pixels.grid], device=self.device)
        if not pooled:
            return self._encode_levels(values, grid), (rows // self.merge, columns // self.merge)
        with _bypass_mergers(self._mergers):
            levels = self._encode_levels(values, grid)
        halved = [self._group_patches(pool_features(self._ungroup_patches(level, pixels.grid))) for level in levels]
        merged = [merger(units) for merger, (units, _) in zip(self._mergers, halved, strict=True)]
        return merged, halved[0][1][1:]

    @property
    def _mergers(self) -> list[nn.Module]:
        """Projectors of the input features of the language model, and of the deepstack features if there are any."""
        return [self.tower.merger, *getattr(self.tower, "deepstack_merger_list", ())]

    def _encode_levels(self, values: torch.Tensor, grid: torch.Tensor) -> list[torch.Tensor]:
        """Run the tower and return the output (N, hidden) of each of :attr:`_mergers`."""
        found = self.model.get_video_features(values, grid)
        return [found.pooler_output[0], *(level[0] for level in getattr(found, "deepstack_features", None) or ())]

    def _ungroup_patches(self, units: torch.Tensor, grid: tuple[int, int, int]) -> torch.Tensor:
        """Rearrange patches grouped by token (N, merge ** 2 * d) to their grid (steps, rows, columns, d)."""
        (steps, rows, columns), m = grid, self.merge
        grid_units = units.reshape(steps, rows // m, columns // m, m, m, -1).transpose(2, 3)
        return grid_units.reshape(steps, rows, columns, -1)

    def _group_patches(self, features: torch.Tensor) -> tuple[torch.Tensor, tuple[int, int, int]]:
        """Group a grid of patches by token, (N * merge ** 2, d); also return the grid of tokens."""
        (steps, rows, columns, width), m = features.shape, self.merge
        down, across = -(-rows // m), -(-columns // m)
        features = features[:, torch.arange(down * m).clamp(max=rows - 1)]
        features = features[:, :, torch.arange(across * m).clamp(max=columns - 1)]
        units = features.reshape(steps, down, m, across, m, width).transpose(2, 3)
        return units.reshape(-1, width), (steps, down, across)

    def positions(
        self, token_ids: torch.Tensor, vision: VisionOutput | None, rows: torch.Tensor
    ) -> tuple[torch.Tensor, float]:
        """Return positions (3, 1, L) by :func:`mrope`."""
        interval = 0.0 if vision is None else self._interval(vision.seconds)
        positions, following = mrope(len(token_ids), rows, vision, interval)
        return positions[:, None].to(self.device), following

    def _interval(self, seconds: Sequence[float]) -> float:
        """Return the positions on the time axis per temporal step."""
        if self.step_positions is not None:
            return self.step_positions
        return float(self.model.config.vision_config.tokens_per_second) * seconds_per_step(seconds)


def mrope(length: int, rows: torch.Tensor, vision: VisionOutput | None, interval: float) -> tuple[torch.Tensor, int]:
    """Return the rotary positions of a prompt (time, row, column), as ``transformers`` 5.23 numbers them.

    Text advances all axes equally. A run of visual tokens without text in between that starts at position p is at
    ``p + floor(interval * step)``, ``p + row`` and ``p + column``. The text after it starts at p + the longer side of
    the grid, regardless of the time axis (4.57 started it after the largest position of any axis). Generated tokens
    continue from the last of the prompt, as in ``generate``; a loop over the stock ``forward`` with a cache would start
    them after the largest position (``rope_deltas``).

    Args:
        length: rows of the prompt (L).
        rows: (N,) rows of the visual tokens, sorted.
        vision: the visual tokens; None if there are none.
        interval: positions per temporal step.

    Returns:
        (3, L) on the CPU, and the position of the first generated token.
    """
    positions = torch.empty(3, length, dtype=torch.long)
    done = following = 0  # rows with a position, and the position of the next text token
    if vision is not None and len(rows):
        places = rows.cpu()
        cells = torch.stack([vision.frame, vision.row, vision.column]).cpu()
        borders = ((places.diff() != 1).nonzero()[:, 0] + 1).tolist()
        for start, end in zip([0, *borders], [*borders, len(places)], strict=True):
            first, count = int(places[start]), end - start
            positions[:, done:first] = torch.arange(following, following + first - done)
            following += first - done
            steps, row, column = cells[:, start:end]
            time = (steps * torch.tensor(interval, dtype=torch.float32)).long()
            positions[:, first : first + count] = following + torch.stack([time, row, column])
            following += max(vision.grid[1:])
            done = first + count
    positions[:, done:] = torch.arange(following, following + length - done)
    return positions, following + length - done


def seconds_per_step(seconds: Sequence[float]) -> float:
    """Return the mean seconds between temporal steps; 1 for a single step, as in ``transformers``."""
    return (seconds[-1] - seconds[0]) / (len(seconds) - 1) if len(seconds) > 1 else 1.0


@contextmanager
def _bypass_mergers(mergers: Sequence[nn.Module]) -> Iterator[None]:
    """Bypass the projectors: each returns its input, the concatenated patches of a token.

    The tower computes in window order and restores raster order after the projector, so the patches are in raster order
    too.
    """

    def given(_module: nn.Module, args: tuple[torch.Tensor, ...], output: torch.Tensor) -> torch.Tensor:
        return args[0].reshape(len(output), -1)

    handles = [merger.register_forward_hook(given) for merger in mergers]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
