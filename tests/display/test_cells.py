"""One layout of the tokens that a draft sees, which panel and page draw."""

from vidspec.display.heatmap import rasters_of
from vidspec.events.events import Prefilled

#: Two frames of 2 x 3 cells with a separator between them; the last row is a second raster of one column.
CELLS = (0, 1, 2, 3, -1, 6, 7, 8, 9)
SEEN = Prefilled(
    9, 9, (1, 3, 4, 8), (2, 1), (4, 4), 0.0, (2, 2, 3), CELLS, ((1, 3), (1, 1)), signals=(("all", bytes(range(1, 10))),)
)


def test_every_raster_of_every_frame():
    rasters = rasters_of(SEEN)
    assert [one.kept.shape for one in rasters] == [(2, 1, 3), (2, 1, 1)]
    shown = [one.kept[frame].tolist() for frame in (0, 1) for one in rasters]
    assert shown == [[[False, True, False]], [[True]], [[False] * 3], [[True]]]
    assert [one.ranks[0][1].tolist() for one in rasters] == [[[6, 7, 8]], [[9]]]
