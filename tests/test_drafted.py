"""Every lossless method drafts in company, and from prompts read in many passes, as it does alone.

Equal texts alone do not show it: a method that has stopped drafting writes plain decoding's text too. So counters are
compared with those of batch 1 and prompts read in one pass.
"""

from functools import cache

import pytest

from research.world.samples import draw
from tests.model_pairs import Pair, pair_checkpoints
from tests.packaged import packaged
from tests.ready_clips import ReadyClips
from tests.test_lossless import LOSSLESS, MECHANISMS
from tests.tiers import full_but, in_turn
from vidspec.decoding import loop
from vidspec.engine import forward
from vidspec.events.events import Finished
from vidspec.models.request import CaptionRequest

#: A draft in a process of its own needs a while before its first proposal, longer on a busy machine.
TOKENS, LONG = 16, 128
#: Rows of a prompt in a pass: several passes for every prompt.
SMALL = 11
pytestmark = pytest.mark.usefixtures("forked_drafts", "clips_read_once")


@pytest.fixture(scope="module")
def pair():
    made = Pair(*pair_checkpoints("llava_onevision"), tokens=TOKENS, **{"video.frames": 4, "models.threads": 1})
    yield made
    made.close()


@pytest.fixture(scope="module")
def qwen():
    made = Pair(*pair_checkpoints("qwen2_5_vl"), tokens=TOKENS, **{"video.frames": 4, "models.threads": 1})
    yield made
    made.close()


@pytest.fixture(scope="module")
def clips(tmp_path_factory):
    return draw(tmp_path_factory.mktemp("clips"), 4, seed=11)


@pytest.fixture
def small(monkeypatch):
    """Prompts are read in many passes, alone and in company."""
    monkeypatch.setattr(forward.Engine, "chunk", SMALL)
    monkeypatch.setattr(loop, "SHARED", SMALL)


def served(captioner, paths, batch, count):
    """The captions of ``count`` clips, ``batch`` at a time."""
    requests = [
        CaptionRequest(
            str(paths[i % len(paths)]),
            captioner.client.inputs.read(paths[i % len(paths)]),
            key=(i, str(paths[i % len(paths)])),
        )
        for i in range(count)
    ]
    found = {}
    for key, event in captioner.client.serve(ReadyClips(requests), batch=batch):
        if isinstance(event, Exception):
            raise event
        if isinstance(event, Finished):
            found[key] = event.caption
    assert len(found) == count
    return found


def exact(profile):
    """Return True if drafts depend on nothing measured and on no earlier caption."""
    draft = profile.draft
    return not (profile.concurrent or draft.gamma == "auto") and (
        draft.topology != "adaptive" and draft.kind not in ("suffix", "hybrid")
    )


def captioner_of(pair, name):
    longer = packaged()[name].concurrent
    return pair.captioner(name, {"generate.max_new_tokens": LONG if longer else TOKENS})


def until_drafted(profile, run):
    """Return the value of ``run``; up to five times if the draft's process came too late for every text."""
    for _ in range(5):
        found = run()
        if not profile.concurrent or any(caption.counters["drafted"] for caption in found.values()):
            break
    return found


def check(pair, name, paths, batch, count, alone):
    captioner = captioner_of(pair, name)
    found = until_drafted(captioner.client.profile, lambda: served(captioner, paths, batch, count))
    for (_, path), caption in found.items():
        assert caption.token_ids == alone[path].token_ids, f"{name}: another text in company"
        if exact(captioner.client.profile):
            counters, before = caption.counters, alone[path].counters
            assert counters["accepted_lengths"] == before["accepted_lengths"], name
            assert counters["draft_forwards"] == before["draft_forwards"], name
    drafted(captioner.client.profile, found.values())


def drafted(profile, captions):
    if not profile.draft.is_free:  # which looks texts up that may hold nothing like the next words
        assert sum(caption.counters["drafted"] for caption in captions) > 0, f"{profile.name} stopped drafting"
    if profile.draft.has_model:
        assert sum(caption.counters["draft_forwards"] for caption in captions) > 0, profile.name


@cache
def plain(pair, path, tokens):
    return pair.captioner("ar", {"generate.max_new_tokens": tokens}).caption(path).token_ids


def alone(pair, name, paths):
    captioner = captioner_of(pair, name)
    tokens = LONG if captioner.client.profile.concurrent else TOKENS
    found = until_drafted(captioner.client.profile, lambda: {str(path): captioner.caption(path) for path in paths})
    assert all(caption.token_ids == plain(pair, path, tokens) for path, caption in found.items())
    drafted(captioner.client.profile, found.values())
    return found


@pytest.mark.full
@pytest.mark.sample(quick=1, full=12)
@pytest.mark.parametrize("name", full_but(["hippo", "sd-adaptive-tree", "specvlm"], in_turn(LOSSLESS, 4)))
def test_every_method_drafts_in_company_and_from_chunks(pair, clips, name, monkeypatch):
    expected = alone(pair, name, clips)
    check(pair, name, clips, 4, 4, expected)
    monkeypatch.setattr(forward.Engine, "chunk", SMALL)
    monkeypatch.setattr(loop, "SHARED", SMALL)
    check(pair, name, clips, 1, 1, expected)
    check(pair, name, clips, 4, 4, expected)


@pytest.mark.sample(full=3)
@pytest.mark.full
@pytest.mark.parametrize("name", in_turn(MECHANISMS, 2))
def test_sixteen_clips_at_once(pair, clips, name, small):
    """Each way of drafting; every profile has company of three above."""
    check(pair, name, clips, 16, 16, alone(pair, name, clips))


@pytest.mark.sample(full=2)
@pytest.mark.full
@pytest.mark.parametrize("name", ["parallelvlm", "self-parallelvlm", "hippo"])
def test_parallel_prefill_of_a_prompt_in_chunks_under_m_rope(qwen, clips, name, small):
    expected = alone(qwen, name, clips)
    check(qwen, name, clips, 4, 4, expected)


@pytest.mark.full
def test_what_is_kept_does_not_depend_on_chunks_or_company(pair, clips, monkeypatch):
    """The draft sees the same visual tokens, however the target's prompt was read."""
    from vidspec.events.events import Prefilled

    captioner = captioner_of(pair, "parallelvlm")

    def kept(batch):
        requests = [CaptionRequest(str(path), captioner.client.inputs.read(path), key=str(path)) for path in clips]
        read = {
            key: event
            for key, event in captioner.client.serve(ReadyClips(requests), batch=batch)
            if isinstance(event, Prefilled)
        }
        assert all(event.prompt_tokens > 2 * SMALL for event in read.values()), "prompts are to be read in many passes"
        return {key: event.kept for key, event in read.items()}

    expected = kept(1)
    assert all(len(one) > 1 for one in expected.values())
    monkeypatch.setattr(forward.Engine, "chunk", SMALL)
    monkeypatch.setattr(loop, "SHARED", SMALL)
    assert kept(1) == kept(4) == expected


@pytest.mark.full
def test_a_pruner_that_fails_fails_its_clip_alone(pair, clips):
    captioner = captioner_of(pair, "parallelvlm")
    plain = pair.captioner("ar", {"generate.max_new_tokens": LONG})
    pruner, calls = captioner.client.setup.pruner, []

    class Broken:
        needs = pruner.needs

        def __call__(self, signals, alpha):
            calls.append(len(calls))
            if len(calls) == 2:
                raise ValueError("no idea")
            return pruner(signals, alpha)

    captioner.client.setup.pruner = Broken()
    requests = [CaptionRequest(str(path), captioner.client.inputs.read(path), key=str(path)) for path in clips]
    ended = {}
    for key, event in captioner.client.serve(ReadyClips(requests), batch=4):
        if isinstance(event, (Finished, Exception)):
            ended[key] = event
    failed = [one for one in ended.values() if isinstance(one, Exception)]
    assert len(failed) == 1 and "no idea" in str(failed[0])
    rest = {key: one.caption for key, one in ended.items() if isinstance(one, Finished)}
    assert len(rest) == 3 and len(calls) == 4
    for path in clips:
        if str(path) in rest:
            assert rest[str(path)].token_ids == plain.caption(path).token_ids
    drafted(captioner.client.profile, rest.values())
