"""On an NVIDIA GPU: lossless profiles give plain decoding's tokens, but for near-ties."""

from __future__ import annotations

import pytest

from research.gpu.frames import decoded
from tests.gpu.places import DEVICE, DTYPES, SMOKE, cuda_only, needs_replay
from vidspec.bench.loaded import LoadedModels, ModelSource, lossless_profiles
from vidspec.models.request import CaptionRequest
from vidspec.runs.ties import EPSILON, logit_gap, tie_limit

pytestmark = pytest.mark.gpu
#: In a smoke run one profile in turns, one with a tree and one in parallel, and short texts: do the tests run?
SHORT = {"generate.max_new_tokens": 12} if SMOKE else {}
PROFILES = ["vanilla-sd", "sd-tree", "pearl-video"]
if not SMOKE:
    PROFILES = [*PROFILES, *(name for name in lossless_profiles() if name not in PROFILES)]


@pytest.fixture(scope="module")
def clips():
    return decoded(1 if SMOKE else 4)


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


@pytest.mark.parametrize("name", PROFILES)
def test_same_tokens_as_plain_decoding(loaded, name, clips):
    captioner = loaded.captioner(name, SHORT)
    for clip, plain in loaded.plain.items():
        apart = logit_gap(
            captioner.client,
            CaptionRequest(clip, clips[clip]),
            plain,
            captioner.caption(clip, clip=clips[clip]).token_ids,
        )
        assert apart <= tie_limit(loaded.target.dtype, loaded.target.device)


def test_float32_equals_the_cpu(pair, clips):
    """But for near-ties: a GPU resizes some bytes of a frame to another level, see test_pixels."""
    here, there = (
        LoadedModels(ModelSource(pair, device=device, dtype="float32")).captioner("ar", SHORT)
        for device in ("cpu", str(DEVICE))
    )
    for name, clip in clips.items():
        one, other = (captioner.caption(name, clip=clip).token_ids for captioner in (here, there))
        assert logit_gap(here.client, CaptionRequest(name, clip), one, other) <= EPSILON
