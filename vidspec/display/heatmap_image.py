"""Draws the visual tokens that a draft sees over thumbnails of the frames. Reads no file."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import product

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from vidspec.display.figures import moment
from vidspec.display.heatmap import EDGE, cells_of, veil
from vidspec.events.events import Prefilled
from vidspec.pruning.position_bias import position_bias

__all__ = ["heatmap_image"]

WIDTH, MARGIN, GAP = 1600, 24, 10
WIDEST, LEAST_LABELLED = 400, 56
TITLE, LABEL, BARS = 22, 13, 120
BACKGROUND, TEXT, FAINT, KEPT, EVEN = (18, 18, 20), (236, 236, 236), (120, 120, 126), EDGE, (86, 156, 214)


def heatmap_image(
    frames: Sequence[NDArray[np.uint8]],
    seconds: Sequence[float],
    seen: Prefilled,
    title: str,
) -> Image.Image:
    """Draw a grid of frames with an overlay on hidden tokens, and below it the share of kept tokens per frame.

    Args:
        frames: one (H, W, 3) uint8 RGB picture per frame (temporal step) of the grid, all of one size.
        seconds: start of each frame.
        seen: tokens the draft sees; a frame with several rasters of tokens is drawn once for each.
        title: the line above.

    Returns:
        An RGB picture about 1,600 pixels wide, as high as the frames need.

    Raises:
        ValueError: frames, seconds and grid disagree, or there is nothing to draw.
    """
    if not len(frames) == len(seconds) == seen.grid[0] or 0 in seen.grid:
        raise ValueError(f"{len(frames)} frames at {len(seconds)} times do not fill a grid of {seen.grid}")
    height, width = frames[0].shape[:2]
    cells = cells_of(seen)
    layers = cells.layers
    across = _columns(len(frames) * len(layers), height / width)
    wide = min(WIDEST, (WIDTH - 2 * MARGIN + GAP) // across - GAP)
    high = max(1, round(wide * height / width))
    label = LABEL + 6 if wide >= LEAST_LABELLED else 0
    down = -(-len(frames) * len(layers) // across)
    top = MARGIN + TITLE + 14
    bars = top + down * (high + label + GAP) + GAP
    picture = Image.new("RGB", (WIDTH, bars + 2 * (LABEL + 8) + BARS + 2 * LABEL + MARGIN), BACKGROUND)
    draw = ImageDraw.Draw(picture)
    _write(draw, (MARGIN, MARGIN), title, TITLE, TEXT, WIDTH - 2 * MARGIN)
    for number, (index, layer) in enumerate(product(range(len(frames)), layers)):
        left = MARGIN + number % across * (wide + GAP)
        upper = top + number // across * (high + label + GAP)
        shown = cells.of(index, layer)
        frame = Image.fromarray(np.ascontiguousarray(frames[index])).resize((wide, high), Image.Resampling.LANCZOS)
        picture.paste(frame, (left, upper))
        if (over := veil(shown, wide, high)) is not None:
            over = over.convert("RGBA")
            picture.paste(over, (left, upper), over)
        if label:
            _label(draw, left, upper + high + 3, wide, moment(seconds[index], 2), f"{int(shown.sum())}/{layer.size}")
    _bars(draw, bars, seconds, seen)
    return picture


def _columns(frames: int, ratio: float) -> int:
    """Return the number of frames per row: a row for a few, otherwise a grid about 1.6 times as wide as high."""
    return min(frames, max(4, round(math.sqrt(1.6 * ratio * frames))))


def _label(draw: ImageDraw.ImageDraw, left: int, upper: int, wide: int, time: str, share: str) -> None:
    font = _font(LABEL)
    draw.text((left, upper), time, FAINT, font)
    if draw.textlength(time, font) + draw.textlength(share, font) + 10 <= wide:
        draw.text((left + wide - draw.textlength(share, font), upper), share, KEPT, font)


def _bars(draw: ImageDraw.ImageDraw, upper: int, seconds: Sequence[float], seen: Prefilled) -> None:
    """Draw one bar per frame, its share of the kept tokens, with a line at the uniform share."""
    shares = cells_of(seen).frame_shares
    full, even = max((*shares, 1e-9)), 1 / len(shares)
    _write(draw, (MARGIN, upper), f"share of the kept tokens by frame; full height {full:.1%}", LABEL, TEXT, WIDTH // 2)
    top = upper + LABEL + 8
    step = (WIDTH - 2 * MARGIN) / len(shares)
    for number, share in enumerate(shares):
        left, right = MARGIN + number * step, MARGIN + (number + 1) * step - (1 if step > 4 else 0)
        draw.rectangle((left, top + BARS * (1 - share / full), max(left, right - 1), top + BARS), KEPT)
    level = top + BARS * (1 - min(1.0, even / full))
    draw.line((MARGIN, level, WIDTH - MARGIN - 1, level), EVEN)
    for text, place, anchor in (
        (moment(seconds[0], 2), MARGIN, "la"),
        (f"uniform {even:.1%}", WIDTH // 2, "ma"),
        (moment(seconds[-1], 2), WIDTH - MARGIN, "ra"),
    ):
        draw.text((place, top + BARS + 4), text, EVEN if anchor == "ma" else FAINT, _font(LABEL), anchor=anchor)
    if (bias := position_bias(seen.grid, seen.cells, seen.kept, seen.views)) is not None:
        names = ("first frames", "last frames", "upper and lower border", "left and right border")
        pairs = zip(names, (bias.first, bias.last, bias.rows, bias.columns), strict=True)
        line = "; ".join(f"{name} {pair.kept:.1%} ({pair.all:.1%})" for name, pair in pairs)
        line = f"share of the kept tokens (of all tokens): {line}"
        _write(draw, (MARGIN, top + BARS + LABEL + 10), line, LABEL, TEXT, WIDTH - 2 * MARGIN)


def _write(
    draw: ImageDraw.ImageDraw, place: tuple[int, int], text: str, size: int, colour: tuple[int, int, int], room: int
) -> None:
    """Write one line of text, cut off at ``room`` pixels."""
    font, shown = _font(size), " ".join(text.split())
    while shown and draw.textlength(shown, font) > room:
        shown = f"{shown[:-4].rstrip()}..." if len(shown) > 4 else ""
    draw.text(place, shown, colour, font)


def _font(size: int) -> ImageFont.ImageFont | ImageFont.FreeTypeFont:
    return ImageFont.load_default(size)
