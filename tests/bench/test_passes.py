"""Single passes: medians of a given clock, rollback after each, and the window that follows from them."""

from __future__ import annotations

import pytest
import torch

from vidspec.bench.passes import TimedPasses, measure_passes, prefill_pruned
from vidspec.engine.forward import Engine
from vidspec.models import loading
from vidspec.models.base import EmbeddedPrompt, VisualTokens
from vidspec.models.placement import resolve_placement


def synthetic(model, tokens):
    """A prompt of ``tokens`` visual tokens in one frame and 32 text tokens, all random."""
    length, place = tokens + 32, torch.arange(tokens)
    width = model.embed(torch.zeros(1, 1, dtype=torch.long)).shape[-1]
    embeds, flat = torch.randn(1, length, width, generator=torch.Generator().manual_seed(0)), torch.zeros_like(place)
    visual = VisualTokens(place, flat, flat, place, required=flat.bool(), features=embeds[0, :tokens])
    positions = torch.arange(length).expand(model.decoder.axes, 1, -1)
    return EmbeddedPrompt(torch.zeros(length, dtype=torch.long), embeds, positions, visual, length)


@pytest.fixture(scope="module")
def draft():
    return loading.load_model(str(loading.embedded_folder("embedded", "draft")), resolve_placement("cpu"))


def test_pruned_prompts_are_as_short_as_asked_and_passes_leave_no_trace(draft):
    engine, prefix = Engine(draft), synthetic(draft, 40)
    (whole, all_), (pruned, tenth) = prefill_pruned(engine, prefix, 0.0), prefill_pruned(engine, prefix, 0.9)
    assert (all_, tenth) == (40, 4)
    assert whole.length == prefix.length and pruned.length == prefix.length - 36
    entries = [layer.clone() for layer in pruned.slab.layers(pruned.start, pruned.start + pruned.length)]
    found = measure_passes((engine, whole), {0.9: (engine, pruned)}, rows=(1, 3), repeats=2, kept={0.9: tenth})
    assert (whole.length, pruned.length) == (prefix.length, prefix.length - 36)
    after = pruned.slab.layers(pruned.start, pruned.start + pruned.length)
    assert all(torch.equal(one, other) for one, other in zip(entries, after, strict=True))
    assert (
        set(found.target) == {1, 3}
        and found.kept == {0.9: 4}
        and found.cost_ratio(0.9) > 0
        and found.cost_ratio(0.5) is None
    )


def test_medians_leave_the_warm_up_out(draft):
    engine = Engine(draft)
    state, _ = prefill_pruned(engine, synthetic(draft, 8), 0.0)
    seconds = iter([100.0, 100.0, 1.0, 5.0, 6.0, 3.0, 2.0, 9.0])  # warm-up, then rows 1 2, 2 1, 1 2
    ticks = (tick for length in seconds for tick in (0.0, length))
    found = measure_passes((engine, state), {}, rows=(1, 2), repeats=3, clock=lambda: next(ticks))
    assert found.target == {1: 2.0, 2: 6.0}


def test_the_window_fills_the_pass_that_verifies_it():
    def recommended(target, tq, rounding="down"):
        return TimedPasses(target, {0.9: tq}, {}).gamma(0.9, rounding)

    assert recommended({1: 10.0, 32: 10.0}, 2.5) == 4
    # T_p(10) = 13 allows 13 tokens, T_p(13) = 14 allows 14, and T_p(14) = 14.33 no more.
    assert recommended({1: 10.0, 4: 11.0, 31: 20.0}, 1.0) == 14
    assert recommended({1: 10.0}, 4.0, "up") == 3
    passes = TimedPasses({1: 10.0, 32: 10.0}, {0.9: 2.5}, {})
    assert (passes.cost_ratio(0.9), passes.gamma(0.9), passes.gamma(0.5)) == (4.0, 4, None)
