"""LLaVA-1.5 drafts for LLaVA-NeXT (TABED): they see a frame as other numbers of visual tokens."""

import pytest

from tests.checkpoints import checkpoint
from vidspec.captioner import Captioner
from vidspec.config import profiles
from vidspec.embedded.samples import shipped
from vidspec.errors import ModelError
from vidspec.models import loading
from vidspec.models.placement import resolve_placement

FEW = {"generate.max_new_tokens": 24, "video.frames": 3}


@pytest.fixture(scope="module")
def pair():
    folders = checkpoint("llava_next"), checkpoint("llava", padding=62)
    return [loading.load_model(str(folder), resolve_placement("cpu", "float32")) for folder in folders]


def caption(profile, target, draft):
    return Captioner(profiles.load(profile, FEW, env={}), target, draft).caption(shipped()[0])


@pytest.mark.sample(quick=1)
@pytest.mark.parametrize("profile", ["vanilla-sd", "sd-tree", "onsd"])
def test_the_same_words_as_plain_decoding(pair, profile):
    target, draft = pair
    plain = caption("ar", target, None).token_ids
    assert caption(profile, target, draft).token_ids == plain and len(set(plain)) > 3


def test_what_is_pruned_for_the_one_means_nothing_to_the_other(pair):
    with pytest.raises(ModelError, match=r"\d+ and 27 visual tokens") as caught:
        caption("sd-rand", *pair)
    assert "prune.method: none" in caught.value.hint
