"""Visual tokens of a clip by the size of its frames: the rules of the families' adapters. Imports no torch."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from vidspec.errors import GenerationError
from vidspec.models.tiles import (
    Size,
    best_resolution,
    fit_area,
    fit_token_grid,
    round_to_multiples,
    slice_grid,
    unpadded_cells,
)

#: Maximum aspect ratio of the Qwen-VL processors, as in ``transformers``.
MAX_RATIO = 200


class FrameRule(ABC):
    """Number of visual tokens of a clip, known before its frames are decoded."""

    @abstractmethod
    def visual_tokens(self, frames: int, height: int, width: int) -> int:
        """Return the visual tokens of a clip, separators included, class tokens not.

        Raises:
            GenerationError: the model takes no frames of this size.
        """

    @abstractmethod
    def tower_rows(self, frames: int, height: int, width: int) -> tuple[int, int]:
        """Return the steps that the vision tower can encode apart, and the rows of its hidden states in each."""


@dataclass(frozen=True)
class SquareFrames(FrameRule):
    """Every frame is resized to the same square.

    Attributes:
        tokens: visual tokens of a frame.
        rows: rows of the tower's states of a frame.
        separators: further tokens of a clip.
    """

    tokens: int
    rows: int
    separators: int = 0

    def visual_tokens(self, frames: int, height: int, width: int) -> int:
        return frames * self.tokens + self.separators

    def tower_rows(self, frames: int, height: int, width: int) -> tuple[int, int]:
        return frames, self.rows


@dataclass(frozen=True)
class TiledFrames(FrameRule):
    """Every frame is encoded as one square, and as tiles without the padding around them (LLaVA-NeXT).

    Attributes:
        side: visual tokens per side of a square.
        edge: pixels per side of a square.
        resolutions: rows and columns of pixels that tiles can make up.
    """

    side: int
    edge: int
    resolutions: Sequence[Sequence[int]]

    def visual_tokens(self, frames: int, height: int, width: int) -> int:
        best = best_resolution((height, width), self.resolutions)
        cells = best[0] // self.edge * self.side, best[1] // self.edge * self.side
        rows, columns = unpadded_cells((height, width), cells)
        # Each row of the tiles ends with a separator.
        tiles: int = (rows.stop - rows.start) * (columns.stop - columns.start + 1)
        return frames * (self.side**2 + tiles)

    def tower_rows(self, frames: int, height: int, width: int) -> tuple[int, int]:
        best = best_resolution((height, width), self.resolutions)
        tiles = (best[0] // self.edge) * (best[1] // self.edge)
        return frames, (1 + tiles) * (self.side**2 + 1)


class FrameViews(NamedTuple):
    """Sizes at which a frame is encoded.

    Attributes:
        whole: rows and columns of pixels of the whole frame.
        slices: rows and columns of slices, (0, 0) if there are none.
        each: rows and columns of pixels of a slice.
    """

    whole: Size
    slices: Size = (0, 0)
    each: Size = (0, 0)


@dataclass(frozen=True)
class SlicedFrames(FrameRule):
    """Every frame is encoded whole, a large one in slices too, aspect ratios kept (MiniCPM-V).

    Attributes:
        side: a view has about the pixels of a square of so many per side.
        most: most slices of a frame.
        patch: pixels per side of a patch.
        merge: patches per side of a token.
    """

    side: int
    most: int
    patch: int
    merge: int

    def views(self, height: int, width: int) -> FrameViews:
        """Return the sizes at which a frame is encoded."""
        slices, unit = slice_grid((height, width), self.side, self.most), self.patch * self.merge
        whole = fit_area((height, width), self.side, unit, grow=slices == (0, 0))
        if slices == (0, 0):
            return FrameViews(whole)
        rows, columns = (max(round(size / count), 1) for size, count in zip((height, width), slices, strict=True))
        return FrameViews(whole, slices, fit_area((rows, columns), self.side, unit, grow=True))

    def visual_tokens(self, frames: int, height: int, width: int) -> int:
        frames, rows = self.tower_rows(frames, height, width)
        return frames * rows // self.merge**2

    def tower_rows(self, frames: int, height: int, width: int) -> tuple[int, int]:
        whole, slices, each = self.views(height, width)
        pixels = whole[0] * whole[1] + slices[0] * slices[1] * each[0] * each[1]
        return frames, pixels // self.patch**2


@dataclass(frozen=True)
class TokenGrid(FrameRule):
    """Every frame is resized to a grid of tokens, aspect ratio kept (Gemma 4).

    Attributes:
        side: pixels per side of a token.
        pool: patches per side of a token.
        max_tokens: most tokens of a frame.
    """

    side: int
    pool: int
    max_tokens: int

    def grid(self, height: int, width: int) -> Size:
        """Return the rows and columns of tokens of a frame."""
        return fit_token_grid((height, width), self.side, self.max_tokens)

    def visual_tokens(self, frames: int, height: int, width: int) -> int:
        rows, columns = self.grid(height, width)
        return frames * rows * columns

    def tower_rows(self, frames: int, height: int, width: int) -> tuple[int, int]:
        rows, columns = self.grid(height, width)
        return frames, rows * columns * self.pool**2


@dataclass(frozen=True)
class MergedPatches(FrameRule):
    """Frame sizes of Qwen-VL: each side a multiple of ``patch * merge`` pixels, within a pixel budget.

    Attributes:
        patch: pixels per side of a patch.
        merge: patches per side of a visual token.
        steps: frames of a temporal patch.
        min_pixels, max_pixels: budget of a frame, or of all frames together with ``whole_clip``.
        whole_clip: the budget is the clip's (Qwen3-VL), not each frame's (Qwen2.5-VL).
        capped: long clips get fewer pixels per frame (``cap_pixels_per_frame``).
        max_video_tokens: limit of a clip (Qwen2.5-VL) or of a frame (Qwen3-VL) if ``capped``.
        full_frames: clips of fewer frames share 95% of the pixels of so many (video-SALMONN 2+); 0 if they do not.
        shared: all frames of a clip share ``max_pixels``, and each has ``min_pixels`` (VideoLLaMA 3).
    """

    min_pixels: int
    max_pixels: int
    max_video_tokens: int
    patch: int = 14
    merge: int = 2
    steps: int = 2
    whole_clip: bool = False
    capped: bool = False
    full_frames: int = 0
    shared: bool = False

    def size(self, frames: int, height: int, width: int) -> Size:
        """Return the (height, width) of a clip's resized frames.

        Raises:
            GenerationError: one side is more than 200 times the other.
        """
        factor = self.patch * self.merge
        low, high = self.min_pixels, self.max_pixels
        if self.whole_clip:
            frames = max(frames, self.steps)  # transformers refuses shorter clips; here the last frame is repeated
            shown, counted = frames, round(frames / self.steps) * self.steps
            if self.capped:
                each = max(min(self.max_video_tokens * factor**2, high // frames), int(low * 1.05))
                high = each * frames
            if height < factor or width < factor:
                grown = max(factor / height, factor / width)
                height, width = int(height * grown), int(width * grown)
        else:
            shown = counted = 1
            high //= frames if self.shared else 1
            if frames < self.full_frames:
                high = int(0.95 * self.full_frames / frames * high)
            if self.capped:
                total = int(self.max_video_tokens * factor * factor * 0.9)
                high = max(min(high, total * self.steps // frames), int(low * 1.05))
        if max(height, width) > MAX_RATIO * min(height, width):
            raise GenerationError(f"frames of {width} x {height} pixels are too narrow for this model")
        return round_to_multiples((height, width), factor, (low, high), shown, counted)

    def visual_tokens(self, frames: int, height: int, width: int) -> int:
        steps, rows = self.tower_rows(frames, height, width)
        return steps * (rows // self.merge**2)

    def tower_rows(self, frames: int, height: int, width: int) -> tuple[int, int]:
        rows, columns = (side // self.patch for side in self.size(frames, height, width))
        return -(-frames // self.steps), rows * columns
