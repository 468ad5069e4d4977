"""Sizes that fit, and pictures that stay themselves when scaled."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

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
