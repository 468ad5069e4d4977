"""Which visual tokens a draft sees, laid out over the frames: what panel, page and picture draw. Draws nothing."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from vidspec.events.events import Prefilled
from vidspec.pruning.position_bias import rasters

__all__ = ["Cells", "Layer", "cells_of"]


@dataclass(frozen=True)
class Layer:
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
    layers: tuple[Layer, ...]
    ranks: tuple[NDArray[np.uint8], ...]

    def of(self, frame: int, layer: Layer) -> NDArray[np.bool_]:
        """(rows, columns) which tokens of one frame the draft sees."""
        shown: NDArray[np.bool_] = self.kept[frame][layer.place]
        return shown

    def levels(self, frame: int, layer: Layer) -> list[NDArray[np.uint8]]:
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
    layers = tuple(Layer(*one) for one in rasters(seen.grid, seen.views))
    return Cells(placed(cells[np.asarray(seen.kept, np.int64)]), placed(cells), layers, tuple(ranks))
