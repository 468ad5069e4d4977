"""On an NVIDIA GPU: every lossless packaged profile gives plain decoding's tokens in float32; attention agrees."""

from __future__ import annotations

import pytest
import torch

from vidspec import Captioner
from vidspec.bench.loaded import lossless_profiles
from vidspec.embedded.samples import shipped
from vidspec.engine.attention import attention

pytestmark = pytest.mark.gpu

ON_GPU = {"models.device": "cuda", "models.dtype": "float32"}


@pytest.mark.parametrize("name", lossless_profiles())
def test_same_tokens_as_plain_decoding(name):
    with Captioner.from_profile(name, overrides=ON_GPU) as captioner:
        for clip in shipped():
            assert captioner.caption(clip).token_ids == captioner.baseline(clip).token_ids


@pytest.mark.parametrize("heads", [4, 8])
def test_causal_attention_equals_the_cpu(heads):
    generator = torch.Generator().manual_seed(heads)
    query = torch.randn(1, heads, 33, 16, generator=generator)
    key, value = (torch.randn(1, 4, 33, 16, generator=generator) for _ in range(2))
    here, _ = attention(torch.nn.Identity(), query, key, value, None)
    there, _ = attention(torch.nn.Identity(), query.cuda(), key.cuda(), value.cuda(), None)
    assert torch.allclose(here, there.cpu(), atol=1e-4)
