"""On an NVIDIA GPU: vision towers in fused blocks give the features of the CPU's stock towers in float32."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from torch.nn import functional as F

from tests.checkpoints import qwen
from tests.checkpoints.qwen import QWEN2, QWEN3, QWEN25
from tests.gpu.places import DEVICE, DTYPES, SMOKE, needs_replay
from tests.models import test_fused_vision
from vidspec.models import video_language_model
from vidspec.models.base import families
from vidspec.models.vision import window_attention

pytestmark = pytest.mark.gpu
#: Heads as wide as the published ones of Qwen2.5-VL; rows of an inner size as little aligned.
WIDTH, INNER = 80, 90
#: Visual tokens of a step: windows of one length, and of four.
GRIDS = [(3, 6)] if SMOKE else [(3, 6), (7, 8)]


@pytest.fixture(autouse=True)
def kernels_in_smoke_runs(monkeypatch):
    if SMOKE:
        monkeypatch.setattr(video_language_model, "load_block_kernels", lambda device: test_fused_vision.KERNELS)


def features(family, dtype, device, pixels, *, prepared):
    stock = test_fused_vision.stock_of(family, WIDTH, INNER).to(device, dtype)
    model = families.get(family)("tiny", stock, qwen.tokenizer(), qwen.processor(family))
    if prepared:
        model.prepare(packed=False)
        assert all(test_fused_vision.blocks_of(model.tower))
    else:
        stock.set_attn_implementation("sdpa")
    seen = model.encode(pixels(model))
    return torch.stack([seen.features, *seen.deepstack]).cpu().double()


@needs_replay  # the kernels need the same GPUs
@pytest.mark.parametrize("grid", GRIDS)
@pytest.mark.parametrize("family", [QWEN25] if SMOKE else [QWEN2, QWEN25, QWEN3])
@pytest.mark.parametrize("dtype", DTYPES[:1] if SMOKE else DTYPES)
def test_as_near_to_the_cpu_in_float32_as_the_stock_tower(dtype, family, grid):
    def pixels(model):
        return qwen.pixels(model, 2 if SMOKE else 6, *grid)

    exact = features(family, torch.float32, torch.device("cpu"), pixels, prepared=False)
    stock, ours = (features(family, dtype, DEVICE, pixels, prepared=prepared) - exact for prepared in (False, True))
    assert ours.norm() < 1.5 * stock.norm() + 1e-5 * exact.norm()
    assert ours.norm() < 0.1 * exact.norm()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("lengths", [[64, 64, 64], [64, 16, 64, 8, 16], [100]])
@pytest.mark.parametrize("width", [72, 80, 20])
def test_windows_of_several_lengths(width, lengths, dtype):
    """Queries, keys and values are parts of one product; widths that flash attention takes, and one it does not."""
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(sum(lengths), 3, 4, width, generator=generator).to(DEVICE, dtype)
    query, key, value = (part.transpose(0, 1)[None] for part in rows.unbind(1))
    begins = torch.tensor([0, *lengths]).cumsum(0, dtype=torch.int32)
    given, _ = window_attention(torch.nn.Module(), query, key, value, None, 0.1, begins.to(DEVICE))
    for start, end in pairwise(begins.tolist()):
        window = [tensor[:, :, start:end].double() for tensor in (query, key, value)]
        expected = F.scaled_dot_product_attention(*window, scale=0.1).transpose(1, 2)
        torch.testing.assert_close(given[:, start:end].double(), expected, rtol=0, atol=2e-2)
