"""Rows that enter blocks, given back with a pass: of prompts, windows and trees, alone and together."""

import pytest
import torch

from tests.checkpoints.qwen import LAYERS, QWEN3, QWEN25, QwenKind, adapter, pixels
from tests.engine import standin
from tests.engine.passing import unreplayed
from tests.engine.test_graphs import RecordedGraphs
from vidspec.engine.forward import Engine
from vidspec.engine.graphs.passes import ReplayedPasses
from vidspec.engine.rows import Rows
from vidspec.engine.taps import Taps

BLOCKS = (0, 3, 1, LAYERS)


@pytest.fixture(scope="module", params=[(QWEN25, "fused"), (QWEN3, "fused"), (QWEN3, "stock")], ids=str)
def engine(request):
    family, decoder = request.param
    return Engine(adapter(QwenKind(family), decoder))


def prompt(engine, seed):
    model = engine.model
    return model.prefix(model.encode(pixels(model, seed=seed)), "Describe the video.")


@pytest.mark.sample(quick=1)
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


def test_after_the_last_block_only_rows_that_something_needs_remain(engine, monkeypatch):
    decoder, first, other = engine.model.decoder, prompt(engine, 0), prompt(engine, 1)
    half = first.length // 2

    def batch():
        prefixes = (first, first, other)
        begun, tapped, whole = (engine.open(one.length, one.next_position - one.length) for one in prefixes)
        return [
            Rows(begun, prompt=first, stretch=(0, half)),
            Rows(engine.prefill(other, 8).span, [5, 6, 7]),
            Rows(tapped, prompt=first, stretch=(0, first.length), tapped=(1, LAYERS)),
            Rows(whole, prompt=other, stretch=(0, other.length)),
        ]

    alone = [engine.run([rows])[0] for rows in batch()]
    rows, counts, block = batch(), [], decoder.block

    def counted(index, *given):
        counts.append(len(out := block(index, *given)))
        return out

    monkeypatch.setattr(decoder, "block", counted)
    together = engine.run(rows)
    sizes, needed = list(map(len, rows)), [0, 3, first.length, 1]
    assert counts == [sum(sizes)] * (LAYERS - 1) + [sum(needed if decoder.skips_rows else sizes)]
    for one, beside, count in zip(alone, together, [0, 3, 1, 1], strict=True):
        assert len(one.logits) == len(one.hidden) == count
        torch.testing.assert_close(beside.logits, one.logits, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(together[2].tapped, alone[2].tapped, rtol=1e-4, atol=1e-4)
    engine.run([Rows(rows[0].span, prompt=first, stretch=(half, first.length))])
    span = rows[0].span  # its entries of the last block are complete
    stored, expected = (one.entries_to_read(0)[0][LAYERS - 1] for one in (span, engine.prefill(first, 0).span))
    torch.testing.assert_close(stored, expected, rtol=1e-4, atol=1e-4)


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


def test_a_replayed_pass_gives_them_and_runs_no_block_beside_the_graph(monkeypatch):
    engine = Engine(adapter(QwenKind(QWEN25), "fused"))
    decoder = engine.model.decoder
    monkeypatch.setattr(decoder, "graphs", ReplayedPasses(decoder, standin.attention))
    decoder.graphs._can_capture, cuda = True, RecordedGraphs(monkeypatch)
    monkeypatch.setattr(engine, "_run_eager", lambda batch: pytest.fail("kernel by kernel"))
    spans = [engine.open(20) for _ in range(4)]
    tree = [-1, 0, 0, 1]
    for tapped in ((1, 2), (LAYERS, 0)):  # others are tapped later: passes are captured again
        engine.run([Rows(span, [5, 6, 7]) for span in spans])
        batch = [
            Rows(spans[0], [8, 9, 10], tapped=tapped),
            Rows(spans[1], [11], tapped=(1,)),
            Rows(spans[2], [12, 13, 14, 15], tree, tapped=tapped),
            Rows(spans[3], [16, 17]),
        ]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(engine, "_run_eager", Engine._run_eager.__get__(engine))
            expected = unreplayed(engine, batch)
        cuda.done.clear()
        got = engine.run(batch)
        assert [done for done in cuda.done if not done.startswith(("ran", "captured"))] == ["replayed 16"]
        assert len(cuda.done) == 1 + 2 * len([8, 16, 32, 64, 128, 256, 512])
        again = [one.tapped.clone() for one in got[:3]]
        engine.run([Rows(span, [18, 19]) for span in spans])  # which writes to the same tensors
        assert cuda.done[-1] == "replayed 8" and got[3].tapped is None
        for one, tapped_then, other in zip(got, again, expected, strict=False):
            torch.testing.assert_close(one.logits, other.logits, rtol=1e-4, atol=1e-4)
            torch.testing.assert_close(one.tapped, other.tapped, rtol=1e-4, atol=1e-4)
            assert torch.equal(one.tapped, tapped_then)
