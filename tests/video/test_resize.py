"""Sizes that fit, and pictures that stay themselves when scaled."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vidspec import video
from vidspec.embedded.samples import shipped
from vidspec.video.resize import fitted, resized

from . import clips


@given(st.integers(1, 8000), st.integers(1, 8000), st.integers(1, 10**7))
def test_fitted_never_exceeds_never_enlarges_and_keeps_the_aspect(width, height, most):
    new_width, new_height = fitted(width, height, most)
    assert 1 <= new_width <= width and 1 <= new_height <= height
    assert new_width * new_height <= max(most, 1)
    if min(new_width, new_height) > 1:
        assert abs(new_width - width * new_height / height) <= 1 + width / height


def test_fitted_leaves_what_fits():
    assert fitted(640, 480, None) == (640, 480)
    assert fitted(640, 480, 640 * 480) == (640, 480)


def test_resized_keeps_colour_and_content():
    for size in [(48, 32), (33, 21), (31, 47)]:
        small = resized(clips.draw(0b10110101, 192, 128), *size)
        assert small.shape == (size[1], size[0], 3) and small.dtype == np.uint8
        assert clips.number_of(small) == 0b10110101


def test_resized_does_not_alias():
    lines = np.zeros((64, 64, 3), np.uint8)
    lines[:, ::2] = 255
    small = resized(lines, 16, 64)
    assert abs(int(small.mean()) - 127) < 4 and small[:, 2:-2].std() < 8


def test_resized_keeps_fine_colour():
    """Red and blue lines two pixels wide stay apart: colour is not halved on the way."""
    lines = np.zeros((64, 64, 3), np.uint8)
    lines[:, 0::4, 0] = lines[:, 1::4, 0] = lines[:, 2::4, 2] = lines[:, 3::4, 2] = 255
    small = resized(lines, 64, 32)
    assert np.abs(small[:, 4:-4].astype(int) - lines[:32, 4:-4]).max() <= 10


def _apart(path, share):
    """Return the difference of three frames scaled while decoded from full ones scaled then, (3, H, W, 3)."""
    full = video.read(path, frames=3).frames
    height, width = full.shape[1:3]
    small = video.read(path, frames=3, max_pixels=height * width // share).frames
    expected = [resized(frame, small.shape[2], small.shape[1]) for frame in full]
    return np.abs(small.astype(int) - np.stack(expected))


@pytest.mark.sample(quick=1)
@pytest.mark.parametrize("share", [2, 4, 9])
def test_pictures_are_scaled_as_they_are_coded_within_a_bound(share):
    """1.5 of 255 in the mean of the sample clips, of which 1 is that swscale rounds down what it does not scale."""
    for path in shipped():
        apart = _apart(path, share)
        assert apart.mean() < 1.5 and np.percentile(apart, 99) <= 5


FORMATS = {
    "full.mov": {"codec": "mjpeg", "pixel_format": "yuvj420p"},
    "full.mp4": {"options": {"x264-params": "fullrange=on"}},
    "matrix.mp4": {"options": {"x264-params": "colormatrix=bt709"}},
    "ten.mp4": {"pixel_format": "yuv420p10le"},
    "fine.mp4": {"pixel_format": "yuv444p"},
    "palette.gif": {"codec": "gif", "pixel_format": "rgb8"},
    "turned.mp4": {"rotation": 90},
}


@pytest.mark.sample(quick=2)
@pytest.mark.parametrize("name", FORMATS)
def test_ranges_and_matrices_stay_what_they_are(tmp_path, name):
    path = clips.make(tmp_path / name, pts=3, size=(384, 256), **FORMATS[name])
    assert max(_apart(path, share).mean() for share in (2, 4, 9)) < 1.1
