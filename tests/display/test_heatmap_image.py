import numpy as np
import pytest

from vidspec.display.heatmap import cells_of
from vidspec.display.heatmap_image import (
    BACKGROUND,
    BARS,
    GAP,
    KEPT,
    LABEL,
    MARGIN,
    TITLE,
    WIDTH,
    heatmap_image,
)
from vidspec.events.events import Prefilled

#: Two frames of 2 x 3 cells and a separator between them.
GRID, CELLS = (2, 2, 3), (0, 1, 2, 3, 4, 5, -1, 6, 7, 8, 9, 10, 11)
WHITE = [np.full((40, 60, 3), 255, np.uint8)] * 2


def seen(grid, cells, kept, views=()):
    cells, kept = tuple(cells), tuple(kept)
    return Prefilled(9, len(cells), kept, (), (), 0.0, grid=grid, cells=cells, views=tuple(views))


def kept_mask(grid, cells, kept):
    return cells_of(seen(grid, cells, kept)).kept


def drawn(kept, frames=WHITE, grid=GRID, cells=CELLS, seconds=(0.0, 1.5), title="a title"):
    return np.asarray(heatmap_image(frames, seconds, seen(grid, cells, kept), title)).astype(int)


def cell(picture, frame, row, column, *, across=2, wide=400, high=267, rows=2, columns=3):
    """The pixel in the middle of a cell."""
    left = MARGIN + frame % across * (wide + GAP)
    upper = MARGIN + TITLE + 14 + frame // across * (high + LABEL + 6 + GAP)
    return picture[upper + (2 * row + 1) * high // (2 * rows), left + (2 * column + 1) * wide // (2 * columns)]


def test_mask():
    mask = kept_mask(GRID, CELLS, (1, 5, 6, 12))
    assert mask.tolist() == [[[False, True, False], [False, False, True]], [[False] * 3, [False, False, True]]]
    assert not kept_mask(GRID, CELLS, ()).any()


def test_kept_cells_are_as_they_are_and_pruned_ones_veiled():
    kept = (1, 5, 6, 12)
    picture, mask = drawn(kept), kept_mask(GRID, CELLS, kept)
    for frame, row, column in np.ndindex(2, 2, 3):
        pixel = cell(picture, frame, row, column).tolist()
        assert (pixel == [255] * 3) if mask[frame, row, column] else (max(pixel) < 145), (frame, row, column)


def test_veiled_cells_still_show_the_frame():
    half = np.zeros((40, 60, 3), np.uint8)
    half[:, 20:] = 200
    picture = drawn((), [half, half])
    assert (cell(picture, 0, 0, 1) - cell(picture, 0, 0, 0)).min() > 30


def test_kept_cells_are_framed_where_they_meet_pruned_ones():
    picture = drawn((1, 2))  # the two right cells of the first frame's upper row
    upper, left = MARGIN + TITLE + 14, MARGIN
    assert picture[upper + 60, left + 134].tolist() == list(KEPT)
    assert picture[upper + 133, left + 300].tolist() == list(KEPT)
    assert picture[upper + 60, left + 267 - 5 : left + 267 + 5].min() == 255  # no line between kept ones
    assert not (drawn(())[upper : upper + 267] == KEPT).all(-1).any()


def test_bars_are_as_high_as_the_share_of_each_frame():
    picture = drawn((0, 1, 2, 7))  # three of four in the first frame
    bars = (picture[-(BARS + 3 * LABEL + MARGIN + 40) :] == KEPT).all(-1)
    first, second = bars[:, WIDTH // 4].sum(), bars[:, 3 * WIDTH // 4].sum()
    assert first == pytest.approx(BARS, abs=3) and second == pytest.approx(BARS / 3, abs=3)


def test_title_and_times_are_written():
    plain = drawn((0,))
    assert (plain != drawn((0,), title="another")).any()
    below = slice(MARGIN + TITLE + 14 + 267 + 1, MARGIN + TITLE + 14 + 267 + LABEL + 6)
    assert (plain[below] != drawn((0,), seconds=(0.0, 2.5))[below]).any()


def test_a_long_title_stays_inside():
    picture = drawn((0,), title="w" * 500)
    assert (picture[:, WIDTH - MARGIN :] == BACKGROUND).all()


@pytest.mark.sample(quick=2)
@pytest.mark.parametrize(("frames", "side"), [(1, 14), (5, 27), (128, 14), (512, 14)])
@pytest.mark.parametrize("size", [(36, 64), (64, 36)])
def test_any_number_of_frames_fits(frames, side, size):
    shown = [np.full((*size, 3), 90, np.uint8)] * frames
    cells = range(frames * side**2)
    grid = seen((frames, side, side), cells, cells[::10])
    image = heatmap_image(shown, [i * 1.0 for i in range(frames)], grid, "t")
    assert image.mode == "RGB" and image.width == WIDTH and 200 < image.height < 2 * WIDTH
    pixels = np.asarray(image)
    assert (pixels[:, WIDTH - MARGIN :] == BACKGROUND).all() and (pixels[-MARGIN // 2 :] == BACKGROUND).all()


def test_a_frame_seen_at_two_scales_is_drawn_at_each():
    """A 2 x 3 raster above one of 1 x 2, whose second cell is kept; of the other the first."""
    grid = (1, 3, 3)
    picture = drawn((0, 7), WHITE[:1], grid, (0, 1, 2, 3, 4, 5, 6, 7), (0.0,))
    assert cell(picture, 0, 0, 0, rows=3).min() == 255 and cell(picture, 0, 2, 1, rows=3).min() == 255
    frames = [np.full((40, 60, 3), 255, np.uint8)]
    split = np.asarray(heatmap_image(frames, (0.0,), seen(grid, range(8), (0, 7), [(2, 3), (1, 2)]), "t")).astype(int)
    assert [cell(split, 0, *place).min() == 255 for place in np.ndindex(2, 3)] == [True, *[False] * 5]
    assert [cell(split, 1, 0, column, rows=1, columns=2).min() == 255 for column in (0, 1)] == [False, True]


def test_all_or_none_kept():
    assert cell(drawn(range(13)), 1, 1, 2).min() == 255
    assert cell(drawn(()), 1, 1, 2).max() < 145


def test_what_does_not_fit_together_is_refused():
    with pytest.raises(ValueError, match="do not fill a grid"):
        drawn((0,), frames=WHITE[:1])
    with pytest.raises(ValueError, match="do not fill a grid"):
        drawn((0,), grid=(2, 0, 0))
