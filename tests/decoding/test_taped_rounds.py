"""Captured rounds on a CPU: texts and accepted lengths are those of rounds that run kernel by kernel."""

import pytest

from tests.engine.tape import tape_passes
from tests.ready_clips import read_requests, serve_captions
from tests.tiers import full_but
from vidspec.captioner import Captioner
from vidspec.embedded.samples import shipped

USUAL = ("embedded", "vanilla-sd", {"draft.gamma": 3})
CASES = [
    USUAL,
    ("embedded", "sd-tree", {}),
    ("embedded", "self-int8", {"draft.gamma": 3}),
    ("embedded", "ngram", {}),
    ("embedded", "vanilla-sd", {"draft.gamma": 3, "generate.temperature": 0.8, "generate.top_p": 0.9}),
    ("embedded", "vanilla-sd", {"draft.gamma": 3, "generate.repetition_penalty": 1.2}),
    ("embedded-qwen", "vanilla-sd", {"draft.gamma": 3}),
    ("embedded-qwen", "eagle3", {}),
]


@pytest.mark.full
@pytest.mark.sample(full=2)
@pytest.mark.parametrize(("pair", "profile", "more"), full_but([USUAL], CASES))
def test_captured_rounds_give_the_same_texts(pair, profile, more):
    settings = {"models.pair": pair, "models.device": "cpu", "video.frames": 4, "generate.max_new_tokens": 16, **more}
    with Captioner.from_profile(profile, overrides=settings) as captioner:
        requests = read_requests(captioner, shipped()[:3])
        expected = serve_captions(captioner, requests, 3)
        captioner.client.setup.forget()
        taped = tape_passes(captioner)
        found = serve_captions(captioner, requests, 3)
        captioner.client.setup.forget()
        alone = serve_captions(captioner, requests[:1], 1)
    assert {key: one.token_ids for key, one in found.items()} == {key: one.token_ids for key, one in expected.items()}
    assert all(alone[key].token_ids == expected[key].token_ids for key in alone)
    assert all(passes.captured and passes.replays > 5 for passes in taped)
    if profile == "ngram":  # rests follow measured times
        return
    lengths = [one.counters["accepted_lengths"] for one in found.values()]
    assert lengths == [expected[key].counters["accepted_lengths"] for key in found]
