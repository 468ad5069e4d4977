"""No pruner holds more than a few numbers per number of the visual features, however long the text."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from pruning.given import visual_tokens
from vidspec.pruning import scores
from vidspec.pruning.base import Signals
from vidspec.registry import names, pruners

FRAMES, SIDE, HIDDEN, TEXT = 40, 7, 32, 600


class Largest(TorchDispatchMode):
    """Watches how many numbers the largest tensor made meanwhile holds."""

    numbers = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for tensor in out if isinstance(out, (tuple, list)) else (out,):
            if isinstance(tensor, torch.Tensor):
                self.numbers = max(self.numbers, tensor.numel())
        return out


def signals():
    visual = visual_tokens(FRAMES, SIDE, SIDE, HIDDEN)
    n = len(visual)
    states = torch.randn(4 + n + TEXT, HIDDEN, generator=torch.Generator().manual_seed(0))
    return Signals(
        visual,
        torch.rand(n),
        text=torch.arange(4 + n, 4 + n + TEXT),
        hidden={0: states, 20: states.flip(0)},
        block_attention={0: torch.rand(n), 20: torch.rand(n)},
    )


@pytest.mark.parametrize("name", [name for name in names("pruning") if name != "none"])
def test_largest_tensor(name):
    given, pruner = signals(), pruners.get(name)()
    with Largest() as largest:
        pruner(given, 0.9)
    n = len(given.visual)
    assert 0 < largest.numbers <= n * HIDDEN < n * TEXT < n * n


@pytest.mark.parametrize("name", ["uv", "uv_similarity", "hippo", "fastvid"])
def test_large_videos_go_through_in_blocks(name, monkeypatch):
    given, pruner = signals(), pruners.get(name)()
    whole = pruner(given, 0.9)
    monkeypatch.setattr(scores, "_BLOCK", 1 << 10)
    with Largest() as largest:
        assert torch.equal(pruner(given, 0.9), whole)
    # A block, a crop's 25 tokens, two frames, or the text, whichever is larger.
    assert largest.numbers <= max(1 << 10, 25 * HIDDEN, 2 * SIDE**2 * HIDDEN, TEXT * HIDDEN, len(given.visual))


def test_the_watch_sees_a_full_matrix():
    with Largest() as largest:
        torch.rand(30, 2) @ torch.rand(2, 40)
    assert largest.numbers == 1200
