"""Where in the video and in its frames a pruner's kept tokens lie, beside where all tokens lie; plain numbers only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

__all__ = [
    "PositionBias",
    "SharePair",
    "at_borders",
    "border_share",
    "ends_share",
    "frame_shares",
    "position_bias",
    "rasters",
]


@dataclass(frozen=True)
class SharePair:
    """A share of the kept tokens, and the share of all tokens in the same place: what an even choice would keep there.

    Both lie within [0, 1].
    """

    kept: float
    all: float

    @property
    def ratio(self) -> float | None:
        """How many times as many as evenly chosen; None where there is nothing."""
        return self.kept / self.all if self.all else None


@dataclass(frozen=True)
class PositionBias:
    """The position bias of one choice of visual tokens, separators left out.

    Attributes:
        first, last: the ends of the video, see :func:`ends_share`.
        rows: upper and lower border of the frames, see :func:`border_share`.
        columns: left and right border.
    """

    first: SharePair
    last: SharePair
    rows: SharePair
    columns: SharePair


def position_bias(
    grid: tuple[int, int, int],
    cells: Sequence[int],
    kept: Sequence[int],
    views: Sequence[tuple[int, int]] = (),
) -> PositionBias | None:
    """What ParallelVLM Fig. 4 and HIPPO Fig. 2 and 8 measure, of one clip.

    Args:
        grid: frames (temporal steps), rows and columns of visual tokens.
        cells: of each of N visual tokens its cell, counted frame by frame in raster order; -1 for separators.
        kept: indices of the tokens kept.
        views: rows and columns of each of several rasters, one below the other, that show the whole frame each.

    Returns:
        None if no token that lies in the grid is kept.
    """
    places = [cell for cell in cells if cell >= 0]
    chosen = [cells[index] for index in kept if cells[index] >= 0]
    if not chosen:
        return None
    share, whole = frame_shares(grid, chosen), frame_shares(grid, places)
    first, last = (SharePair(*(ends_share(of)[end] for of in (share, whole))) for end in (0, 1))
    return PositionBias(
        first=first,
        last=last,
        rows=SharePair(*(at_borders(grid, views, of, axis=0) for of in (chosen, places))),
        columns=SharePair(*(at_borders(grid, views, of, axis=1) for of in (chosen, places))),
    )


def frame_shares(grid: tuple[int, int, int], cells: Sequence[int]) -> tuple[float, ...]:
    """Which share of the tokens in ``cells`` each frame holds (ParallelVLM Fig. 4); zeros for no tokens."""
    frames, rows, columns = grid
    counts = [0] * frames
    for cell in cells:
        counts[cell // (rows * columns)] += 1
    return tuple(count / max(1, len(cells)) for count in counts)


def ends_share(shares: Sequence[float]) -> tuple[float, float]:
    """Shares of the first and of the last frames together.

    ParallelVLM Fig. 4 takes frame 1 and frames 125-128 of 128: one in 128 at the beginning, four at the end. **D**: so
    many of another number of frames, rounded, at least one each; a single frame is both the first and the last.
    """
    first, last = (max(1, round(len(shares) * part / 128)) for part in (1, 4))
    return sum(shares[:first]), sum(shares[-last:])


def border_share(places: Sequence[int], size: int, border: float = 0.1) -> float:
    """Which share of tokens lies at the two borders of an axis (HIPPO 4.1, Fig. 2 and 8).

    HIPPO takes those within a normalised distance of 10% from the upper or lower edge, about 20% of all. **D**:
    ``border`` of the rows (columns), rounded, at each edge, and at least one, since a small grid has no row that lies
    within 10%; compare with the same share of all tokens, not with 20%.

    Args:
        places: row (or column) of each token.
        size: rows (or columns) of a frame.
        border: share of the axis at each edge.
    """
    depth = max(1, round(border * size))
    return sum(not depth <= place < size - depth for place in places) / max(1, len(places))


def rasters(grid: tuple[int, int, int], views: Sequence[tuple[int, int]]) -> list[tuple[int, int, int]]:
    """Of each raster of a frame its first row in the grid, its rows and its columns; one where there are no views."""
    found, first = [], 0
    for rows, columns in views or (grid[1:],):
        found.append((first, rows, columns))
        first += rows
    return found


def at_borders(
    grid: tuple[int, int, int], views: Sequence[tuple[int, int]], cells: Sequence[int], *, axis: int
) -> float:
    """:func:`border_share` of rows (axis 0) or columns (1), each cell in the raster it lies in."""
    _, rows, columns = grid
    borders = 0.0
    for first, high, wide in rasters(grid, views):
        inside = [cell for cell in cells if first <= cell // columns % rows < first + high]
        places = [cell % columns if axis else cell // columns % rows - first for cell in inside]
        borders += border_share(places, wide if axis else high) * len(places)
    return borders / max(1, len(cells))
