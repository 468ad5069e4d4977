"""Which visual tokens the draft sees, over the frames: their cells, as blocks on a terminal and as a veil over a frame.

Panel, page and picture all draw what :func:`cells_of` gives.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from rich.text import Text

from vidspec.events.events import Prefilled
from vidspec.pruning.position_bias import rasters

if TYPE_CHECKING:
    from PIL import Image

__all__ = [
    "EDGE",
    "LONGEST",
    "Cells",
    "FrameRaster",
    "cells_of",
    "frame_map",
    "heatmap",
    "sparkline",
    "veil",
    "weight_lines",
]

#: The line between what the draft sees and what not, and the veil over the latter: red, green, blue.
EDGE, GREY = (255, 176, 32), (96, 100, 112)
#: Pixels of a cell that is too small for a line around it.
TINY = 6
#: Symbols of a context's history of weights.
LONGEST = 24
BLOCKS, ASCII_BLOCKS = "·▁▂▃▄▅▆▇█", ".:-=+*#%@"
#: From few tokens to many; read with or without colour, since the blocks say the same.
COLOURS = ("bright_black", "blue", "blue", "cyan", "cyan", "green", "green", "yellow", "bright_yellow")
MAX_ROWS = 4


@dataclass(frozen=True)
class FrameRaster:
    """A raster of tokens that shows the whole frame: its first row in the grid, its rows and its columns."""

    first: int
    rows: int
    columns: int

    @property
    def size(self) -> int:
        return self.rows * self.columns

    @property
    def place(self) -> tuple[slice, slice]:
        """Where in the rows and columns of the grid it lies."""
        return slice(self.first, self.first + self.rows), slice(self.columns)


@dataclass(frozen=True, eq=False)
class Cells:
    """Tokens by their cells; separators, which lie in none, are left out.

    Attributes:
        kept, there: (frames, rows, columns) bool, whether the draft sees a token in a cell, and whether there is one.
        layers: the rasters of a frame, one below the other in the grid; mostly one.
        ranks: of each signal (frames, rows, columns) uint8, 0 where there is no token.
    """

    kept: NDArray[np.bool_]
    there: NDArray[np.bool_]
    layers: tuple[FrameRaster, ...]
    ranks: tuple[NDArray[np.uint8], ...]

    def of(self, frame: int, layer: FrameRaster) -> NDArray[np.bool_]:
        """(rows, columns) which tokens of one frame the draft sees."""
        shown: NDArray[np.bool_] = self.kept[frame][layer.place]
        return shown

    def levels(self, frame: int, layer: FrameRaster) -> list[NDArray[np.uint8]]:
        """Of each signal (rows, columns) its ranks over one frame."""
        return [ranks[frame][layer.place] for ranks in self.ranks]

    @property
    def frame_shares(self) -> list[float]:
        """Which share of the kept tokens each frame holds; zeros for none."""
        counts = self.kept.sum((1, 2))
        found: list[float] = (counts / max(1, counts.sum())).tolist()
        return found

    def place_shares(self, high: int, wide: int) -> list[list[float]]:
        """Over all frames, which share of the tokens is kept in each block of ``high`` rows and ``wide`` columns."""
        kept, there = (
            np.add.reduceat(np.add.reduceat(one.sum(0), range(0, one.shape[1], high)), range(0, one.shape[2], wide), 1)
            for one in (self.kept, self.there)
        )
        found: list[list[float]] = (kept / np.maximum(there, 1)).tolist()
        return found


@lru_cache(maxsize=4)  # the panel is drawn many times a second
def cells_of(seen: Prefilled) -> Cells:
    """The cells of what a draft was shown."""
    cells = np.asarray(seen.cells, np.int64)

    def placed(tokens: NDArray[np.int64]) -> NDArray[np.bool_]:
        mask = np.zeros(seen.grid, np.bool_)
        mask.reshape(-1)[tokens[tokens >= 0]] = True
        return mask

    ranks = []
    for _, by_token in seen.signals:
        ranks.append(np.zeros(seen.grid, np.uint8))
        ranks[-1].reshape(-1)[cells[cells >= 0]] = np.frombuffer(by_token, np.uint8)[cells >= 0]
    layers = tuple(FrameRaster(*one) for one in rasters(seen.grid, seen.views))
    return Cells(placed(cells[np.asarray(seen.kept, np.int64)]), placed(cells), layers, tuple(ranks))


def heatmap(kept: Sequence[int], of: Sequence[int], width: int, *, ascii_only: bool = False) -> Text:
    """Rows of at most ``width`` blocks under one line that says how to read them.

    Args:
        kept: visual tokens of each frame that the draft sees.
        of: visual tokens of each frame.
        width: columns to draw in.
        ascii_only: for terminals without block characters.

    More frames than fit into ``MAX_ROWS`` rows share blocks, and the heading says how many. A block is full for the
    greatest share among them, which the heading gives, and a dot where no token is kept.
    """
    per_block = -(-len(kept) // (max(1, width) * MAX_ROWS))
    shares = [
        _share(kept[start : start + per_block], of[start : start + per_block])
        for start in range(0, len(kept), max(1, per_block))
    ]
    top = max(shares, default=0.0)
    total = sum(of)
    head = f"draft sees {sum(kept)}/{total} visual tokens"
    if total:
        head += f" ({sum(kept) / total:.0%})"
    head += f", full block {top:.0%}" if top else ""
    head += f", {per_block} frames a block" if per_block > 1 else ""
    text = Text(head, style="dim")
    for index, share in enumerate(shares):
        if index % max(1, width) == 0:
            text.append("\n")
        _block(text, share, top, ascii_only)
    return text


def frame_map(seen: Prefilled, width: int, *, ascii_only: bool = False) -> Text:
    """A frame as rows of blocks: how often the draft sees each place of it, over all frames.

    Rows that do not fit into ``MAX_ROWS`` lines share them, as columns that do not fit into ``width`` do.

    Args:
        seen: what the draft sees; its grid is not empty.
        width: columns to draw in.
        ascii_only: for terminals without block characters.
    """
    _, rows, columns = seen.grid
    shares = cells_of(seen).place_shares(-(-rows // MAX_ROWS), -(-columns // max(1, width)))
    top = max(map(max, shares))
    head = f"by place in the frame, {rows} x {columns} tokens" + (f", full block {top:.0%}" if top else "")
    text = Text(head, style="dim")
    for line in shares:
        text.append("\n")
        for share in line:
            _block(text, share, top, ascii_only)
    return text


def _block(text: Text, share: float, top: float, ascii_only: bool) -> None:
    symbols = ASCII_BLOCKS if ascii_only else BLOCKS
    level = 0 if not share else max(1, round(share / top * (len(symbols) - 1)))
    text.append(symbols[level], style=f"not dim {COLOURS[level]}")


def _share(kept: Sequence[int], of: Sequence[int]) -> float:
    return sum(kept) / sum(of) if sum(of) else 0.0


def sparkline(shares: Sequence[float], *, ascii_only: bool = False) -> str:
    """One symbol a share: a dot for 0, a full block for 1."""
    symbols = ASCII_BLOCKS if ascii_only else BLOCKS
    return "".join(symbols[round(min(1.0, max(0.0, share)) * (len(symbols) - 1))] for share in shares)


def weight_lines(weights: Mapping[str, Sequence[float]], width: int, *, ascii_only: bool = False) -> list[Text]:
    """Each context's name, its weights in the last windows and the newest as a number.

    Args:
        weights: by context, one per window.
        width: columns to draw in; longer histories lose their beginning.
        ascii_only: for terminals without block characters.
    """
    lines: list[Text] = []
    for context, history in weights.items():
        room = max(1, min(LONGEST, width - len(context) - 6))
        line = Text(f"{context} ", style="dim")
        line.append(sparkline(history[-room:], ascii_only=ascii_only), style="not dim cyan")
        lines.append(line.append(f" {history[-1]:.2f}" if history else ""))
    return lines


def veil(seen: NDArray[np.bool_], wide: int, high: int, *, strength: float = 0.8) -> Image.Image | None:
    """What is laid over one frame: grey where the draft sees nothing, a line around what it sees; None if it sees all.

    Args:
        seen: (rows, columns) which tokens it sees.
        wide, high: pixels.
        strength: how much of the frame the grey hides, from 0 to 1.
    """
    from PIL import Image

    if seen.all():
        return None
    rows, columns = seen.shape
    inside = seen[np.ix_(np.arange(high) * rows // high, np.arange(wide) * columns // wide)]
    around = np.pad(inside, 1, mode="edge")
    enclosed = around[:-2, 1:-1] & around[2:, 1:-1] & around[1:-1, :-2] & around[1:-1, 2:]
    lined = wide >= TINY * columns and high >= TINY * rows
    laid = Image.fromarray(np.where(inside, np.where(enclosed | (not lined), 0, 2), 1).astype(np.uint8), "P")
    laid.putpalette([0, 0, 0, 0, *GREY, round(255 * strength), *EDGE, 255], "RGBA")
    return laid
