"""Profiles over hybrids and mixtures of experts: exact where they work, refused with the reason where not."""

import numpy as np
import pytest

from tests.checkpoints import checkpoint
from tests.checkpoints.qwen import HYBRIDS, STOCK, QwenKind
from tests.ready_clips import read_requests, serve_captions
from tests.tiers import full_but, in_turn
from vidspec import video
from vidspec.captioner import Captioner
from vidspec.config import profiles
from vidspec.decoding.admission import SHARE, has_room, memory_claims
from vidspec.embedded.samples import shipped
from vidspec.errors import ProfileError
from vidspec.models import loading
from vidspec.models.placement import resolve_placement
from vidspec.models.request import CaptionRequest

CLIPS = {path.stem: str(path) for path in shipped()}
TOKENS = 20


@pytest.fixture(scope="module", params=full_but(["qwen3_5"], in_turn(sorted(STOCK), 2)))
def pair(request):
    kinds = QwenKind(request.param, tied=False), QwenKind(request.param, tied=False, padding=0, noise=0.03)
    target, draft = (loading.load_model(str(checkpoint(kind)), resolve_placement("cpu", "float32")) for kind in kinds)
    return target, draft


def captioner(pair, name, **overrides):
    settings = {"generate.max_new_tokens": TOKENS, "video.frames": 8, **overrides}
    profile = profiles.load(name, settings, env={})
    return Captioner(profile, pair[0], pair[1] if profile.draft.has_model else None)


#: Chains of every kind of drafter and of a pruner for each kind of signal.
CHAINS = ("vanilla-sd", "specvlm-chain", "sd-frame-chain", "uv-sequential", "hippo-sequential", "onsd", "tabed-mt-star")


@pytest.mark.full
def test_chains(pair):
    plain = captioner(pair, "ar")
    texts = {name: plain.caption(clip).token_ids for name, clip in CLIPS.items()}
    for number, name in enumerate(CHAINS):
        clip = sorted(CLIPS)[number % len(CLIPS)]
        record = captioner(pair, name).caption(CLIPS[clip])
        assert record.token_ids == texts[clip], name


@pytest.mark.sample(full=3)
@pytest.mark.full
@pytest.mark.parametrize("name", full_but(["specvlm-chain"], ["specvlm-chain", "vanilla-sd-auto"]))
def test_four_clips_at_once(pair, name):
    plain, fast = captioner(pair, "ar"), captioner(pair, name)
    captions = serve_captions(fast, read_requests(fast, CLIPS.values()), batch=4)
    texts = {path: caption.token_ids for path, caption in captions.items()}
    assert texts == {str(path): plain.caption(path).token_ids for path in CLIPS.values()}


@pytest.mark.sample(full=3)
@pytest.mark.full
@pytest.mark.parametrize("gamma", full_but([3], [1, 9]))
def test_windows(pair, gamma):
    plain = captioner(pair, "ar")
    fast = captioner(pair, "vanilla-sd", **{"draft.gamma": gamma})
    lengths = set()
    for clip in CLIPS.values():
        record = fast.caption(clip)
        assert record.token_ids == plain.caption(clip).token_ids
        lengths |= set(record.counters["accepted_lengths"])
        assert record.counters["state_bytes"] == sum(one.decoder.state_bytes for one in pair)
    assert {0, 1} <= lengths


def test_admission_counts_states(pair, monkeypatch):
    """The memory of a clip grows with its tokens, and for hybrids by the states of both models."""
    plain, drafted = captioner(pair, "ar"), captioner(pair, "vanilla-sd")
    request = CaptionRequest("", video.Clip.of(np.zeros((8, 40, 60, 3), np.uint8), range(8)))
    decoder, draft = pair[0].decoder, pair[1].decoder
    tokens = pair[0].visual_tokens(8, 40, 60) + pair[0].template.text_token_count(plain.client.profile.generate.prompt)
    (claim,) = memory_claims(plain.client.setup, request)
    assert claim.entries == tokens + plain.client.setup.room and claim.tower > claim.prompt > 0
    both = memory_claims(drafted.client.setup, request)
    assert [one.model.decoder for one in both] == [decoder, draft]
    assert {one.entries for one in both} == {tokens + drafted.client.setup.room}
    for one, states in ((claim, decoder.state_bytes), (both[1], draft.state_bytes)):
        taken = one.prompt + one.tower + one.model.decoder.slab.growth_bytes(one.entries) + states
        for free, enough in ((taken, True), (taken - 1, False)):
            monkeypatch.setattr("vidspec.decoding.admission.free_memory", lambda device, free=free: free / SHARE)
            assert has_room([one]) is enough
    assert (decoder.state_bytes > 0) == (pair[0].family in HYBRIDS)


REFUSED = [
    ("sd-tree", {}, "draft.topology: tree.*have one past"),
    ("specvlm", {}, "draft.topology: tree"),
    ("self-sd", {}, "cannot be chosen from"),
    ("self-int8", {}, "nearest valid choice.*draft.prefill: again"),
    ("fastv", {}, "cannot be pruned"),
    ("vanilla-sd", {"draft.gamma": 33}, "at most 32"),
    ("hippo", {}, "schedule.startup: window"),
    ("hippo", {"schedule.startup": "window"}, "prune.when: wait"),
]


@pytest.mark.parametrize(("name", "overrides", "message"), REFUSED)
def test_what_states_cannot_do_is_refused(pair, name, overrides, message):
    if pair[0].family in HYBRIDS:
        with pytest.raises(ProfileError, match=message):
            captioner(pair, name, **overrides)
    elif name != "fastv":  # too few blocks for it
        captioner(pair, name, **overrides).close()
