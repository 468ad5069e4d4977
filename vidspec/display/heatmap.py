"""Visual tokens that the draft sees, by frame: cells of a grid, and an overlay for a frame.

Panel and page both draw the result of :func:`cells_of`.
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

if TYPE_CHECKING:
    from PIL import Image

#: RGB colours of the line around visible cells and of the overlay on hidden ones.
EDGE, GREY = (255, 176, 32), (96, 100, 112)
#: Cells smaller than this many pixels get no outline.
TINY = 6
#: Most symbols in a context's history of weights.
LONGEST = 24
BLOCKS, ASCII_BLOCKS = "·▁▂▃▄▅▆▇█", ".:-=+*#%@"


@dataclass(frozen=True)
class FrameRaster:
    """A raster of tokens that covers the whole frame: its first row in the grid, its rows and its columns."""

    first: int
    rows: int
    columns: int

    @property
    def size(self) -> int:
        return self.rows * self.columns

    @property
    def place(self) -> tuple[slice, slice]:
        """Slices of its rows and columns in the grid."""
        return slice(self.first, self.first + self.rows), slice(self.columns)


@dataclass(frozen=True, eq=False)
class Cells:
    """Visual tokens by grid cell. Separators have no cell and are left out.

    Attributes:
        kept, there: (frames, rows, columns) bool: the draft sees a token in the cell; the cell has a token.
        layers: the rasters of a frame, stacked by rows in the grid; usually one.
        ranks: for each signal (frames, rows, columns) uint8, 0 where there is no token.
    """

    kept: NDArray[np.bool_]
    there: NDArray[np.bool_]
    layers: tuple[FrameRaster, ...]
    ranks: tuple[NDArray[np.uint8], ...]

    def of(self, frame: int, layer: FrameRaster) -> NDArray[np.bool_]:
        """Return the (rows, columns) mask of the tokens of one frame that the draft sees."""
        shown: NDArray[np.bool_] = self.kept[frame][layer.place]
        return shown

    def levels(self, frame: int, layer: FrameRaster) -> list[NDArray[np.uint8]]:
        """Return the (rows, columns) ranks over one frame for each signal."""
        return [ranks[frame][layer.place] for ranks in self.ranks]


@lru_cache(maxsize=4)  # the panel is redrawn many times a second
def cells_of(seen: Prefilled) -> Cells:
    """Return the grid cells of the visual tokens shown to a draft."""
    cells = np.asarray(seen.cells, np.int64)

    def mask_of(tokens: NDArray[np.int64]) -> NDArray[np.bool_]:
        mask = np.zeros(seen.grid, np.bool_)
        mask.reshape(-1)[tokens[tokens >= 0]] = True
        return mask

    ranks = []
    for _, by_token in seen.signals:
        ranks.append(np.zeros(seen.grid, np.uint8))
        ranks[-1].reshape(-1)[cells[cells >= 0]] = np.frombuffer(by_token, np.uint8)[cells >= 0]
    layers = tuple(FrameRaster(*one) for one in rasters(seen.grid, seen.views))
    return Cells(mask_of(cells[np.asarray(seen.kept, np.int64)]), mask_of(cells), layers, tuple(ranks))


def rasters(grid: tuple[int, int, int], views: Sequence[tuple[int, int]]) -> list[tuple[int, int, int]]:
    """Return (first row in the grid, rows, columns) of each raster of a frame; a single one without views."""
    found, first = [], 0
    for rows, columns in views or (grid[1:],):
        found.append((first, rows, columns))
        first += rows
    return found


def sparkline(shares: Sequence[float], *, ascii_only: bool = False) -> str:
    """Return one symbol per share: a dot for 0, a full block for 1."""
    symbols = ASCII_BLOCKS if ascii_only else BLOCKS
    return "".join(symbols[round(min(1.0, max(0.0, share)) * (len(symbols) - 1))] for share in shares)


def weight_lines(weights: Mapping[str, Sequence[float]], width: int, *, ascii_only: bool = False) -> list[Text]:
    """Return a line per context: its name, its recent weights, and the newest as a number.

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
    """Return an overlay for one frame: grey over hidden tokens, a line around visible ones; None if all are visible.

    Args:
        seen: (rows, columns) mask of visible tokens.
        wide, high: pixels.
        strength: opacity of the grey, from 0 to 1.
    """
    from PIL import Image

    if seen.all():
        return None
    rows, columns = seen.shape
    inside = seen[np.ix_(np.arange(high) * rows // high, np.arange(wide) * columns // wide)]
    around = np.pad(inside, 1, mode="edge")
    enclosed = around[:-2, 1:-1] & around[2:, 1:-1] & around[1:-1, :-2] & around[1:-1, 2:]
    lined = wide >= TINY * columns and high >= TINY * rows
    overlay = Image.fromarray(np.where(inside, np.where(enclosed | (not lined), 0, 2), 1).astype(np.uint8), "P")
    overlay.putpalette([0, 0, 0, 0, *GREY, round(255 * strength), *EDGE, 255], "RGBA")
    return overlay
