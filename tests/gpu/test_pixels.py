"""On an NVIDIA GPU: frames become the pixels that they become on the CPU, but for single levels of a byte."""

from __future__ import annotations

import pytest
import torch

from tests.gpu.places import DEVICE
from tests.models.record_preprocess import CASES, frames
from vidspec.models.preprocess import ImageRules, PixelRules, cut_tiles, normalise, resize_and_crop, resize_to_square

pytestmark = pytest.mark.gpu


def close(there, here, rules, most=0.01):
    assert there.device == DEVICE and there.dtype == torch.uint8
    there, here = normalise(there, rules), normalise(here, rules)
    levels = (there.cpu() - here).abs() * 255 / 2
    assert levels.max() < 2.1 and (levels > 0.1).float().mean() < most


@pytest.mark.parametrize("mode", ["bicubic", "bilinear", "nearest"])
@pytest.mark.parametrize("name", CASES)
def test_resized_and_normalised(name, mode):
    """Means of two bytes are often halves between two levels, which a GPU rounds to the even one."""
    rules, most = PixelRules(96, 128, mode=mode), 0.2 if mode == "bilinear" else 0.01
    close(resize_to_square(frames(name), rules, DEVICE), resize_to_square(frames(name), rules), rules, most)


@pytest.mark.parametrize("square", [False, True])
def test_squares_and_tiles(square):
    rules = ImageRules(PixelRules(84, 84), 96, square)
    shown, resolutions = frames("small_down"), [[84, 168], [168, 84], [168, 168]]
    close(resize_and_crop(shown, rules, DEVICE), resize_and_crop(shown, rules), rules.pixels)
    close(cut_tiles(shown, rules, resolutions, DEVICE), cut_tiles(shown, rules, resolutions), rules.pixels)
