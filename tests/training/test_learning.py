"""Heads that learn the captions of small random targets by heart, in the loop that drafts with them."""

import pytest

from tests.model_pairs import ADAPTERS
from tests.training.learned import captioned, captioner, training
from vidspec.models import dflash
from vidspec.models.placement import resolve_placement

PLACE = resolve_placement("cpu", "float32")
#: Families, and steps in which a head learns four of their captions.
FAMILIES = {
    "llava_onevision": 60,
    "qwen2_5_vl": 400,
    "qwen3_vl": 400,
    "qwen3_5": 150,
    "gemma4": 600,
    "glm4v": 600,
    "molmo2": 400,
    "internvl": 400,
    "smolvlm": 400,
}


@pytest.fixture(scope="module")
def targets():
    made = {}

    def target(family):
        if family not in made:
            made[family] = ADAPTERS[family]()
        return made[family]

    return target


@pytest.mark.parametrize(
    "family", [one if one == "llava_onevision" else pytest.param(one, marks=pytest.mark.full) for one in FAMILIES]
)
def test_captions_learned_by_heart_are_drafted_and_stay_equal(targets, tmp_path, family):
    target = targets(family)
    clips = captioned(target)
    run = training(target, clips, tmp_path, FAMILIES[family])
    events = [*run.run()]
    assert events[-1].step == FAMILIES[family] and events[-1].tau == run.state.taus[-1][1]
    head = dflash.load_block_head(str(run.head_folder), target, PLACE)
    assert head.notes == () and head.markov and head.confident and not head.whole
    drafting = captioner(target, "sparrow", head, **{"draft.gamma": 16})
    lengths = []
    for one in clips:
        caption = drafting.caption(one.request.path, clip=one.request.clip)
        assert tuple(caption.token_ids) == one.tokens
        lengths += caption.counters["accepted_lengths"]
    assert 1 + sum(lengths) / len(lengths) > 10
