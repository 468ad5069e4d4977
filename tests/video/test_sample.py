"""The choice of frames: its rule, its limits, and properties that hold for any timestamps."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vidspec.video import sample

TIMES = np.arange(100) / 25.0

increasing = st.lists(st.integers(1, 400), min_size=1, max_size=60).map(
    lambda gaps: np.concatenate([[0], np.cumsum(gaps[:-1])]) / 100.0
)


def test_uniform_is_the_rounded_linspace_of_qwen():
    assert sample.uniform(100, 4).tolist() == [0, 33, 66, 99]
    assert sample.uniform(6, 3).tolist() == [0, 2, 5]  # 2.5 rounds to even
    assert sample.uniform(10, 1).tolist() == [0]


def test_uniform_takes_each_frame_once_when_there_are_too_few():
    assert sample.uniform(3, 32).tolist() == [0, 1, 2]
    assert sample.uniform(1, 32).tolist() == [0]


@pytest.mark.parametrize(("count", "frames"), [(0, 1), (1, 0), (-1, 3)])
def test_uniform_refuses_nothing(count, frames):
    with pytest.raises(ValueError):
        sample.uniform(count, frames)


@given(st.integers(1, 5000), st.integers(1, 600))
def test_uniform_is_increasing_within_bounds_and_even(count, frames):
    chosen = sample.uniform(count, frames)
    assert len(chosen) == min(count, frames)
    assert chosen[0] == 0 and chosen[-1] <= count - 1
    if len(chosen) > 1:
        gaps = np.diff(chosen)
        assert chosen[-1] == count - 1
        assert gaps.min() >= 1 and gaps.max() - gaps.min() <= 2


def test_within_includes_both_ends():
    assert sample.within(TIMES, 4.0, None, None) == (0, 100)
    assert sample.within(TIMES, 4.0, 1.0, 2.0) == (25, 51)
    assert sample.within(TIMES, 4.0, 3.9, None) == (98, 100)


def test_within_a_long_frame_is_the_frame_on_screen():
    times = np.array([0.0, 10.0, 20.0])
    assert sample.within(times, 30.0, 12.0, 18.0) == (1, 2)
    assert sample.within(times, 30.0, 29.0, 40.0) == (2, 3)


def test_within_is_empty_behind_the_end():
    low, high = sample.within(TIMES, 4.0, 4.0, 9.0)
    assert low == high


@settings(deadline=None)
@given(increasing, st.floats(0, 200), st.floats(0.01, 50))
def test_within_gives_frames_of_the_window_or_the_one_on_screen(times, start, length):
    duration = float(times[-1]) + 0.5
    low, high = sample.within(times, duration, start, start + length)
    inside = np.flatnonzero((times >= start) & (times <= start + length))
    if len(inside):
        assert (low, high) == (inside[0], inside[-1] + 1)
    elif start < duration:
        assert high == low + 1 and times[low] <= start
    else:
        assert low == high


def test_ticks_count_up_to_the_end_without_it():
    assert sample.ticks(1, 4.0, None, None) == 4
    assert sample.ticks(2, 4.0, 1.0, 2.0) == 2
    assert sample.ticks(1, 0.5, None, None) == 1
    assert sample.ticks(1, 4.0, 4.0, None) == 0
    assert sample.ticks(10, 1.6, None, None) == 16


def test_shown_at_is_the_last_frame_not_later():
    times = np.array([0.0, 0.04, 0.7, 1.5])
    assert sample.shown_at(times, 2, None, 4).tolist() == [0, 1, 2, 3]
    assert sample.shown_at(times, 10, 0.1, 3).tolist() == [1, 1, 1]


def test_shown_at_forgives_timestamps_rounded_to_milliseconds():
    times = np.round(np.arange(300) / 30, 3)
    assert sample.shown_at(times, 30, None, 300, slack=0.0005).tolist() == list(range(300))


@settings(deadline=None)
@given(increasing, st.floats(0.1, 60), st.floats(0, 3))
def test_shown_at_is_sorted_and_on_screen(times, fps, start):
    duration = float(times[-1]) + 0.5
    count = sample.ticks(fps, duration, start, None)
    chosen = sample.shown_at(times, fps, start, count)
    moments = start + np.arange(count) / fps
    assert (np.diff(chosen) >= 0).all()
    assert (times[chosen] <= moments).all()
    later = np.append(times, np.inf)[chosen + 1]
    assert (later > moments).all()
