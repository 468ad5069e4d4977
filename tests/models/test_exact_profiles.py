"""Families with the blocks and prompts of another: a handful of profiles on a pair gives plain decoding's text."""

import pytest

from tests.model_pairs import PLACE, pair_checkpoints
from tests.models.parity import check_profiles
from vidspec.embedded.samples import shipped
from vidspec.models import loading

#: A chain, a target that drafts for itself, two contexts; ``check_profiles`` adds a tree, of four clips at once.
PROFILES = ("uv-sequential", "self-int8", "tabed-mtcp")
FAMILIES = ("qwen2_vl", "glm4v", "glm4v_moe", "video_llama_3", "gemma4_unified", "molmo2")


@pytest.mark.full
@pytest.mark.usefixtures("clips_read_once")
@pytest.mark.parametrize("family", FAMILIES)
def test_profiles_are_exact(family):
    target, draft = (loading.load_model(str(folder), PLACE) for folder in pair_checkpoints(family))
    settings = {"generate.max_new_tokens": 12, "video.frames": 4}
    check_profiles(target, draft, PROFILES, [str(path) for path in shipped()], settings)
