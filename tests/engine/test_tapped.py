"""Rows that enter blocks, given back with a pass: of prompts, windows and trees, alone and together."""

import pytest
import torch
from models.checkpoints_qwen import LAYERS, QWEN3, QWEN25, Kind, adapter, pixels

from vidspec.engine.forward import Engine
from vidspec.engine.graphs import Graphs
from vidspec.engine.rows import Rows
from vidspec.engine.taps import Taps

BLOCKS = (0, 3, 1, LAYERS)


@pytest.fixture(scope="module", params=[(QWEN25, "fused"), (QWEN3, "fused"), (QWEN3, "stock")], ids=str)
def engine(request):
    family, decoder = request.param
    return Engine(adapter(Kind(family), decoder))


def prompt(engine, seed):
    model = engine.model
    return model.prefix(model.see(pixels(model, seed=seed)), "Describe the video.")


def test_they_are_what_observers_of_a_prompt_see(engine):
    prefix = prompt(engine, 0)
    taps = Taps(rows=prefix.text_rows_after_video, visual=prefix.visual.index, hidden=BLOCKS)
    engine.prefill(prefix, 0, taps)
    seen = torch.cat([taps.states[block] for block in BLOCKS], dim=1)
    half = prefix.length // 2
    span = engine.open(prefix.length, prefix.next_position - prefix.length)
    stretches = [(0, half), (half, prefix.length)]
    parts = [engine.run([Rows(span, prompt=prefix, stretch=part, tapped=BLOCKS)])[0] for part in stretches]
    torch.testing.assert_close(torch.cat([part.tapped for part in parts]), seen, rtol=1e-4, atol=1e-4)


def test_windows_and_trees_together_have_those_they_have_alone(engine):
    ways = [
        ([5, 6, 7], None, (1, 2)),
        ([8], None, ()),
        ([9, 10, 11, 12], [-1, 0, 0, 1], (LAYERS,)),
    ]

    def batch():
        spans = [engine.prefill(prompt(engine, seed), 8).span for seed in range(len(ways))]
        return [
            Rows(span, tokens, parents, tapped=tapped)
            for span, (tokens, parents, tapped) in zip(spans, ways, strict=True)
        ]

    alone = [engine.run([rows])[0] for rows in batch()]
    for one, (tokens, _, tapped), together in zip(alone, ways, engine.run(batch()), strict=True):
        torch.testing.assert_close(together.logits, one.logits, rtol=1e-4, atol=1e-4)
        if not tapped:
            assert one.tapped is together.tapped is None
            continue
        assert together.tapped.shape == (len(tokens), len(tapped) * one.hidden.shape[1])
        torch.testing.assert_close(together.tapped, one.tapped, rtol=1e-4, atol=1e-4)
    last = alone[2].tapped
    torch.testing.assert_close(engine.model.decoder.norm(last), alone[2].hidden, rtol=1e-4, atol=1e-4)


def test_a_replayed_pass_is_not_tapped():
    """Its rows are written over from block to block."""
    engine = Engine(adapter(Kind(QWEN25), "fused"))
    graphs = Graphs(engine.model.decoder, capture=False)
    span = engine.open(8)
    assert graphs.take([Rows(span, [1, 2])])
    assert not graphs.take([Rows(span, [1, 2]), Rows(span, [3], tapped=(1,))])
