"""In float32 every lossless method gives plain decoding's token ids, whatever the layout of weights and the batch."""

from itertools import product

import pytest

from tests.model_pairs import Pair
from tests.ready_clips import read_requests, serve_captions
from tests.test_lossless import BUILT_IN, CLIPS, LOSSLESS
from tests.tiers import full_but, in_turn
from vidspec.engine.layout_times import VARIABLE
from vidspec.models import loading

LAYOUTS = ("plain", "split", "transposed", "packed")
BATCHES = (1, 4, 16)
USUAL = [
    ("embedded-qwen", "plain", 4, "sd-adaptive-tree"),
    ("embedded-qwen", "split", 1, "specvlm-chain"),
    ("embedded-qwen", "transposed", 1, "vanilla-sd"),
    ("embedded-qwen", "packed", 4, "vanilla-sd"),
]
#: A fourth of the profiles with one layout, pair and number of clips in turn; in a sweep all with all.
EVERY = in_turn([*product(BUILT_IN, LAYOUTS, BATCHES, LOSSLESS)], 67)
pytestmark = pytest.mark.usefixtures("forked_drafts", "clips_read_once")


@pytest.fixture(scope="module")
def pairs():
    """Built-in pairs by name and layout of all weights."""
    loaded = {}

    def pair(name, layout):
        if (name, layout) not in loaded:
            folders = (loading.embedded_folder(name, role) for role in ("target", "draft"))
            loaded[name, layout] = Pair(*folders, tokens=16)
        return loaded[name, layout]

    yield pair
    for one in loaded.values():
        one.close()


def captions(captioner, batch):
    """Captions of as many clips at once, each with the clip's name."""
    names = (sorted(CLIPS) * batch)[:batch]
    if batch == 1:
        return [(names[0], captioner.caption(CLIPS[names[0]]))]
    requests = read_requests(captioner, {number: CLIPS[name] for number, name in enumerate(names)})
    return [(names[number], caption) for number, caption in serve_captions(captioner, requests, batch).items()]


@pytest.mark.full
@pytest.mark.sample(full=4)
@pytest.mark.parametrize(("name", "layout", "batch", "profile"), full_but(USUAL, EVERY))
def test_every_layout_gives_plain_decodings_tokens(pairs, monkeypatch, name, layout, batch, profile):
    monkeypatch.setenv(VARIABLE, layout)
    pair = pairs(name, layout)
    assert {matrix.layout for block in pair.target.decoder.blocks for matrix in block.matrices} == {layout}
    found = captions(pair.captioner(profile), batch)
    assert len(found) == batch
    for clip, record in found:
        assert record.token_ids == pair.plain(CLIPS[clip]), (name, layout, profile, batch, clip)
    how = pair.captioner(profile).client.profile
    # In so short texts ngram finds nothing, and the draft of a parallel schedule may come too late.
    if how.draft.kind != "ngram" and not how.concurrent:
        assert sum(record.counters["accepted"] for _, record in found) > 0  # it drafted
