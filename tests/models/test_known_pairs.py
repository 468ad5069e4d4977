from types import SimpleNamespace

import numpy as np
import pytest
from transformers import LlavaNextProcessor

from vidspec.models.base import families
from vidspec.models.identity import is_related
from vidspec.models.known_pairs import PUBLISHED_RULES, MemoryWorkload, known_pairs

MODELS = {model.name: model for pair in known_pairs() for model in (pair.target, pair.draft) if model is not None}


def sizes(count, low=60, high=2200, seed=0):
    rng = np.random.RandomState(seed)
    return [*rng.randint(low, high, (count, 2)).tolist(), [720, 1280], [1080, 1920], [1280, 720], [336, 336]]


#: Sizes of the published processors' configs, per family.
QWEN3 = {"size": {"shortest_edge": 4096, "longest_edge": 25165824}, "patch_size": 16}
GLM = {"size": {"shortest_edge": 12544, "longest_edge": 47040000}, "patch_size": 14}
QWEN = {
    "qwen2_vl": {"min_pixels": 3136, "max_pixels": 12845056, "patch_size": 14},
    "qwen2_5_vl": {"min_pixels": 3136, "max_pixels": 12845056, "patch_size": 14},
    "video_salmonn2_plus": {"min_pixels": 3136, "max_pixels": 12845056, "patch_size": 14},
    "qwen2_5_omni": {"min_pixels": 128 * 28**2, "max_pixels": 768 * 28**2, "patch_size": 14},
    "qwen3_omni_moe": {"min_pixels": 3136, "max_pixels": 12845056, "patch_size": 16},
    **{family: QWEN3 for family in ("qwen3_vl", "qwen3_vl_moe", "qwen3_5", "qwen3_5_moe")},
    "video_llama_3": {"min_pixels": 12544, "max_pixels": 12845056},
    **{family: GLM for family in ("glm4v", "glm46v", "glm4v_moe")},
}


@pytest.mark.parametrize("family", QWEN)
def test_qwen_counts_what_the_adapters_make(family):
    vision = SimpleNamespace(patch_size=QWEN[family].get("patch_size", 14), spatial_merge_size=2, temporal_patch_size=2)
    config = SimpleNamespace(vision_config=vision)
    rule, published = families.get(family).frame_rule_of(config, QWEN[family]), PUBLISHED_RULES[family]
    for frames in (1, 2, 3, 7, 32, 129, 767, 768):
        for height, width in sizes(20):
            assert published.visual_tokens(frames, height, width) == rule.visual_tokens(frames, height, width)


@pytest.mark.parametrize("family", ["llava", "llava_next", "llava_onevision", "internvl", "smolvlm"])
def test_squares_are_those_of_the_published_towers(family):
    side, patch = {"llava": (336, 14), "llava_next": (336, 14), "internvl": ([448], [14])}.get(family, (384, 14))
    grid = [(336, 672), (672, 336), (672, 672), (1008, 336), (336, 1008)]
    vision = SimpleNamespace(image_size=side, patch_size=patch)
    config = SimpleNamespace(vision_config=vision, image_grid_pinpoints=grid, downsample_ratio=0.5, scale_factor=3)
    rule, published = families.get(family).frame_rule_of(config, {}), PUBLISHED_RULES[family]
    for height, width in sizes(20):
        assert published.visual_tokens(5, height, width) == rule.visual_tokens(5, height, width)
        assert published.tower_rows(5, height, width) == rule.tower_rows(5, height, width)


def test_llava_next_counts_what_the_library_says():
    rule = PUBLISHED_RULES["llava_next"]
    library = SimpleNamespace(
        image_processor=SimpleNamespace(image_grid_pinpoints=[list(size) for size in rule.resolutions]),
        patch_size=14,
        num_additional_image_tokens=1,
    )
    library._get_unpadded_features = lambda *args: LlavaNextProcessor._get_unpadded_features(library, *args)
    for height, width in sizes(200):
        each = LlavaNextProcessor._get_number_of_features(library, height, width, 336, 336) - 1
        assert rule.visual_tokens(5, height, width) == 5 * each


def test_frames_of_the_other_families_are_all_alike():
    for size in ((9, 9), (720, 1280)):
        load = MemoryWorkload(3, size)
        assert [load.visual_tokens(family) for family in ("llava", "internvl", "smolvlm")] == [3 * 576, 3 * 256, 3 * 81]
        assert load.visual_tokens("llava_onevision") == 3 * 196 + 1
    assert load.visual_tokens("gpt2") is None
    assert MemoryWorkload(3, (9000, 9)).visual_tokens("qwen2_5_vl") is None, "its processor takes no such frames"


def test_pairs_make_sense():
    assert len(known_pairs()) == len({(pair.target, pair.draft) for pair in known_pairs()}) >= 15
    assert {model.family for model in MODELS.values()} <= set(families.names())
    for pair in known_pairs():
        if pair.draft is None:
            assert "self" in pair.note
            continue
        target, draft = pair.target, pair.draft
        assert is_related(target.family, draft.family)
        rules = [PUBLISHED_RULES[model.family] for model in (target, draft)]
        alike = len({rule.visual_tokens(8, 720, 1280) for rule in rules}) == 1
        assert alike or "prune.method: none" in pair.note
        assert target.kv_per_token > 0 and draft.kv_per_token > 0
        if target.parameters and draft.parameters:
            assert draft.parameters < target.parameters


@pytest.mark.parametrize("name, billions", [("7b-ov", 8.03), ("72b-ov", 73.2), ("1.5-13b", 13.4), ("L-32B", 33.4)])
def test_sizes_are_those_the_hub_shows(name, billions):
    found = [model for model in MODELS.values() if name in model.name]
    assert found and all(abs(model.parameters / 1e9 - billions) < 0.06 for model in found)
