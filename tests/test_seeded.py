"""Sampled texts of greedy drafts: by seed, those of plain decoding, at whatever rounds the draft rests.

Rests follow measured times; here they are drawn, so that each order of them can be had again.
"""

import json
import random
from functools import partial

import pytest

from tests.decoding.workers.pairs import CLIP
from tests.drafting.built_in_pairs import BuiltInPair
from tests.model_pairs import PLACE, Pair, pair_checkpoints
from tests.packaged import packaged
from tests.tiers import full_but
from vidspec.decoding import prefill
from vidspec.models import dflash, eagle3, loading

pytestmark = pytest.mark.usefixtures("forked_drafts", "clips_read_once")

#: More tokens than the random numbers that a text takes at a time.
TOKENS = 80
COUNT = {"minItems": 12, "maxItems": 12}
SCHEMA = {
    "type": "object",
    "properties": {"places": {"type": "array", "items": {"type": "integer", "maximum": 99, "minimum": 10}, **COUNT}},
    "required": ["places"],
    "additionalProperties": False,
}
CHANGES = {
    "free": {},
    "penalised": {"generate.no_repeat_ngram": 3, "generate.repetition_penalty": 1.1},
    "schema": {"generate.json_schema": json.dumps(SCHEMA)},
    "both": {"generate.json_schema": json.dumps(SCHEMA), "generate.presence_penalty": 0.3},
}
#: Profiles with a head, and the pair it belongs to.
HEADS = {"sparrow": "embedded", "dflash": "embedded", "dflash-specvlm": "embedded-qwen", "eagle3": "embedded-qwen"}
HEADS |= {"hybrid-sparrow": "embedded", "hybrid-eagle3": "embedded-qwen"}


def drafts_greedily(profile):
    """Return True if the profile's sampled texts are plain decoding's."""
    sampled = profile.model_copy(update={"generate": profile.generate.model_copy(update={"temperature": 1.0})})
    return profile.draft.kind != "none" and sampled.token_for_token


PROFILES = [name for name, one in packaged().items() if drafts_greedily(one) and not one.draft.has_head]


def crossed(profiles):
    return [(name, change, heat) for name in profiles for change in CHANGES for heat in (0.5, 0.9)]


@pytest.fixture
def rests(monkeypatch):
    """Call it with a seed: from then on drafts propose nothing in about every second round."""
    begin = prefill._begin_drafting

    def force(seed):
        drawn = random.Random(seed)

        def begun(sequence, drafter):
            propose = drafter.propose
            drafter.propose = lambda gamma: propose(gamma * drawn.randrange(2))
            return begin(sequence, drafter)

        monkeypatch.setattr(prefill, "_begin_drafting", begun)

    return force


def compare(captioner, rests, profile, change, temperature):
    """Compare texts by two seeds, with rests at different rounds, with plain decoding's."""
    drafted, lengths = 0, []
    for seed in (3, 4):
        settings = {**CHANGES[change], "generate.temperature": temperature, "generate.seed": seed}
        plain = captioner("ar", **settings).caption(CLIP)
        lengths.append(len(plain.token_ids))
        for rest in (1, 2):
            rests(rest)
            caption = captioner(profile, **settings).caption(CLIP)
            assert caption.token_ids == plain.token_ids
            drafted += caption.counters["drafted"]
    assert max(lengths) > 32
    return drafted


@pytest.fixture(scope="module")
def random_pair():
    pair = Pair(*pair_checkpoints("llava_onevision"), TOKENS, **{"video.frames": 4})
    yield pair
    pair.close()


@pytest.mark.sample(full=25)
@pytest.mark.parametrize(
    ("profile", "change", "temperature"),
    full_but([("sd-tree", "penalised", 0.5), ("vanilla-sd-auto", "both", 0.9)], crossed(PROFILES)),
)
def test_texts_are_plain_decodings_wherever_a_draft_rests(random_pair, rests, profile, change, temperature):
    def captioner(name, **settings):
        return random_pair.captioner(name, settings)

    drafted = compare(captioner, rests, profile, change, temperature)
    assert drafted or packaged()[profile].draft.kind in ("suffix", "ngram", "hybrid") or packaged()[profile].concurrent


@pytest.fixture(scope="module")
def built_in():
    pairs = {}

    def pair(name):
        if name not in pairs:
            one, folder = BuiltInPair(name), partial(loading.embedded_folder, name)
            block = dflash.load_block_head(str(folder("block_head")), one.target, PLACE)
            pairs[name] = one, {"dflash": block, "eagle3": eagle3.load_eagle3(str(folder("head")), one.target, PLACE)}
        return pairs[name]

    return pair


@pytest.mark.sample(full=25)
@pytest.mark.parametrize(
    ("profile", "change", "temperature"),
    full_but([("sparrow", "penalised", 0.9), ("eagle3", "penalised", 0.5)], crossed(HEADS)),
)
def test_texts_are_plain_decodings_wherever_a_head_rests(built_in, rests, profile, change, temperature):
    pair, heads = built_in(HEADS[profile])

    def captioner(name, **settings):
        head = heads.get(packaged()[name].draft.named_head)
        return pair.captioner(name, head=head, **{"generate.max_new_tokens": TOKENS, **settings})

    assert compare(captioner, rests, profile, change, temperature) > 0
