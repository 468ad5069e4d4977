"""Adaptive trees beside the built-in models: texts of plain decoding, alone and together."""

import pytest

from tests.drafting.test_lookup_profiles import DRAWN
from tests.tiers import full_but, in_turn
from vidspec.config import profiles
from vidspec.draft_length import trees
from vidspec.errors import ProfileError

WAYS = {
    "as it comes": {},
    "of a given depth": {"draft.gamma": 3},
    "with a pruned draft": {"prune.method": "uniform", "prune.alpha": 0.8},
    "with the target": {"draft.kind": "self", "prune.method": "attention", "prune.alpha": 0.8},
    "with entries of the target's cache": {"draft.kind": "sparse_kv"},
}


@pytest.fixture
def shapes(monkeypatch):
    """Trees always where there is a choice, so that they are grown; the number of levels of each window that was one.

    With the built-in models on a processor a chain may be faster.
    """
    found = []

    def budget(self, window, gamma):
        found.append(wide := self.affordable(gamma))
        return wide

    monkeypatch.setattr(trees.TreeController, "budget", budget)
    return found


@pytest.mark.full
@pytest.mark.sample(quick=1, full=2)
@pytest.mark.parametrize(
    ("name", "way"),
    full_but(
        [("embedded", "with entries of the target's cache"), ("embedded-qwen", "as it comes")],
        [*(("embedded", way) for way in in_turn(WAYS, 2)), ("embedded-qwen", "as it comes")],
    ),
)
def test_texts_are_those_of_plain_decoding(pairs, shapes, name, way):
    pair = pairs(name)
    for batch in (1, 4):
        captioner = pair.captioner("sd-adaptive-tree", **WAYS[way])
        texts, records = pair.texts(captioner, batch)
        assert texts == pair.alone()
        assert sum(record.counters["accepted"] for record in records) > 0
        assert sum(record.counters["draft_forwards"] for record in records) > 0
    assert any(one.width > 1 for one in shapes)


@pytest.mark.full
@pytest.mark.parametrize("batch", full_but([4], [1, 4]))
def test_drawn_texts_are_those_of_plain_decoding(pairs, shapes, batch):
    pair = pairs("embedded")
    captioner = pair.captioner("sd-adaptive-tree", **DRAWN)
    assert captioner.client.profile.token_for_token
    assert pair.texts(captioner, batch)[0] == pair.alone(**DRAWN) != pair.alone()
    assert any(one.width > 1 for one in shapes)


@pytest.mark.full
def test_it_chooses_for_itself(pairs):
    pair = pairs("embedded")
    assert pair.texts(pair.captioner("sd-adaptive-tree"), 1)[0] == pair.alone()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"schedule.kind": "parallel"}, "draft.topology: the parallel schedule drafts a chain"),
        ({"draft.kind": "ensemble"}, "draft.topology: an ensemble drafts a chain"),
        ({"draft.kind": "suffix"}, "draft.topology: adaptive trees grow by the probabilities of a model"),
    ],
)
def test_what_makes_no_sense_is_refused(settings, message):
    with pytest.raises(ProfileError) as caught:
        profiles.load("sd-adaptive-tree", settings, env={})
    assert message in caught.value.message and "nearest valid choice" in caught.value.message
