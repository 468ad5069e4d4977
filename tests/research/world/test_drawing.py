import math

import numpy as np
import pytest

from research.world.drawing import coverage, frames
from research.world.scene import ASPECT, BACKGROUNDS, COLOURS, PATTERNS, SIZES
from tests.research.world.scenes import scene, thing
from vidspec.embedded.prompts import SHAPES

R = SIZES["large"]
AREAS = {  # in units of the frame's height squared
    "circle": math.pi * R**2,
    "square": (2 * 0.87 * R) ** 2,
    "cross": 4 * 0.34 * R * (2 * R) - (2 * 0.34 * R) ** 2,
    "ring": math.pi * (R**2 - (0.48 * R) ** 2),
    "star": 5 * 1.1 * R * 0.46 * R * math.sin(math.pi / 5),
}


def near(pixel, colour, within=10):
    return np.abs(pixel.astype(int) - colour).max() <= within


def drawn(*things, times=(0.0,), height=240, width=320, **more):
    return frames(scene(*things, **more), list(times), height, width)


@pytest.mark.parametrize("shape", AREAS)
def test_area_of_each_shape(shape):
    share = coverage(scene(thing(shape=shape)), [0.0], rows=8, columns=8, finer=32)
    assert share.mean() * ASPECT == pytest.approx(AREAS[shape], rel=0.03)


def test_triangle_points_up():
    share = coverage(scene(thing(shape="triangle")), [0.0], rows=64, columns=64, finer=4)[0, 0]
    widths = (share > 0.5).sum(axis=1)
    rows = widths[widths > 0]
    assert (np.diff(rows) >= 0).all() and rows[-1] > 2 * rows[0]


@pytest.mark.parametrize("shape", SHAPES)
def test_shapes_stay_within_their_radius(shape):
    apart = coverage(scene(thing(shape=shape)), [0.0], rows=96, columns=96, finer=4)[0, 0] > 0
    rows, columns = np.nonzero(apart)
    x, y = ((columns + 0.5) / 96 - 0.5) * ASPECT, (rows + 0.5) / 96 - 0.5
    assert np.hypot(x, y).max() < 1.23 * R + 0.02  # a square's corner lies farthest out
    assert apart.any()


def test_coverage_of_cells():
    share = coverage(scene(thing(shape="square", start=(2, 0), at=(5 / 6, 1 / 6))), [0.0], rows=3, columns=3, finer=32)
    assert share.shape == (1, 1, 3, 3) and share.dtype == np.float32
    expected = np.zeros((3, 3))
    expected[0, 2] = AREAS["square"] / (ASPECT / 9)
    np.testing.assert_allclose(share[0, 0], expected, atol=0.02)


def test_coverage_of_a_grid_that_is_not_square():
    share = coverage(scene(thing(shape="square", start=(2, 0), at=(0.9, 0.25))), [0.0], rows=2, columns=5, finer=32)
    assert share.shape == (1, 1, 2, 5)
    expected = np.zeros((2, 5))
    height, width = 2 * 0.87 * R, 2 * 0.87 * R / ASPECT  # a square in fractions of the frame
    outside = max(0.0, width / 2 - 0.1)
    expected[0, 4], expected[0, 3] = height * (width - 2 * outside) * 10, height * outside * 10
    np.testing.assert_allclose(share[0, 0], expected, atol=0.02)


def test_coverage_moves_with_the_thing():
    one = thing(motion="right", start=(0, 1), end=(2, 1))
    share = coverage(scene(one), [0.0, 0.5, 1.0], rows=3, columns=3)
    assert share[0].reshape(3, 9).argmax(axis=1).tolist() == [3, 4, 5]


def test_what_is_drawn_later_hides_what_is_below():
    below, above = thing("red", "circle"), thing("blue", "square", "small")
    alone = coverage(scene(below), [0.0], rows=8, columns=8, finer=16)[0].sum()
    small = coverage(scene(above), [0.0], rows=8, columns=8, finer=16)[0].sum()
    both = coverage(scene(below, above), [0.0], rows=8, columns=8, finer=16)
    assert both[1].sum() == pytest.approx(small)
    assert both[0].sum() == pytest.approx(alone - small, rel=1e-3)
    assert both.sum(axis=0).max() <= 1 + 1e-6
    picture = drawn(below, above)[0]
    assert near(picture[120, 160], COLOURS["blue"])
    assert near(picture[120, 160 + 28], COLOURS["red"])


def test_hidden_wholly():
    both = coverage(scene(thing("red", "circle", "small"), thing("blue", "circle")), [0.0], rows=8, columns=8)
    assert both[0].max() == 0 and both[1].max() > 0.5


def test_out_of_the_frame():
    gone, half, whole = (scene(thing(at=(x, 0.5))) for x in (-0.5, 0.0, 0.5))
    assert coverage(gone, [0.0], rows=8, columns=8).max() == 0
    np.testing.assert_array_equal(frames(gone, [0.0]), frames(scene(), [0.0]))
    shares = [coverage(one, [0.0], rows=8, columns=8, finer=16).sum() for one in (half, whole)]
    assert shares[0] == pytest.approx(shares[1] / 2, rel=0.02)


def test_appearing_and_vanishing():
    empty = drawn()[0]
    for motion, shown in (("appears", [False, False, True, True]), ("vanishes", [True, True, False, False])):
        pictures = drawn(thing(motion=motion, switch=0.5), times=(0.0, 0.49, 0.5, 1.0))
        assert [bool((picture != empty).any()) for picture in pictures] == shown


def test_colours_of_frames():
    pictures = drawn(thing("green", "ring"), background="maroon", times=(0.0, 1.0))
    assert pictures.shape == (2, 240, 320, 3) and pictures.dtype == np.uint8
    for picture in pictures:
        assert near(picture[0, 0], BACKGROUNDS["maroon"], 7)
        assert near(picture[120, 160], BACKGROUNDS["maroon"], 7)  # through the ring
        assert near(picture[120, 160 + round(0.74 * R * 240)], COLOURS["green"])


@pytest.mark.parametrize("pattern", PATTERNS)
def test_patterns_have_two_shades_except_plain(pattern):
    shades = np.unique(drawn(pattern=pattern, background="teal")[0].reshape(-1, 3), axis=0)
    assert len(shades) == (1 if pattern == "plain" else 2)


def test_stripes_are_upright():
    picture = drawn(pattern="striped")[0]
    assert (picture == picture[:1]).all() and (picture != picture[:, :1]).any()


def test_frames_depend_on_the_scene_and_the_time_alone():
    one = thing(motion="circles", turns=1.5)
    times = [k / 9 for k in range(10)]
    whole = drawn(one, times=times)
    parts = np.concatenate([drawn(one, times=times[:4]), drawn(one, times=times[4:])])
    np.testing.assert_array_equal(whole, parts)
    assert (drawn(one, seed=4) != whole[:1]).any()


def test_frame_size():
    assert drawn(thing(), height=60, width=80).shape == (1, 60, 80, 3)
