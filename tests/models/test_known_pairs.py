from types import SimpleNamespace

import numpy as np
import pytest
from transformers import LlavaNextProcessor

from vidspec.models.families.qwen2_5_omni import MAX_PIXELS, MIN_PIXELS
from vidspec.models.identity import is_related
from vidspec.models.known_pairs import RESOLUTIONS, known_pairs, visual_tokens
from vidspec.models.preprocess_qwen import GridRules
from vidspec.registry import families

MODELS = {model.name: model for pair in known_pairs() for model in (pair.target, pair.draft) if model is not None}


def sizes(count, low=60, high=2200, seed=0):
    rng = np.random.RandomState(seed)
    return [*rng.randint(low, high, (count, 2)).tolist(), [720, 1280], [1080, 1920], [1280, 720], [336, 336]]


def rules(**settings):
    shared = {"merge": 2, "steps": 2, "capped": False, "max_video_tokens": 768, "mean": (0.5,) * 3, "std": (0.5,) * 3}
    return GridRules(**shared, **settings)


QWEN = {
    "qwen2_5_vl": rules(patch=14, min_pixels=3136, max_pixels=12845056, whole_clip=False),
    "qwen2_5_omni": rules(patch=14, min_pixels=MIN_PIXELS, max_pixels=MAX_PIXELS, whole_clip=False),
    "qwen3_vl": rules(patch=16, min_pixels=4096, max_pixels=25165824, whole_clip=True),
}


@pytest.mark.parametrize("family", [*QWEN, "qwen3_vl_moe", "qwen3_5", "qwen3_5_moe"])
def test_qwen_counts_what_the_adapters_make(family):
    given = QWEN.get(family, QWEN["qwen3_vl"])
    side = given.patch * given.merge
    for frames in (1, 2, 3, 7, 32, 129):
        for height, width in sizes(60):
            rows, columns = given.size(frames, height, width)
            expected = -(-frames // 2) * (rows // side) * (columns // side)
            assert visual_tokens(family, frames, (height, width)) == expected, (frames, height, width)


def test_llava_next_counts_what_the_library_says():
    library = SimpleNamespace(
        image_processor=SimpleNamespace(image_grid_pinpoints=[list(size) for size in RESOLUTIONS]),
        patch_size=14,
        num_additional_image_tokens=1,
    )
    library._get_unpadded_features = lambda *args: LlavaNextProcessor._get_unpadded_features(library, *args)
    for height, width in sizes(200):
        each = LlavaNextProcessor._get_number_of_features(library, height, width, 336, 336) - 1
        assert visual_tokens("llava_next", 5, (height, width)) == 5 * each


def test_frames_of_the_other_families_are_all_alike():
    assert [visual_tokens("llava", 3, size) for size in ((9, 9), (720, 1280))] == [3 * 576] * 2
    assert visual_tokens("llava_onevision", 3, (720, 1280)) == 3 * 196 + 1
    assert visual_tokens("internvl", 3, (720, 1280)) == 3 * 256
    assert visual_tokens("smolvlm", 3, (720, 1280)) == 3 * 81
    with pytest.raises(ValueError, match="gpt2"):
        visual_tokens("gpt2", 1, (9, 9))


def test_pairs_make_sense():
    assert len(known_pairs()) == len({(pair.target, pair.draft) for pair in known_pairs()}) >= 15
    assert {model.family for model in MODELS.values()} <= set(families.names())
    for pair in known_pairs():
        if pair.draft is None:
            assert "self" in pair.note
            continue
        target, draft = pair.target, pair.draft
        assert is_related(target.family, draft.family)
        dense = target.family.removesuffix("_moe")
        assert dense == draft.family or "prune.method: none" in pair.note
        assert target.kv_per_token > 0 and draft.kv_per_token > 0
        if target.parameters and draft.parameters:
            assert draft.parameters < target.parameters


@pytest.mark.parametrize("name, billions", [("7b-ov", 8.03), ("72b-ov", 73.2), ("1.5-13b", 13.4), ("L-32B", 33.4)])
def test_sizes_are_those_the_hub_shows(name, billions):
    found = [model for model in MODELS.values() if name in model.name]
    assert found and all(abs(model.parameters / 1e9 - billions) < 0.06 for model in found)
