"""Qwen2.5-VL: frames in pairs at their own resolution, positions on three axes (M-RoPE)."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import nn

from vidspec.models.adapter import Adapter
from vidspec.models.base import EmbeddedPrompt, Pixels, StockConfig, StockModel, VisionOutput
from vidspec.models.preprocess import CLIP_MEAN, CLIP_STD, ProcessorConfig, pool_features
from vidspec.models.preprocess_qwen import GridRules, patches
from vidspec.models.vision import WINDOWS
from vidspec.registry import families

if TYPE_CHECKING:
    from vidspec.video import Clip

__all__ = ["CHAT_TEMPLATE", "TURNS", "Qwen25VL", "mrope", "seconds_per_step"]

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
class Qwen25VL(Adapter):
    """A ``Qwen2_5_VLForConditionalGeneration``; its prompt is ``<|im_start|>system\\n{system}<|im_end|>\\n
    <|im_start|>user\\n<|vision_start|>{video}<|vision_end|>{prompt}<|im_end|>\\n<|im_start|>assistant\\n``.

    A frame of ``VisionOutput``, and for pruners, is one temporal step: two frames of the clip.
    """

    family = "qwen2_5_vl"
    vision_attention: ClassVar[str] = WINDOWS
    chat_template: ClassVar[str] = CHAT_TEMPLATE
    usual: ClassVar[GridRules] = GridRules(
        min_pixels=128 * 28**2, max_pixels=768 * 28**2, max_video_tokens=128_000, mean=CLIP_MEAN, std=CLIP_STD
    )

    def set_up(self, processor: ProcessorConfig) -> None:
        config = self.model.config
        self.tower: StockModel = self.model.model.visual
        self.merge = int(config.vision_config.spatial_merge_size)
        self.folded, self.levels = self.merge**2, len(self._mergers)
        self.rules = self.rules_of(processor, config.vision_config)
        marks = [config.vision_start_token_id, config.vision_end_token_id]
        self.opens, self.closes = self.tokenizer.convert_ids_to_tokens(marks)

    @classmethod
    def rules_of(cls, processor: ProcessorConfig, vision: StockConfig) -> GridRules:
        """How frames are resized: as the processor's config says, else as published."""
        sizes = {"patch": "patch_size", "merge": "spatial_merge_size", "steps": "temporal_patch_size"}
        usual = replace(cls.usual, **{field: getattr(vision, key) for field, key in sizes.items()})
        return GridRules.from_config(processor, usual)

    @property
    def span(self) -> str:
        return f"{self.opens}{self.placeholder}{self.closes}"

    def pieces(self, seen: VisionOutput) -> Sequence[str | range]:
        return [self.opens, range(len(seen)), self.closes]

    def visual_tokens(self, frames: int, height: int, width: int) -> int:
        rows, columns = (side // self.rules.patch // self.merge for side in self.rules.size(frames, height, width))
        return -(-frames // self.rules.steps) * rows * columns

    def preprocess(self, clip: Clip) -> Pixels:
        """(patches, values of a patch); the grid counts patches, ``seconds`` are when each temporal step begins."""
        shown, grid, rules = patches(clip.frames, self.rules, self.device)
        return Pixels(shown, grid, tuple(float(t) for t in clip.timestamps[:: self.rules.steps]), rules=rules)

    @torch.inference_mode()
    def encode_steps(self, pixels: Pixels, *, pooled: bool = False) -> Generator[None, None, VisionOutput]:
        """One token for each ``merge`` x ``merge`` patches, in raster order.

        ``pooled`` averages patches 2 x 2 before they are merged, so the grid has half the sides, rounded up: where a
        pooled side does not divide by ``merge`` its last patches are repeated.
        """
        _, rows, columns = pixels.grid
        made = yield from self.encode_chunks(pixels, rows * columns, lambda part: self._chunk(part, pooled))
        seen, sides = zip(*made, strict=True)
        features, *deepstack = (torch.cat(level) for level in zip(*seen, strict=True))
        return VisionOutput.raster(features, (pixels.grid[0], *sides[0]), pixels.seconds, tuple(deepstack))

    def _chunk(self, pixels: Pixels, pooled: bool) -> tuple[list[torch.Tensor], tuple[int, int]]:
        """What each of :attr:`_mergers` makes of some steps, (N, hidden); rows and columns of tokens of a step."""
        _, rows, columns = pixels.grid
        values, grid = pixels.on(self.device, self.vision_dtype), torch.tensor([pixels.grid], device=self.device)
        if not pooled:
            return self._levels(values, grid), (rows // self.merge, columns // self.merge)
        with _unmerged(self._mergers):
            levels = self._levels(values, grid)
        halved = [self._grouped(pool_features(self._patches(level, pixels.grid))) for level in levels]
        merged = [merger(units) for merger, (units, _) in zip(self._mergers, halved, strict=True)]
        return merged, halved[0][1][1:]

    @property
    def _mergers(self) -> list[nn.Module]:
        """The projectors of the features that enter the language model, and of those added behind."""
        return [self.tower.merger]

    def _levels(self, values: torch.Tensor, grid: torch.Tensor) -> list[torch.Tensor]:
        """What each of :attr:`_mergers` gave: (N, hidden)."""
        return [self.model.get_video_features(values, grid).pooler_output[0]]

    def _patches(self, units: torch.Tensor, grid: tuple[int, int, int]) -> torch.Tensor:
        """(steps, rows, columns, d) of the patches of a grid, given token by token: (N, merge ** 2 * d)."""
        (steps, rows, columns), m = grid, self.merge
        apart = units.reshape(steps, rows // m, columns // m, m, m, -1).transpose(2, 3)
        return apart.reshape(steps, rows, columns, -1)

    def _grouped(self, features: torch.Tensor) -> tuple[torch.Tensor, tuple[int, int, int]]:
        """The opposite of :meth:`_patches` but for the shape, (N * merge ** 2, d); and the grid of tokens."""
        (steps, rows, columns, width), m = features.shape, self.merge
        down, across = -(-rows // m), -(-columns // m)
        features = features[:, torch.arange(down * m).clamp(max=rows - 1)]
        features = features[:, :, torch.arange(across * m).clamp(max=columns - 1)]
        units = features.reshape(steps, down, m, across, m, width).transpose(2, 3)
        return units.reshape(-1, width), (steps, down, across)

    def positions(
        self, token_ids: torch.Tensor, seen: VisionOutput | None, rows: torch.Tensor
    ) -> tuple[torch.Tensor, int]:
        """(3, 1, L) by :func:`mrope`."""
        interval = 0.0 if seen is None else self._interval(seen.seconds)
        positions, following = mrope(len(token_ids), rows, seen, interval)
        return positions[:, None].to(self.device), following

    def _interval(self, seconds: Sequence[float]) -> float:
        """Positions that the time axis advances from one temporal step to the next."""
        return float(self.model.config.vision_config.tokens_per_second) * seconds_per_step(seconds)

    def stock_pixels(self, pixels: Pixels, prefix: EmbeddedPrompt) -> dict[str, object]:
        kinds = torch.zeros_like(prefix.token_ids)
        kinds[prefix.visual.index] = 2  # 0 text, 1 image, 2 video
        return {
            "mm_token_type_ids": kinds[None],
            "pixel_values_videos": pixels.on(self.device, self.vision_dtype),
            "video_grid_thw": torch.tensor([pixels.grid], device=self.device),
            "second_per_grid_ts": torch.tensor([seconds_per_step(pixels.seconds)], device=self.device),
        }


def mrope(length: int, rows: torch.Tensor, seen: VisionOutput | None, interval: float) -> tuple[torch.Tensor, int]:
    """Rotary positions of a prompt on the axes time, row and column, as ``transformers`` 5.23 numbers them.

    Text counts on all axes alike. Visual tokens that follow each other without text between them, started at position
    p, are at ``p + floor(interval * step)``, ``p + row`` and ``p + column``. The text behind them starts at p + the
    longer side of the grid, however far the time axis went (4.57 started it behind the largest position of any axis).
    Generated tokens count on from the last of the prompt, as in ``generate``; a loop over the stock ``forward`` with a
    cache would start them behind the largest position (``rope_deltas``).

    Args:
        length: L, rows of the prompt.
        rows: (N,) those of the visual tokens, sorted.
        seen: the visual tokens; None if there are none.
        interval: positions from one temporal step to the next.

    Returns:
        (3, L) on the CPU, and the position of the first generated token.
    """
    positions = torch.empty(3, length, dtype=torch.long)
    done = following = 0  # rows that have their position, and the position of the next text token
    if seen is not None and len(rows):
        places = rows.cpu()
        cells = torch.stack([seen.frame, seen.row, seen.column]).cpu()
        borders = ((places.diff() != 1).nonzero()[:, 0] + 1).tolist()
        for start, end in zip([0, *borders], [*borders, len(places)], strict=True):
            first, count = int(places[start]), end - start
            positions[:, done:first] = torch.arange(following, following + first - done)
            following += first - done
            steps, row, column = cells[:, start:end]
            time = (steps * torch.tensor(interval, dtype=torch.float32)).long()
            positions[:, first : first + count] = following + torch.stack([time, row, column])
            following += max(seen.grid[1:])
            done = first + count
    positions[:, done:] = torch.arange(following, following + length - done)
    return positions, following + length - done


def seconds_per_step(seconds: Sequence[float]) -> float:
    """Mean time from one temporal step to the next; 1 where there is only one, as the library has it."""
    return (seconds[-1] - seconds[0]) / (len(seconds) - 1) if len(seconds) > 1 else 1.0


@contextmanager
def _unmerged(mergers: Sequence[nn.Module]) -> Iterator[None]:
    """Let each projector give what it was given, the patches of a token side by side.

    The tower computes in an order of windows and puts the tokens back into raster order behind the projector: what
    leaves the tower then is in raster order too.
    """

    def given(_module: nn.Module, args: tuple[torch.Tensor, ...], output: torch.Tensor) -> torch.Tensor:
        return args[0].reshape(len(output), -1)

    handles = [merger.register_forward_hook(given) for merger in mergers]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
