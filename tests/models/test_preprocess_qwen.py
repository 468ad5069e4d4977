from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.models import record_preprocess_qwen
from tests.models.installed_processor import record_now
from tests.models.record_preprocess_qwen import CASES, CONFIGS, STEP, clips, frames
from vidspec.errors import GenerationError
from vidspec.models.base import Pixels
from vidspec.models.families.glm4v import Glm4v
from vidspec.models.families.qwen2_5_vl import Qwen25VL
from vidspec.models.families.qwen3_omni_moe import Qwen3OmniMoe
from vidspec.models.families.qwen3_vl import Qwen3VL
from vidspec.models.families.video_llama_3 import VideoLlama3
from vidspec.models.preprocess import GridRules, normalise, patches, patchify

RECORDED = Path(__file__).parent / "fixtures" / "preprocess_qwen.npz"
TOWERS = {
    "qwen2_5_vl": (Qwen25VL, 14),
    "qwen3_omni_moe": (Qwen3OmniMoe, 16),
    "qwen3_vl": (Qwen3VL, 16),
    "glm4v": (Glm4v, 14),
    "video_llama_3": (VideoLlama3, 14),
}


def rules(config):
    """Return the frame rules as an adapter reads them."""
    family, patch = TOWERS[config.partition("-")[0]]
    vision = SimpleNamespace(patch_size=patch, spatial_merge_size=2, temporal_patch_size=2)
    return family.rules_of(CONFIGS[config], vision)


def compare(name, recorded):
    stored, grid, by = patches(frames(name), rules(CASES[name][0]))
    values = normalise(stored, by)
    assert values.dtype == torch.float32 and len(values) == np.prod(grid)
    assert list(grid) == recorded[f"{name}_grid"].tolist()
    np.testing.assert_allclose(values.numpy().reshape(-1)[::STEP], recorded[name], rtol=0, atol=1e-5)
    means = values.numpy().mean(1, dtype=np.float64)[::3]
    np.testing.assert_allclose(means, recorded[f"{name}_means"], rtol=0, atol=1e-5)
    if CASES[name][0].startswith("video_llama_3"):
        model = object.__new__(VideoLlama3)
        model.merge = 2
        kept = model.changed(Pixels(stored, grid, (), rules=by)).flatten()
        assert kept.tolist() == recorded[f"{name}_kept"].tolist()


@pytest.mark.parametrize("name", CASES)
def test_equals_the_recorded_processor(name):
    compare(name, np.load(RECORDED))


@pytest.mark.parametrize("config", CONFIGS)
def test_sizes_equal_the_recorded_processor(config):
    made = rules(config)
    ours = [made.size(*clip) for clip in clips(config)]
    assert ours == [tuple(size) for size in np.load(RECORDED)[f"{config}_sizes"].tolist()]


def test_equals_the_installed_processor(tmp_path):
    """On demand: where there is a torchvision, the library's processors run, in a process of their own."""
    now, recorded = record_now(record_preprocess_qwen.__file__, tmp_path / "now.npz"), np.load(RECORDED)
    assert sorted(now) == sorted(recorded)
    for name in CASES:
        compare(name, now)
    for config in CONFIGS:
        assert np.array_equal(now[f"{config}_sizes"], recorded[f"{config}_sizes"])


def test_fixture_is_small():
    assert RECORDED.stat().st_size < 100_000


sides = st.integers(4, 3000)


@given(st.sampled_from(sorted(CONFIGS)), st.integers(1, 800), sides, sides)
def test_size_is_within_the_budget(config, count, height, width):
    made = rules(config)
    if max(height, width) > 20 * min(height, width):
        return  # of very narrow frames one side cannot shrink any more
    factor = made.patch * made.merge
    rows, columns = made.size(count, height, width)
    assert rows % factor == columns % factor == 0 and rows > 0 and columns > 0
    shown = max(count, 2) if made.whole_clip else 1
    if made.capped and not made.whole_clip:
        return  # the share of a frame may be below what a frame needs at least
    if min(rows, columns) > factor:
        # Qwen3-VL rounds the number of frames to an even one before it looks at the budget, halves to multiples of 4.
        spare = (shown + 1) / (shown - 1) if made.whole_clip else 1
        ceiling = made.max_pixels if not made.capped else max(made.max_pixels, 1.05 * made.min_pixels * shown)
        assert rows * columns * shown <= ceiling * spare


@pytest.mark.parametrize("config", ["qwen2_5_vl", "qwen3_vl", "glm4v"])
def test_frames_like_a_line_are_refused(config):
    with pytest.raises(GenerationError, match="9000 x 40"):
        rules(config).size(4, 40, 9000)


def test_patches_are_in_the_order_of_visual_tokens():
    made = replace(rules("qwen2_5_vl"), patch=1)
    shown = torch.arange(2 * 3 * 4 * 6).reshape(2, 3, 4, 6)
    values, grid = patchify(shown, made)
    assert grid == (1, 4, 6) and values.shape == (24, 6)
    # the first token's four patches, then those of the token on its right; each is channel by channel, frame by frame
    corners = [(0, 0), (0, 1), (1, 0), (1, 1), (0, 2), (0, 3), (1, 2), (1, 3)]
    for patch, (row, column) in enumerate(corners):
        assert values[patch].tolist() == shown[:, :, row, column].T.flatten().tolist()


def test_the_last_frame_of_an_odd_clip_is_repeated():
    made = rules("qwen2_5_vl-small")
    shown = torch.randn(5, 3, 16, 24)
    odd, grid = patchify(shown, made)
    assert grid == (3, 4, 6)
    assert torch.equal(odd, patchify(torch.cat([shown, shown[-1:]]), made)[0])


def test_one_frame_is_shown_twice():
    """The library's Qwen3-VL processor refuses it."""
    shown = np.random.RandomState(0).randint(0, 256, (1, 64, 96, 3), dtype=np.uint8)
    once, grid, _ = patches(shown, rules("qwen3_vl"))
    assert grid == (1, 4, 6)
    assert torch.equal(once, patches(shown.repeat(2, 0), rules("qwen3_vl"))[0])


def test_missing_keys_are_the_towers():
    made = rules("qwen2_5_vl-plain")
    assert (made.patch, made.merge, made.steps) == (14, 2, 2)
    assert (made.min_pixels, made.max_pixels) == (128 * 28**2, 768 * 28**2) and not made.capped


def test_older_names_of_the_budget():
    config = {"min_pixels": 100, "max_pixels": 900, "size": {"shortest_edge": 1, "longest_edge": 2}}
    old, new = (GridRules.from_config(config, rules(f"{family}-plain")) for family in ("qwen2_5_vl", "qwen3_vl"))
    assert (old.min_pixels, old.max_pixels) == (100, 900) and (new.min_pixels, new.max_pixels) == (1, 2)
