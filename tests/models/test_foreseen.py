"""The length of a prompt told before a frame is decoded is its length; where frames become pixels."""

import numpy as np
import pytest
import torch

from tests.model_pairs import ADAPTERS
from vidspec.models import preprocess
from vidspec.video import Clip

FAMILIES = (
    "llava_onevision",
    "llava",
    "llava_next",
    "qwen2_5_vl",
    "qwen2_5_omni",
    "qwen3_vl",
    "qwen3_omni_moe",
    "video_salmonn2_plus",
)


@pytest.mark.sample(quick=1)
@pytest.mark.parametrize("family", FAMILIES)
def test_tokens_are_foreseen(family, monkeypatch):
    model, encoded = ADAPTERS[family](), []
    chunks = model.encode_chunks
    monkeypatch.setattr(
        model, "encode_chunks", lambda pixels, rows, *of: encoded.append(rows) or chunks(pixels, rows, *of)
    )
    for frames, height, width in ((1, 60, 90), (3, 90, 60), (4, 41, 43)):
        shown = np.zeros((frames, height, width, 3), np.uint8)
        pixels = model.preprocess(Clip(shown, np.arange(float(frames)), None))
        seen = model.encode(pixels)
        assert model.visual_tokens(frames, height, width) == len(seen)
        assert (pixels.grid[0], encoded[-1]) == model.frame_rule.tower_rows(frames, height, width)
        prefix = model.prefix(seen, "What is seen?", "Be short." if family != "llava" else None)
        text = model.template.text_token_count("What is seen?", "Be short." if family != "llava" else None)
        between = prefix.length - len(seen) - text
        assert 0 <= between <= 40 * frames and (family == "qwen3_vl" or frames > 1 or between <= 3)


@pytest.mark.sample(quick=2)
@pytest.mark.parametrize("family", FAMILIES)
def test_frames_become_pixels_on_the_models_device(family, monkeypatch):
    model, places = ADAPTERS[family](), []
    shown = Clip(np.random.default_rng(0).integers(0, 256, (3, 60, 90, 3), np.uint8), np.arange(3.0), None)
    expected = model.preprocess(shown).values

    def channels_first(frames, device):
        places.append(device)
        return original(frames)

    original = preprocess.channels_first
    monkeypatch.setattr(preprocess, "channels_first", channels_first)
    monkeypatch.setattr(type(model), "device", torch.device("cuda:1"))
    assert torch.equal(model.preprocess(shown).values, expected) and places == [torch.device("cuda:1")]
