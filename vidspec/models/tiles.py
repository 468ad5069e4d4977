"""Frame sizes of the families, LLaVA-NeXT's tiles and MiniCPM-V's slices. Imports no torch."""

from __future__ import annotations

import math
from collections.abc import Sequence

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
