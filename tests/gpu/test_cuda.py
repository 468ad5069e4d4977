"""On an NVIDIA GPU: lossless profiles give plain decoding's tokens, in float32 all, in bfloat16 but for near-ties."""

from __future__ import annotations

import pytest

from research.ties import EPSILON, gap
from vidspec.bench.loaded import Loaded, Source, lossless_profiles
from vidspec.embedded.samples import shipped

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module", params=["embedded", "embedded-qwen"])
def pair(request):
    return request.param


@pytest.fixture(scope="module", params=["float32", "bfloat16"])
def loaded(request, pair):
    found = Loaded(Source(pair, device="cuda", dtype=request.param))
    found.plain = {clip: found.captioner("ar").caption(clip).token_ids for clip in shipped()}
    yield found
    found.close()


@pytest.mark.parametrize("name", lossless_profiles())
def test_same_tokens_as_plain_decoding(loaded, name):
    captioner = loaded.captioner(name)
    for clip, plain in loaded.plain.items():
        apart = gap(captioner, clip, plain, captioner.caption(clip).token_ids)
        assert apart <= (0 if loaded.source.dtype == "float32" else EPSILON)


def test_passes_are_replayed(loaded):
    """Plain decoding and drafts went through captured graphs."""
    assert loaded.target.decoder.graphs is not None and loaded.target.decoder.graphs.captured


def test_float32_equals_the_cpu(pair):
    here = Loaded(Source(pair, device="cpu", dtype="float32")).captioner("ar")
    there = Loaded(Source(pair, device="cuda", dtype="float32")).captioner("ar")
    for clip in shipped():
        assert gap(here, clip, here.caption(clip).token_ids, there.caption(clip).token_ids) <= 1e-4
