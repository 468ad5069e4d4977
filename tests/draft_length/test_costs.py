"""Cost of a pass by clips and rows, from passes on a noisy machine."""

import random
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vidspec.draft_length.costs import ROW, PassTimes, TimeCurve


def plane(clips, rows):
    return 3.0 + 0.5 * clips + 0.1 * rows


def heard(passes, rng=None, true=plane, scale=1.0):
    times = PassTimes()
    for clips, rows in passes:
        noise = 1.0
        if rng is not None:
            noise = 1 + abs(rng.gauss(0, 0.05))
            noise *= rng.uniform(3, 10) if rng.random() < 0.08 else 1.0
        times.add(clips, rows, scale * true(clips, rows) * noise)
        times.by_rows(clips)  # asked after each pass, as while decoding
    return times


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("scale", [1e-4, 1.0])
def test_widths_that_were_not_seen_follow_from_those_that_were(seed, scale):
    rng = random.Random(seed)
    seen = [(clips, clips * width) for clips in (1, 2, 4, 8) for width in (1, 3, 6)]
    times = heard([rng.choice(seen) for _ in range(300)], rng, scale=scale)
    for clips, rows in [(1, 10), (3, 9), (6, 30), (8, 60), (12, 48)]:
        assert times.by_rows(clips)(rows) == pytest.approx(scale * plane(clips, rows), rel=0.12)


def test_what_was_seen_bends_the_plane():
    roof = heard([(4, rows) for rows in (4, 8, 16, 24, 48, 64)] * 9, true=lambda clips, rows: max(10.0, 0.5 * rows))
    curve = roof.by_rows(4)
    for rows in (4, 8, 16, 24, 48, 64):
        assert curve(rows) == pytest.approx(max(10.0, 0.5 * rows), rel=0.06)


def test_a_row_costs_something_although_nothing_is_known_of_it():
    times = heard([(1, 5)] * 3)
    once = times.by_rows(1)(5)
    assert 1.5 * ROW * once < times.by_rows(1)(9) - once < 6 * ROW * once
    assert times.by_rows(4)(5) > once, "and so does a clip"


def test_noise_does_not_make_wider_passes_cheaper():
    times = PassTimes()
    for rows, seconds in [(2, 9.0), (8, 5.0), (5, 7.0)] * 4:
        times.add(1, rows, seconds)
    curve = times.by_rows(1)
    found = [curve(rows) for rows in range(1, 20)]
    assert found == sorted(found) and found[0] > 0


def test_a_spike_changes_nothing_and_a_slower_machine_is_noticed():
    times = heard([(1, 1), (1, 6), (1, 11)] * 6)
    before = times.by_rows(1)(8)
    times.add(1, 8, 100 * before)
    assert times.by_rows(1)(8) == pytest.approx(before, rel=0.01)
    times.add(1, 8, before)
    for _ in range(12):
        times.add(1, 6, 3 * plane(1, 6))
        times.by_rows(1)
    assert times.by_rows(1)(6) > 1.4 * plane(1, 6)
    for rows in (1, 6, 11) * 12:
        times.add(1, rows, 3 * plane(1, rows))
        times.by_rows(1)
    assert times.by_rows(1)(6) == pytest.approx(3 * plane(1, 6), rel=0.05)


def test_passes_of_single_rows_by_clips():
    times = heard([(clips, clips) for clips in (1, 2, 4, 7)] * 5)
    assert [times.by_clips()(n) for n in (1, 3, 7, 9)] == pytest.approx([plane(n, n) for n in (1, 3, 7, 9)], rel=0.05)


def test_how_long_ago_a_width_was_seen():
    times = heard([(8, 8), (8, 48), (8, 48)])
    assert (times.since(8, 8), times.since(7, 7), times.since(8, 48)) == (2, 2, 0)
    assert times.since(8, 24) == times.since(2, 2) == float("inf")


def test_what_is_no_pass_is_not_heard():
    times = PassTimes()
    for clips, rows, seconds in [(0, 0, 1.0), (3, 2, 1.0), (1, 1, 0.0), (1, 1, float("nan")), (1, 1, float("inf"))]:
        times.add(clips, rows, seconds)
    assert not times


def test_the_oldest_width_makes_room():
    times = heard([(1, rows) for rows in range(1, 200)])
    assert times.since(1, 1) == float("inf") and times.since(1, 199) == 0
    assert times.by_rows(1)(150) == pytest.approx(plane(1, 150), rel=0.05)


@given(
    st.lists(st.tuples(st.integers(1, 50), st.floats(0.1, 100), st.floats(0.1, 9)), max_size=8, min_size=1),
    st.floats(0, 5),
)
def test_a_curve_never_falls_and_meets_points_that_rise(points, slope):
    points = list({point[0]: point for point in points}.values())
    curve = TimeCurve(points, slope)
    found = [curve(x / 2) for x in range(2, 130)]
    assert all(b >= a * (1 - 1e-12) > 0 for a, b in pairwise(found))
    if [seconds for _, seconds, _ in sorted(points)] == sorted(seconds for _, seconds, _ in points):
        assert [curve(x) for x, _, _ in points] == pytest.approx([seconds for _, seconds, _ in points])
