"""On an NVIDIA GPU: lossless profiles give plain decoding's tokens, in float32 all, in bfloat16 but for near-ties."""

from __future__ import annotations

import pytest

from research.gpu.frames import decoded
from tests.gpu.places import DEVICE, SMOKE, cuda_only
from vidspec.bench.loaded import LoadedModels, ModelSource, lossless_profiles
from vidspec.dataset.ties import EPSILON, logit_gap
from vidspec.models.request import CaptionRequest

pytestmark = pytest.mark.gpu
#: In a smoke run one profile in turns, one with a tree and one in parallel, and short texts: do the tests run?
SHORT = {"generate.max_new_tokens": 12} if SMOKE else {}
PROFILES = ["vanilla-sd", "sd-tree", "pearl-video"] if SMOKE else lossless_profiles()


@pytest.fixture(scope="module")
def clips():
    return decoded(1 if SMOKE else 4)


@pytest.fixture(scope="module", params=["embedded", "embedded-qwen"])
def pair(request):
    return request.param


@pytest.fixture(scope="module", params=["float32"] if SMOKE else ["float32", "bfloat16"])
def loaded(request, pair, clips):
    found = LoadedModels(ModelSource(pair, device=str(DEVICE), dtype=request.param))
    plain = found.captioner("ar", SHORT)
    found.plain = {name: plain.caption(name, clip=clip).token_ids for name, clip in clips.items()}
    yield found
    found.close()


@cuda_only
def test_passes_are_replayed(loaded):
    """Plain decoding went through captured graphs."""
    assert loaded.target.decoder.graphs is not None and loaded.target.decoder.graphs.captured


@pytest.mark.parametrize("name", PROFILES)
def test_same_tokens_as_plain_decoding(loaded, name, clips):
    captioner = loaded.captioner(name, SHORT)
    for clip, plain in loaded.plain.items():
        apart = logit_gap(
            captioner, CaptionRequest(clip, clips[clip]), plain, captioner.caption(clip, clip=clips[clip]).token_ids
        )
        assert apart <= (0 if loaded.source.dtype == "float32" else EPSILON)


def test_float32_equals_the_cpu(pair, clips):
    here, there = (
        LoadedModels(ModelSource(pair, device=device, dtype="float32")).captioner("ar", SHORT)
        for device in ("cpu", str(DEVICE))
    )
    for name, clip in clips.items():
        one, other = (captioner.caption(name, clip=clip).token_ids for captioner in (here, there))
        assert logit_gap(here, CaptionRequest(name, clip), one, other) <= 1e-4
