"""Visual tokens of a clip by the size of its frames: rules of the families' adapters, grids and tiles. No torch."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from vidspec.errors import GenerationError

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


#: Rows and columns, of pixels or of tokens.
Size = tuple[int, int]


def best_resolution(size: Size, resolutions: Sequence[Sequence[int]]) -> Size:
    """Return the resolution that shows most pixels of an image of ``size`` (rows, columns), the smallest on a tie."""

    def shown(of: Sequence[int]) -> int:
        scale = min(of[1] / size[1], of[0] / size[0])
        return min(int(size[1] * scale) * int(size[0] * scale), size[0] * size[1])

    height, width = max(resolutions, key=lambda of: (shown(of), shown(of) - of[0] * of[1]))
    return int(height), int(width)


def fit_inside(size: Size, inside: Size) -> Size:
    """Scale ``size`` to the largest that fits in ``inside``, aspect ratio kept."""
    across, down = inside[1] / size[1], inside[0] / size[0]
    if across < down:
        return min(math.ceil(size[0] * across), inside[0]), inside[1]
    return inside[0], min(math.ceil(size[1] * down), inside[1])


def unpadded_cells(size: Size, cells: Size) -> tuple[slice, slice]:
    """Return the rows and columns of ``cells`` that show the image of ``size``, without its padding."""
    if size[1] / size[0] > cells[1] / cells[0]:
        visible = int(round(size[0] * (cells[1] / size[1]), 7))
        margin = (cells[0] - visible) // 2
        return slice(margin, cells[0] - margin), slice(0, cells[1])
    visible = int(round(size[1] * (cells[0] / size[0]), 7))
    margin = (cells[1] - visible) // 2
    return slice(0, cells[0]), slice(margin, cells[1] - margin)


def round_to_multiples(size: Size, factor: int, budget: Size, shown: int = 1, counted: int = 1) -> Size:
    """Return the rows and columns of pixels, multiples of ``factor``, that the Qwen-VL processors resize frames to.

    The aspect ratio is kept as far as multiples allow. Halves are rounded to even, as in ``transformers``.

    Args:
        size: size of a frame.
        factor: pixels.
        budget: minimum and maximum pixels of all frames together.
        shown: number of frames.
        counted: number of frames when the rounded size is compared with the budget.
    """
    rows, columns = (round(side / factor) * factor for side in size)
    low, high = budget
    if counted * rows * columns > high:
        shrink = math.sqrt(shown * size[0] * size[1] / high)
        rows, columns = (max(factor, math.floor(side / shrink / factor) * factor) for side in size)
    elif counted * rows * columns < low:
        grow = math.sqrt(low / (shown * size[0] * size[1]))
        rows, columns = (math.ceil(side * grow / factor) * factor for side in size)
    return rows, columns


def fit_token_grid(size: Size, side: int, max_tokens: int) -> Size:
    """Return the rows and columns of tokens of ``side`` pixels that Gemma 4 resizes an image to, aspect ratio kept.

    Both are rounded down, so that there may be far fewer than ``max_tokens``.
    """
    factor = math.sqrt(max_tokens * side**2 / (size[0] * size[1]))
    rows, columns = (math.floor(factor * length / side) for length in size)
    if not rows:
        return 1, min(size[1] // size[0], max_tokens)
    if not columns:
        return min(size[0] // size[1], max_tokens), 1
    return rows, columns


def slice_grid(size: Size, side: int, most: int) -> Size:
    """Return the rows and columns of slices that MiniCPM-V cuts an image into; (0, 0) if it is only shown whole.

    About as many as squares of ``side`` pixels fill the image, ``most`` at most, as nearly square as possible.
    """
    height, width = size
    wanted = min(math.ceil(width * height / side**2), most)
    if wanted <= 1:
        return 0, 0
    counts = [count for count in (wanted - 1, wanted, wanted + 1) if 1 < count <= most]
    grids = [(rows, count // rows) for count in counts for rows in range(1, count + 1) if count % rows == 0]
    ratio = math.log(width / height)
    return min(grids, key=lambda grid: (abs(ratio - math.log(grid[1] / grid[0])), -grid[0]))


def fit_area(size: tuple[float, float], side: int, factor: int, *, grow: bool) -> Size:
    """Return the rows and columns of pixels, multiples of ``factor``, that MiniCPM-V resizes an image to.

    About ``side`` squared pixels, aspect ratio kept; a smaller image keeps its size unless it may ``grow``.
    """
    height, width = size
    if grow or height * width > side**2:
        ratio = width / height
        height = int(side / math.sqrt(ratio))
        width = int(height * ratio)
    return max(round(height / factor), 1) * factor, max(round(width / factor), 1) * factor
