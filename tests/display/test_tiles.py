"""Frames as tiles of half-block cells: what is in colour, what is dim, and how many fit."""

import io

import numpy as np
import pytest
from rich.console import Console

from vidspec.display.figures import moment
from vidspec.display.tiles import GAP, Tiles, fit_tiles, sight_sentence, tile_lines
from vidspec.events.events import Opened, Prefilled, Thumbnail
from vidspec.video.sample import COUNT, SIDE, draw_thumbnails

RED = (200, 20, 20)


def opened(frames=2, colour=RED, side=4, shown=None):
    pixels = bytes(colour) * side * side
    pictures = [Thumbnail(index, 0.5 * index, side, side, pixels) for index in range(min(frames, shown or COUNT))]
    return Opened("clip.mp4", None, frames, tuple(0.5 * one for one in range(frames)), False, tuple(pictures))


def seen(kept, frames=2, rows=2, columns=2, per_frame=None):
    total = frames * rows * columns
    counts = (1,) * frames if per_frame is None else per_frame
    return Prefilled(
        9,
        total,
        tuple(kept),
        counts,
        (rows * columns,) * frames,
        0.1,
        (frames, rows, columns),
        tuple(range(total)),
    )


def pixels(clip, prefilled, layout):
    """Return the colours of the pixels, row by row: those above and below of each cell of the tiles' lines."""
    rows = []
    for line in tile_lines(clip, prefilled, layout)[1:]:
        cells = [one for segment in line for one in [segment.style] * len(segment.text)]
        for side in ("color", "bgcolor"):
            rows.append([getattr(one, side).triplet if one and one.color else None for one in cells])
    return rows


def is_dim(colour):
    return max(colour) < 90 and max(colour) - min(colour) < 9


def test_what_the_draft_sees_is_in_colour_and_the_rest_dim():
    """Two frames of 2 x 2 tokens: the upper left of the first and the lower right of the second."""
    layout = fit_tiles(1.0, 2, 30, 5)
    found = pixels(opened(), seen([0, 7]), layout)
    high, wide = 2 * layout.lines, layout.columns
    assert len(found) == high and len(found[0]) == layout.width == 2 * wide + GAP
    for row in range(high):
        for column in range(wide):
            first, second = found[row][column], found[row][wide + GAP + column]
            assert is_dim(first) != (row < high // 2 and column < wide // 2)
            assert is_dim(second) != (row >= high // 2 and column >= wide // 2)
        assert found[row][wide : wide + GAP] == [None] * GAP


@pytest.mark.parametrize("prefilled", [None, seen(range(8)), seen([]), seen(range(8), per_frame=())])
def test_real_colours_where_all_is_seen_or_nothing_and_before_that_is_known(prefilled):
    (colour,) = {one for row in pixels(opened(), prefilled, fit_tiles(1.0, 2, 30, 5)) for one in row if one}
    assert np.abs(np.subtract(colour, RED)).max() <= 8


def test_a_frame_of_several_rasters_shows_what_any_of_them_keeps():
    """A 1 x 2 raster above one of 1 x 1 over the whole frame."""
    both = Prefilled(9, 3, (1,), (1,), (3,), 0.1, (1, 2, 2), (0, 1, 2), ((1, 2), (1, 1)))
    first = pixels(opened(1), both, fit_tiles(1.0, 1, 30, 5))[0]
    assert [is_dim(one) for one in first] == [True] * (len(first) // 2) + [False] * (len(first) // 2)
    whole = Prefilled(9, 3, (2,), (1,), (3,), 0.1, (1, 2, 2), (0, 1, 2), ((1, 2), (1, 1)))
    assert not any(map(is_dim, pixels(opened(1), whole, fit_tiles(1.0, 1, 30, 5))[0]))


def test_a_family_whose_temporal_steps_are_two_frames():
    """Four frames, two steps: the second step is of frames 2 and 3."""
    clip = opened(4)
    found = pixels(clip, seen([4, 5, 6, 7]), fit_tiles(1.0, 4, 60, 4))
    columns = (len(found[0]) + GAP) // 4
    assert [is_dim(found[0][columns * number]) for number in range(4)] == [True, True, False, False]


@pytest.mark.parametrize("ratio", [0.3, 9 / 16, 1.0, 16 / 9, 3.0])
@pytest.mark.parametrize("width", [4, 20, 36, 76, 116])
@pytest.mark.parametrize("lines", [1, 4, 7, 20])
@pytest.mark.parametrize("frames", [1, 3, 8])
def test_tiles_fit_their_area(ratio, width, lines, frames):
    layout = fit_tiles(ratio, frames, width, lines)
    if layout is None:
        assert lines < 4 or width < 18
        return
    assert layout.width <= width and layout.height <= lines and layout.across * (layout.down - 1) < frames
    clip = opened(frames)
    out = io.StringIO()
    Console(file=out, width=width, force_terminal=True, color_system="truecolor").print(Tiles(clip, None, layout))
    assert out.getvalue().count("\n") == layout.height
    assert all(sum(one.cell_length for one in line) <= width for line in tile_lines(clip, None, layout))


def test_fewer_frames_where_it_is_narrow_and_two_strips_where_it_is_high():
    assert [fit_tiles(1.0, 8, width, 7).across for width in (36, 76)] == [3, 5]
    assert fit_tiles(1.0, 8, 60, 20).down == 2


@pytest.mark.parametrize(
    ("kept", "per_frame", "text"),
    [
        (157, (1,), "the draft sees 10% of 1,568 visual tokens; 5 of 32 frames shown"),
        (8, (1,), "the draft sees 0.5% of 1,568 visual tokens; 5 of 32 frames shown"),
        (1568, (1,), "the draft sees all 1,568 visual tokens; 5 of 32 frames shown"),
        (0, (0,), "the draft reads text only: none of 1,568 visual tokens; 5 of 32 frames shown"),
        (1568, (), "1,568 visual tokens; 5 of 32 frames shown"),
    ],
)
def test_one_sentence_on_what_the_draft_sees(kept, per_frame, text):
    assert sight_sentence(opened(32), Prefilled(9, 1568, tuple(range(kept)), per_frame, per_frame, 0.1), 5) == text


def test_a_sentence_before_the_prompt_is_read():
    assert sight_sentence(None, None, 0) == "" and sight_sentence(opened(32), None, 0) == "32 frames"
    assert sight_sentence(opened(4), seen([1], 1, 1, 4), 4) == "the draft sees 25% of 4 visual tokens"


def test_times_above_the_tiles():
    (line, *_) = tile_lines(opened(2), None, fit_tiles(1.0, 2, 30, 5))
    assert "".join(one.text for one in line) == "0.0 s     0.5 s   "
    assert [moment(one, 1) for one in (0, 9.25, 59.4, 59.6, 125)] == ["0.0 s", "9.2 s", "59.4 s", "1:00", "2:05"]


def test_thumbnails_are_small_and_of_evenly_spaced_frames():
    frames = np.zeros((64, 90, 160, 3), np.uint8)
    frames[:, :, 80:] = 255
    found = draw_thumbnails(frames, [float(one) for one in range(64)])
    assert [one.index for one in found] == [0, 9, 18, 27, 36, 45, 54, 63] and found[1].seconds == 9.0
    assert (found[0].rows, found[0].columns) == (22, SIDE) and len(found) == COUNT
    left = np.frombuffer(found[0].pixels, np.uint8).reshape(22, SIDE, 3)[:, : SIDE // 2]
    assert not left.any()
    assert len(draw_thumbnails(frames[:1], [0.0])) == 1
    assert draw_thumbnails(np.zeros((4, 0, 0, 3), np.uint8), [0.0] * 4) == ()
    assert draw_thumbnails(np.full((1, 2, 3, 3), 9, np.uint8), [0.0])[0].pixels == bytes([9] * 18)
