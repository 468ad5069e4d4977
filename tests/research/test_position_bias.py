import pytest
from hypothesis import given
from hypothesis import strategies as st

from research.position_bias import ClipBias, block, clip_bias, mean_bias, over_bins, table
from research.position_shares import (
    SharePair,
    border_share,
    ends_share,
    frame_shares,
)

pytestmark = pytest.mark.full


def test_frame_shares():
    """Two frames of 2 x 2: three kept tokens in the first, one in the second."""
    assert frame_shares((2, 2, 2), [0, 1, 3, 6]) == (0.75, 0.25)
    assert frame_shares((2, 2, 2), []) == (0.0, 0.0)


def test_ends_of_parallelvlm_fig_4():
    """Frames 1 and 125-128 of 128 hold 20.9% of the tokens there."""
    shares = [0.004 if not 1 <= frame < 124 else 0.98 / 123 for frame in range(128)]
    shares[0], shares[124:] = 0.05, [0.03, 0.04, 0.04, 0.049]
    first, last = ends_share(shares)
    assert first == 0.05 and last == pytest.approx(0.159) and first + last == pytest.approx(0.209)


@pytest.mark.parametrize(
    ("frames", "first", "last"), [(1, 1, 1), (2, 1, 1), (32, 1, 1), (64, 1, 2), (128, 1, 4), (512, 4, 16)]
)
def test_ends_of_other_numbers_of_frames(frames, first, last):
    assert ends_share([1.0] * frames) == (first, last)


def test_borders_of_hippo_fig_2():
    """The upper and the lower of ten rows lie within 10%: 20% of all, and here three of five kept tokens."""
    assert border_share([0, 9, 9, 4, 5], 10) == pytest.approx(0.6)
    assert border_share(range(10), 10) == pytest.approx(0.2)


@pytest.mark.parametrize(
    ("size", "at"),
    [(1, [0]), (2, [0, 1]), (4, [0, 3]), (14, [0, 13]), (16, [0, 1, 14, 15]), (27, [0, 1, 2, 24, 25, 26])],
)
def test_which_places_are_borders(size, at):
    assert [place for place in range(size) if border_share([place], size)] == at


@pytest.mark.parametrize(
    ("shares", "bins", "expected"),
    [
        ([0.5, 0.1, 0.1, 0.3], 2, [0.6, 0.4]),
        ([0.2, 0.8], 4, [0.1, 0.1, 0.4, 0.4]),  # a frame lies in two stretches
        ([0.3, 0.6, 0.1], 2, [0.6, 0.4]),  # the middle one in both halves
        ([1.0], 10, [0.1] * 10),
    ],
)
def test_stretches(shares, bins, expected):
    assert over_bins(shares, bins) == pytest.approx(expected)


@given(st.lists(st.floats(0, 1), min_size=1, max_size=40), st.integers(1, 12))
def test_stretches_keep_the_sum(shares, bins):
    found = over_bins(shares, bins)
    assert len(found) == bins and sum(found) == pytest.approx(sum(shares))


def test_one_clip():
    """Two frames of 3 x 4, a separator; kept are a corner and the middle of frame 0, and two in frame 1's last row."""
    cells = [*range(12), -1, *range(12, 24)]
    kept = [0, 5, 12, 21, 22]  # token 12 is the separator, tokens 21 and 22 are cells 20 and 21
    bias = clip_bias((2, 3, 4), cells, kept, bins=2)
    assert bias == ClipBias(
        bins=(0.5, 0.5),
        first=SharePair(0.5, 0.5),
        last=SharePair(0.5, 0.5),
        rows=SharePair(0.75, pytest.approx(2 / 3)),
        columns=SharePair(0.5, 0.5),
        peak_rows=1.0,
    )
    assert bias.rows.ratio == pytest.approx(1.125)


def test_keeping_everything_is_no_bias():
    bias = clip_bias((5, 6, 7), range(210), range(210))
    assert bias.bins == pytest.approx([0.1] * 10)
    assert all(pair.ratio == 1 for pair in (bias.first, bias.last, bias.rows, bias.columns))
    assert bias.peak_rows == bias.rows.all


def test_frames_seen_at_two_scales():
    """A 2 x 2 raster above one of 4 x 3: borders are those of each raster, not of both together."""
    grid, views = (1, 6, 3), ((2, 2), (4, 3))
    cells = [0, 1, 3, 4, *range(6, 18)]  # the third column of the upper raster is nowhere
    bias = clip_bias(grid, cells, [2, 8, 15], views=views)  # lower left of 2 x 2; of 4 x 3 an inner cell and a corner
    assert bias.rows == SharePair(pytest.approx(2 / 3), pytest.approx((4 + 6) / 16))
    assert bias.columns == SharePair(pytest.approx(2 / 3), pytest.approx((4 + 8) / 16))


def test_nothing_kept_in_the_grid():
    assert clip_bias((1, 1, 2), [0, 1, -1], [2]) is None and clip_bias((1, 0, 0), [-1], [0]) is None


def test_mean_over_clips():
    one = clip_bias((2, 2, 2), range(8), [0], bins=2)
    other = clip_bias((4, 10, 10), range(400), [350, 355], bins=2)
    mean = mean_bias([one, other])
    assert mean.bins == (0.5, 0.5) and mean.first == SharePair(0.5, 0.375) and mean.last == SharePair(0.5, 0.375)
    assert mean.rows.kept == 0.5 and mean.rows.all == pytest.approx(0.6) and mean.peak_rows == 1.0
    assert mean.columns.kept == 0.75
    with pytest.raises(ValueError, match="no clip"):
        mean_bias([])


def test_table_and_block():
    found = {"sd-attention": clip_bias((2, 3, 4), range(24), [0, 5, 20, 21])}
    head, _, row = table(found).splitlines()
    assert head.count("|") == row.count("|") and "10 equal stretches" in head
    assert row.startswith(
        "| sd-attention | 50.0% (50.0%) | 50.0% (50.0%) | 75.0% (66.7%) | 100% | 50.0% (50.0%) | 10 10"
    )
    assert block(found)["sd-attention"]["rows"] == {"kept": 0.75, "all": pytest.approx(2 / 3)}
    assert table({}).count("\n") == 1
