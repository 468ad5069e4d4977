"""Frames at given times."""

import numpy as np
import pytest

from vidspec import video
from vidspec.embedded.samples import shipped
from vidspec.errors import UsageError


def test_frames_of_another_clip_are_read_again():
    clip = video.read(shipped()[0], frames=9)
    some = clip.timestamps[::2]
    again = video.read_at(shipped()[0], some.tolist())
    assert np.array_equal(again.frames, clip.frames[::2]) and np.array_equal(again.timestamps, some)


def test_times_between_frames_show_the_one_before():
    clip = video.read(shipped()[0], frames=10_000)
    first, second, last = clip.timestamps[[0, 1, -1]]
    times = [first, (first + second) / 2, second, second, last + 100]
    assert video.read_at(shipped()[0], times).timestamps.tolist() == [first, first, second, second, last]
    rounded = [round(float(time), 6) for time in clip.timestamps]
    assert np.array_equal(video.read_at(shipped()[0], rounded).timestamps, clip.timestamps)


def test_times_are_read_small():
    clip = video.read_at(shipped()[0], [0.0, 1.0], max_pixels=500)
    assert clip.frames.shape[1] * clip.frames.shape[2] <= 500 and len(clip) == 2


@pytest.mark.parametrize("times", [[], [1.0, 0.5], [-1.0, 0.0], [0.0, float("nan")]])
def test_times_that_make_no_sense(times):
    with pytest.raises(UsageError, match="times"):
        video.read_at(shipped()[0], times)
