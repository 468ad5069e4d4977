"""On an NVIDIA GPU: lossless profiles give plain decoding's tokens, but for near-ties."""

from __future__ import annotations

import pytest

from research.gpu.frames import decoded
from research.ready_clips import ReadyClips
from tests.gpu.places import DEVICE, DTYPES, SMOKE, cuda_only, needs_replay
from vidspec.bench.loaded import LoadedModels, ModelSource, lossless_profiles
from vidspec.events.events import Finished
from vidspec.models.request import CaptionRequest
from vidspec.runs.ties import EPSILON, logit_gap, tie_limit

pytestmark = pytest.mark.gpu
#: In a smoke run one profile in turns, one with a tree, one in parallel and a head beside lookup, and short texts: do
#: the tests run?
SHORT = {"generate.max_new_tokens": 12} if SMOKE else {}
PROFILES = ["vanilla-sd", "sd-tree", "pearl-video", "hybrid-sparrow"]
#: Drafts of other kinds before those that only prune otherwise.
FIRST = ["sparrow", "self-int4", "eagle3", "eagle3+draft.topology=tree", "hybrid-int4", "hybrid-eagle3", "specvlm"]
TOGETHER = ["vanilla-sd", "self-int4", "hybrid-sparrow", "eagle3"]
if not SMOKE:
    heads = ["dflash", "dflash-specvlm", "hybrid-dflash"]
    PROFILES = list(dict.fromkeys([*PROFILES, *FIRST, *heads, *lossless_profiles()]))


@pytest.fixture(scope="module")
def clips():
    return decoded(2 if SMOKE else 4)


@pytest.fixture(scope="module", params=["embedded", "embedded-qwen"])
def pair(request):
    return request.param


@pytest.fixture(scope="module", params=["float32"] if SMOKE else [str(DTYPES[0]).removeprefix("torch."), "float32"])
def loaded(request, pair, clips):
    found = LoadedModels(ModelSource(pair, device=str(DEVICE), dtype=request.param))
    plain = found.captioner("ar", SHORT)
    found.plain = {name: plain.caption(name, clip=clip).token_ids for name, clip in clips.items()}
    yield found
    found.close()


@cuda_only
@needs_replay
def test_passes_are_replayed(loaded):
    """Plain decoding went through captured graphs."""
    decoder = loaded.target.decoder
    assert decoder.graphs is not None and decoder.graphs.captured, decoder.eager


def check_texts(loaded, captioner, clips, texts):
    for clip, text in texts.items():
        apart = logit_gap(captioner.client, CaptionRequest(clip, clips[clip]), loaded.plain[clip], text)
        assert apart <= tie_limit(loaded.target.dtype, loaded.target.device)


@pytest.mark.parametrize("name", PROFILES)
def test_same_tokens_as_plain_decoding(loaded, name, clips):
    """A hybrid's second texts are drafted by lookup in its first ones, too."""
    captioner = loaded.captioner(name, SHORT)
    for _ in range(2 if name.startswith("hybrid") else 1):
        texts = {clip: captioner.caption(clip, clip=clips[clip]).token_ids for clip in clips}
        check_texts(loaded, captioner, clips, texts)


@pytest.mark.parametrize("name", TOGETHER[2:3] if SMOKE else TOGETHER)
def test_same_tokens_of_clips_at_once(loaded, name, clips):
    captioner = loaded.captioner(name, SHORT)
    news = captioner.client.serve(ReadyClips.of(clips), batch=len(clips))
    texts = {clip: one.caption.token_ids for clip, one in news if isinstance(one, Finished)}
    assert texts.keys() == clips.keys()
    check_texts(loaded, captioner, clips, texts)


def test_float32_equals_the_cpu(pair, clips):
    """But for near-ties: a GPU resizes some bytes of a frame to another level, see test_pixels."""
    here, there = (
        LoadedModels(ModelSource(pair, device=device, dtype="float32")).captioner("ar", SHORT)
        for device in ("cpu", str(DEVICE))
    )
    for name, clip in clips.items():
        one, other = (captioner.caption(name, clip=clip).token_ids for captioner in (here, there))
        assert logit_gap(here.client, CaptionRequest(name, clip), one, other) <= EPSILON
