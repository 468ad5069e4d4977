"""Pixels wait and travel as bytes; normalised, they are to the bit what normalising whole frames first gives."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from tests.model_pairs import ADAPTERS
from vidspec.events.events import SourceFacts
from vidspec.models.families.minicpmv4_6 import MiniCPMV46
from vidspec.models.families.qwen2_5_vl import Qwen25VL
from vidspec.models.preprocess import patchify
from vidspec.video import Clip


def clip(frames=3, height=60, width=90):
    shown = np.random.default_rng(0).integers(0, 256, (frames, height, width, 3), np.uint8)
    facts = SourceFacts("", 4.0, width, height, "none", "none", 1.0, False, 0, frames, "none")
    return Clip(shown, np.arange(float(frames)), facts)


@pytest.mark.sample(quick=7)
@pytest.mark.parametrize("family", ADAPTERS)
def test_bytes_become_the_pixels_of_frames_that_are_normalised_first(family):
    model = ADAPTERS[family]()
    pixels = model.preprocess(clip())
    assert pixels.stored.dtype == torch.uint8 and pixels.stored.numel() == pixels.values.numel()
    rules = pixels.rules
    levels = torch.arange(256.0).mul_(rules.scale)[:, None]  # of every byte in every channel, as of whole frames
    levels = levels.sub(torch.tensor(rules.mean)).div_(torch.tensor(rules.std))
    channel = torch.arange(len(rules.mean))[:, None, None]
    if isinstance(model, Qwen25VL):
        rows, columns = (side * model.rules.patch for side in pixels.grid[1:])
        channel, _ = patchify(channel.expand(model.rules.steps * pixels.grid[0], 3, rows, columns), model.rules)
    elif isinstance(model, MiniCPMV46):
        channel = channel.flatten().repeat_interleave(model.frame_rule.patch**2)
    expected = levels[pixels.stored.long(), channel if len(rules.mean) > 1 else 0]
    assert torch.equal(pixels.values, expected)
    assert pixels.values.dtype == torch.float32 and pixels.values.std() > 0
    assert torch.equal(pixels.on(torch.device("cpu"), torch.bfloat16), expected.bfloat16())


@pytest.mark.sample(quick=7)
@pytest.mark.parametrize("family", ADAPTERS)
def test_a_tower_is_given_the_same_whether_bytes_or_floats_wait(family):
    model = ADAPTERS[family]()
    pixels = model.preprocess(clip())
    floats = replace(pixels, stored=pixels.values, rules=None)
    assert torch.equal(model.encode(pixels).features, model.encode(floats).features)
