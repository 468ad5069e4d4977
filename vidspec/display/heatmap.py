"""Visual tokens that the draft sees, by frame: cells of a grid, and an overlay for a frame.

Panel and page both draw the result of :func:`rasters_of`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

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


class TokenRaster(NamedTuple):
    """Visual tokens by their cells in a raster over the whole frame; separators have no cell and are left out.

    Attributes:
        kept: (frames, rows, columns) bool, True where the draft sees the token.
        ranks: for each signal (frames, rows, columns) uint8, 0 where there is no token.
    """

    kept: NDArray[np.bool_]
    ranks: tuple[NDArray[np.uint8], ...]


@lru_cache(maxsize=4)  # the panel is redrawn many times a second
def rasters_of(seen: Prefilled) -> list[TokenRaster]:
    """Return the rasters of the visual tokens shown to a draft; usually one, several for tiles or slices."""
    cells, kept = np.asarray(seen.cells, np.int64), np.zeros(seen.grid, np.bool_)
    shown = cells[np.asarray(seen.kept, np.int64)]
    kept.reshape(-1)[shown[shown >= 0]] = True
    ranks = [np.zeros(seen.grid, np.uint8) for _ in seen.signals]
    for grid, (_, by_token) in zip(ranks, seen.signals, strict=True):
        grid.reshape(-1)[cells[cells >= 0]] = np.frombuffer(by_token, np.uint8)[cells >= 0]
    found, first = [], 0
    for rows, columns in seen.views or (seen.grid[1:],):
        place = slice(None), slice(first, first + rows), slice(columns)
        found.append(TokenRaster(kept[place], tuple(one[place] for one in ranks)))
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
