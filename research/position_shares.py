"""Position bias of pruners: shares of kept tokens by frame and frame border, next to those of all tokens. No torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from vidspec.display.heatmap import rasters

__all__ = [
    "PositionBias",
    "SharePair",
    "at_borders",
    "border_share",
    "ends_share",
    "frame_shares",
    "position_bias",
]


@dataclass(frozen=True)
class SharePair:
    """The share of kept tokens in a region, and that of all tokens, which an unbiased choice would keep; in [0, 1]."""

    kept: float
    all: float

    @property
    def ratio(self) -> float | None:
        """Kept share over that of an unbiased choice; None if the region has no tokens."""
        return self.kept / self.all if self.all else None


@dataclass(frozen=True)
class PositionBias:
    """Position bias of one selection of visual tokens, without separators.

    Attributes:
        first, last: first and last frames of the video, see :func:`ends_share`.
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
    """Measure the position bias of one clip, as ParallelVLM Fig. 4 and HIPPO Fig. 2 and 8 do.

    Args:
        grid: frames (temporal steps), rows and columns of visual tokens.
        cells: cell of each of the N visual tokens, counted frame by frame in raster order; -1 for separators.
        kept: indices of the tokens kept.
        views: rows and columns of each raster, if a frame is shown in several, one below the other.

    Returns:
        None if no token of the grid is kept.
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
    """Return each frame's share of the tokens in ``cells`` (ParallelVLM Fig. 4); zeros without tokens."""
    frames, rows, columns = grid
    counts = [0] * frames
    for cell in cells:
        counts[cell // (rows * columns)] += 1
    return tuple(count / max(1, len(cells)) for count in counts)


def ends_share(shares: Sequence[float]) -> tuple[float, float]:
    """Return the total shares of the first and of the last frames.

    ParallelVLM Fig. 4 takes frame 1 and frames 125-128 of 128. **D**: other numbers of frames are scaled and rounded,
    with at least one frame at each end; a single frame is both the first and the last.
    """
    first, last = (max(1, round(len(shares) * part / 128)) for part in (1, 4))
    return sum(shares[:first]), sum(shares[-last:])


def border_share(places: Sequence[int], size: int, border: float = 0.1) -> float:
    """Return the share of tokens at the two borders of an axis (HIPPO 4.1, Fig. 2 and 8).

    HIPPO takes tokens within a normalised distance of 10% from the upper or lower edge, about 20% of all. **D**:
    ``border`` of the rows (columns) at each edge, rounded and at least one, since a small grid has no row within 10%;
    compare with the same share of all tokens, not with 20%.

    Args:
        places: row (or column) of each token.
        size: rows (or columns) of a frame.
        border: share of the axis at each edge.
    """
    depth = max(1, round(border * size))
    return sum(not depth <= place < size - depth for place in places) / max(1, len(places))


def at_borders(
    grid: tuple[int, int, int], views: Sequence[tuple[int, int]], cells: Sequence[int], *, axis: int
) -> float:
    """Return :func:`border_share` of rows (axis 0) or columns (1), each cell within its own raster."""
    _, rows, columns = grid
    borders = 0.0
    for first, high, wide in rasters(grid, views):
        inside = [cell for cell in cells if first <= cell // columns % rows < first + high]
        places = [cell % columns if axis else cell // columns % rows - first for cell in inside]
        borders += border_share(places, wide if axis else high) * len(places)
    return borders / max(1, len(cells))
