"""Draws a few sampled frames side by side as tiles of half-block cells, with what the draft sees of them in colour.

A terminal cell shows two pixels, one above the other. Cells that the draft does not see are dim grey, once that is
known; if it sees nothing, all keep their colours.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from rich.console import Console, ConsoleOptions, RenderResult
from rich.segment import Segment
from rich.style import Style

from vidspec.display.figures import moment
from vidspec.display.heatmap import EDGE, rasters_of
from vidspec.events.events import Opened, Prefilled, Thumbnail
from vidspec.events.tally import counted

#: Columns between tiles, least and greatest lines of a tile's picture.
GAP, LEAST, GREATEST = 2, 3, 10
#: Tiles for which a tile may be smaller than its lines allow.
WANTED = 3
#: Shades of a colour channel; fewer make longer runs of one colour, which are drawn faster.
SHADES = 32
#: Darkest and lightest grey of what the draft does not see.
DARK, LIGHT = 28, 84
#: Share of the colour that marks seen pixels, where others are not seen.
TINT = 0.15


@dataclass(frozen=True)
class TileLayout:
    """Tiles in strips: lines and columns of a tile's picture, tiles of a strip, strips.

    A line of times is above each strip.
    """

    lines: int
    columns: int
    across: int
    down: int

    @property
    def width(self) -> int:
        return self.across * (self.columns + GAP) - GAP

    @property
    def height(self) -> int:
        """All lines, those of times included."""
        return self.down * (self.lines + 1)

    def shown(self, opened: Opened | None) -> int:
        return min(self.across * self.down, len(opened.thumbnails)) if opened else 0


def fit_tiles(ratio: float, frames: int, width: int, lines: int) -> TileLayout | None:
    """Return how tiles fit into ``width`` columns and ``lines`` lines; None if not even one does.

    Args:
        ratio: width over height of a frame.
        frames: number of thumbnails.
        width, lines: the area.
    """
    down = 2 if lines >= 2 * (LEAST + 3) and frames > 1 else 1
    high = min(GREATEST, lines // down - 1)
    while high >= LEAST:
        wide = max(4, round(2 * high * ratio))
        across = (width + GAP) // (wide + GAP)
        if across * down >= min(WANTED, frames) or (high == LEAST and across > 0):
            across = min(across, -(-frames // down))
            return TileLayout(high, wide, across, min(down, -(-frames // across)))
        high -= 1
    return None


def sight_sentence(opened: Opened | None, seen: Prefilled | None, shown: int) -> str:
    """Return one sentence on what the draft sees, and how many of the frames are shown."""
    if opened is None:
        return ""
    frames = f"{shown} of {counted(opened.frames, 'frame')} shown" if 0 < shown < opened.frames else ""
    if seen is None:
        return frames or counted(opened.frames, "frame")
    total = f"{seen.visual_tokens:,} visual tokens"
    if not seen.kept_per_frame:
        said = total
    elif len(seen.kept) == seen.visual_tokens:
        said = f"the draft sees all {total}"
    elif seen.is_draft_text_only:
        said = f"the draft reads text only: none of {total}"
    else:
        share = len(seen.kept) / seen.visual_tokens
        said = f"the draft sees {share:.0%} of {total}" if share >= 0.01 else f"the draft sees {share:.1%} of {total}"
    return f"{said}; {frames}" if frames else said


class Tiles:
    """Renderable of the tiles of one clip, as many lines as its layout has.

    Args:
        opened: its thumbnails are drawn; without any the frames are plain.
        seen: visual tokens of the draft; None before the prompts have been read.
        layout: from :func:`fit_tiles`.
    """

    def __init__(self, opened: Opened, seen: Prefilled | None, layout: TileLayout) -> None:
        self.opened, self.seen, self.layout = opened, seen, layout

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for line in tile_lines(self.opened, self.seen, self.layout):
            yield from line
            yield Segment.line()


@lru_cache(maxsize=4)  # the panel is redrawn many times a second
def tile_lines(opened: Opened, seen: Prefilled | None, layout: TileLayout) -> list[list[Segment]]:
    """Return the lines of :class:`Tiles`, the times above each strip included."""
    pictures = opened.thumbnails
    chosen = [pictures[index] for index in np.linspace(0, len(pictures) - 1, layout.shown(opened)).round().astype(int)]
    lines: list[list[Segment]] = []
    for start in range(0, len(chosen), layout.across):
        strip = chosen[start : start + layout.across]
        times = (moment(one.seconds, 1)[: layout.columns].ljust(layout.columns) for one in strip)
        lines.append([Segment((" " * GAP).join(times), Style(dim=True))])
        grids = [_colours(one, opened, seen, layout) for one in strip]
        for line in range(layout.lines):
            joined: list[Segment] = []
            for number, grid in enumerate(grids):
                joined += [Segment(" " * GAP)] if number else []
                joined += _runs(grid[2 * line], grid[2 * line + 1])
            lines.append(joined)
    return lines


def _colours(one: Thumbnail, opened: Opened, seen: Prefilled | None, layout: TileLayout) -> NDArray[np.uint8]:
    """Return (2 * lines, columns, 3) uint8: the picture, what the draft does not see of it dim."""
    high, wide = 2 * layout.lines, layout.columns
    pixels = np.frombuffer(one.pixels, np.uint8).reshape(one.rows, one.columns, 3)
    picture = pixels[np.ix_(np.arange(high) * one.rows // high, np.arange(wide) * one.columns // wide)].astype(float)
    inside = _seen_mask(one.index, opened.frames, seen, high, wide)
    grey = DARK + picture.mean(2, keepdims=True) / 255 * (LIGHT - DARK)
    partly = seen is not None and 0 < len(seen.kept) < seen.visual_tokens
    bright = picture * (1 - TINT) + TINT * np.array(EDGE) if partly else picture
    drawn = np.where(inside[..., None], bright, grey)
    step = 256 // SHADES
    return (drawn // step * step + step // 2).astype(np.uint8)


def _seen_mask(index: int, frames: int, seen: Prefilled | None, high: int, wide: int) -> NDArray[np.bool_]:
    """Return the (high, wide) mask of one frame's coloured part: what the draft sees, or all if it sees nothing."""
    if seen is None or not seen.kept_per_frame or len(seen.kept) in (0, seen.visual_tokens):
        return np.ones((high, wide), np.bool_)
    inside = np.zeros((high, wide), np.bool_)
    if 0 in seen.grid:
        return inside
    for raster in rasters_of(seen):
        mask = raster.kept[index * seen.grid[0] // max(1, frames)]
        rows, columns = mask.shape
        inside |= mask[np.ix_(np.arange(high) * rows // high, np.arange(wide) * columns // wide)]
    return inside


def _runs(upper: NDArray[np.uint8], lower: NDArray[np.uint8]) -> list[Segment]:
    """Return one line of half blocks, equal neighbours in one segment."""
    pairs = [(tuple(above), tuple(below)) for above, below in zip(upper.tolist(), lower.tolist(), strict=True)]
    runs: list[Segment] = []
    start = 0
    for end in range(1, len(pairs) + 1):
        if end == len(pairs) or pairs[end] != pairs[start]:
            runs.append(Segment("▀" * (end - start), _style(*pairs[start])))
            start = end
    return runs


@lru_cache(maxsize=4096)
def _style(above: tuple[int, int, int], below: tuple[int, int, int]) -> Style:
    return Style.parse(f"rgb({above[0]},{above[1]},{above[2]}) on rgb({below[0]},{below[1]},{below[2]})")
