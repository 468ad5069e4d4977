"""No pruner holds more than a few numbers per number of the visual features, however long video and text are."""

import numpy as np
import pytest
import torch

from tests.pruning.allocation import Allocations
from tests.pruning.given import distinct_rows, random_signals, visual_tokens
from vidspec.config.schema import names
from vidspec.engine import taps
from vidspec.engine.taps import language_to_video_attention
from vidspec.pruning import scores
from vidspec.pruning.base import kept_count, pruners

METHODS = [name for name in names("pruning") if name != "none"]
FRAMES, SIDE, HIDDEN, TEXT = 40, 7, 32, 600


def small(pruner):
    return random_signals(visual_tokens(FRAMES, SIDE, SIDE, HIDDEN), pruner.needs, text=TEXT)


@pytest.mark.full
@pytest.mark.parametrize("name", METHODS)
def test_a_long_video_in_a_wide_model(name):
    """12,545 tokens of 4,096 dimensions: never as much as one copy of the features, and at the end only the result."""
    pruner = pruners.get(name)()
    pruner(small(pruner), 0.9)  # what is imported at the first use does not count
    visual = visual_tokens(64, 14, 14, features=distinct_rows(12_545, 4096))
    signals = random_signals(visual, pruner.needs, text=400)
    with Allocations() as watched:
        kept = pruner(signals, 0.9)
    assert len(kept) == kept_count(12_545, 0.9)
    assert 0 < watched.peak <= 12_545 * 4096 * visual.features.itemsize
    assert watched.bytes <= 8 * len(visual)


@pytest.mark.sample(quick=4)
@pytest.mark.parametrize("name", METHODS)
def test_a_long_text(name):
    """Less than a number per visual token and text token, which would be n x 600: at most six copies of n x 32."""
    pruner = pruners.get(name)()
    signals = small(pruner)
    pruner(signals, 0.9)
    with Allocations() as watched:
        pruner(signals, 0.9)
    n = len(signals.visual)
    assert 0 < watched.peak <= 6 * 4 * n * HIDDEN < 4 * n * TEXT < 4 * n * n


@pytest.mark.sample(quick=1)
@pytest.mark.parametrize("name", ["uv", "uv_similarity", "hippo", "fastvid"])
def test_large_videos_go_through_in_blocks(name, monkeypatch):
    pruner = pruners.get(name)()
    given = small(pruner)
    whole = pruner(given, 0.9)
    monkeypatch.setattr(scores, "_BLOCK", 1 << 10)
    with Allocations() as watched:
        assert torch.equal(pruner(given, 0.9), whole)
    # A block, a crop's 25 tokens, two frames, or the text, whichever is larger; indices take twice as much.
    numbers = max(1 << 10, 25 * HIDDEN, 2 * SIDE**2 * HIDDEN, TEXT * HIDDEN, 2 * len(given.visual))
    assert watched.largest <= 4 * numbers


def test_attention_of_a_long_text_goes_through_in_blocks(monkeypatch):
    rng = torch.Generator().manual_seed(0)
    query, key = torch.randn(1, 4, 400, 8, generator=rng), torch.randn(1, 2, 400, 8, generator=rng)
    rows, visual = torch.arange(100, 400), torch.arange(3, 99)
    with Allocations() as watched:
        whole = language_to_video_attention(query, key, rows, visual, 0.3)
    assert watched.largest == 4 * 2 * 300 * 400
    monkeypatch.setattr(taps, "_BLOCK", 7000)
    with Allocations() as watched:
        parts = language_to_video_attention(query, key, rows, visual, 0.3)
    assert watched.largest <= 4 * 7000
    torch.testing.assert_close(parts, whole, rtol=0, atol=1e-6)


def test_the_watch_counts_what_is_held_at_once():
    with Allocations() as watched:
        torch.rand(30, 2) @ torch.rand(2, 40)
        assert watched.bytes == 0
        kept = torch.zeros(100)
        view = kept[3:]
        kept.add_(1)
    assert watched.largest == 4 * 1200 and watched.bytes == 400 and view.numel() == 97
    assert 4 * 1200 <= watched.peak < 4 * 1200 + 64 * 1024


def test_the_watch_sees_numpy_and_lists():
    given = torch.rand(10_000)
    with Allocations() as watched:
        np.repeat(given.numpy(), 100)
    assert watched.peak >= 4_000_000
    with Allocations() as watched:
        given.tolist()
    assert watched.peak >= 80_000
