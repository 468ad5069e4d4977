"""Sizes that the families resize frames to, and the tiles LLaVA-NeXT cuts them into; numbers only, no torch."""

from __future__ import annotations

import math
from collections.abc import Sequence

__all__ = ["Size", "best_resolution", "fitted", "multiples", "unpadded", "within"]

#: Rows and columns, of pixels or of tokens.
Size = tuple[int, int]


def best_resolution(size: Size, resolutions: Sequence[Sequence[int]]) -> Size:
    """The resolution that shows most pixels of an image of ``size`` (rows, columns), of equal ones the smallest."""

    def shown(of: Sequence[int]) -> int:
        scale = min(of[1] / size[1], of[0] / size[0])
        return min(int(size[1] * scale) * int(size[0] * scale), size[0] * size[1])

    height, width = max(resolutions, key=lambda of: (shown(of), shown(of) - of[0] * of[1]))
    return int(height), int(width)


def fitted(size: Size, inside: Size) -> Size:
    """``size`` scaled until it touches the edges of ``inside``."""
    across, down = inside[1] / size[1], inside[0] / size[0]
    if across < down:
        return min(math.ceil(size[0] * across), inside[0]), inside[1]
    return inside[0], min(math.ceil(size[1] * down), inside[1])


def unpadded(size: Size, cells: Size) -> tuple[slice, slice]:
    """Rows and columns, of ``cells`` that show a padded image, in which the image of ``size`` itself is seen."""
    if size[1] / size[0] > cells[1] / cells[0]:
        seen = int(round(size[0] * (cells[1] / size[1]), 7))
        margin = (cells[0] - seen) // 2
        return slice(margin, cells[0] - margin), slice(0, cells[1])
    seen = int(round(size[1] * (cells[0] / size[0]), 7))
    margin = (cells[1] - seen) // 2
    return slice(0, cells[0]), slice(margin, cells[1] - margin)


def multiples(size: Size, factor: int, budget: Size, shown: int = 1, counted: int = 1) -> Size:
    """Rows and columns of pixels, multiples of ``factor``, that the Qwen-VL processors resize frames to.

    The ratio of the sides is kept as far as multiples allow. Python rounds halves to even numbers, as the library does.

    Args:
        size: of a frame.
        factor: pixels.
        budget: least and most pixels of all frames together.
        shown: how many frames there are.
        counted: how many of them the rounded frames are held against the budget with.
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


def within(size: Size, side: int, max_tokens: int) -> Size:
    """Rows and columns of tokens of ``side`` pixels that Gemma 4 resizes an image to, keeping its ratio.

    Rounded down, so that there may be far fewer than ``max_tokens``.
    """
    factor = math.sqrt(max_tokens * side**2 / (size[0] * size[1]))
    rows, columns = (math.floor(factor * length / side) for length in size)
    if not rows:
        return 1, min(size[1] // size[0], max_tokens)
    if not columns:
        return min(size[0] // size[1], max_tokens), 1
    return rows, columns
