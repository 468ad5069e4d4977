"""Positions of visual tokens as plain numbers, for events: a grid, and the cell of each token in it."""

from __future__ import annotations

from vidspec.models.base import VisualTokens

__all__ = ["token_places"]


def token_places(visual: VisualTokens) -> tuple[tuple[int, int, int], tuple[int, ...]]:
    """Return the grid (frames or temporal steps, rows, columns) and the cell of each token in it.

    Cells are counted frame by frame in raster order; separators have -1.
    """
    frame, row, column = visual.frame.cpu(), visual.row.cpu(), visual.column.cpu()
    inside = (row >= 0) & (column >= 0)
    if not bool(inside.any()):
        return (visual.frames, 0, 0), (-1,) * len(visual)
    rows, columns = int(row.max()) + 1, int(column.max()) + 1
    cell = ((frame * rows + row) * columns + column).masked_fill(~inside, -1)
    return (visual.frames, rows, columns), tuple(cell.tolist())
