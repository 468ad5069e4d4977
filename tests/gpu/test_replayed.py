"""On an NVIDIA GPU: passes that are replayed against the usual ones; a replay waits for nothing."""

from __future__ import annotations

import pytest
import torch

from research.random_decoder import engine_of, language
from research.sizes import Size
from tests.engine import standin
from tests.engine.passing import unreplayed
from tests.gpu.places import DEVICE, DTYPES, SMOKE, cuda_only, needs_replay
from vidspec.engine.attention import attend
from vidspec.engine.graphs.choice import window_kind
from vidspec.engine.graphs.passes import ReplayedPasses
from vidspec.engine.graphs.step import HostTable
from vidspec.engine.rows import Rows
from vidspec.engine.sampling import DrawRule, Sampling
from vidspec.runs.ties import tie_limit

pytestmark = pytest.mark.gpu

SIZE = Size(layers=3, hidden=512, heads=8, kv_heads=2, inner=768, vocabulary=1000)
if SMOKE:
    SIZE = Size(layers=1, hidden=32, heads=2, kv_heads=1, inner=32, vocabulary=1000)
#: Triton's interpreter takes seconds for a pass: a smoke run has it in one test, and plain attention in the others.
INTERPRETED = "test_a_slab_that_moved"
TREE = [-1, 0, 0, 1, 2, 2]
TOKENS = [40, 41, 77, 77, 60, 123, 38, 90]
#: Tolerance of logits up to 2.2: several times their difference on a CPU; those of another context differ by 3.
CLOSE = {torch.float32: 1e-4, torch.float16: 2e-2, torch.bfloat16: 0.1}
#: Entries of sequences.
SHORT, MIDDLE, LONG = (1, 20, 70) if SMOKE else (1, 300, 5000)


@pytest.fixture(params=DTYPES, ids=str)
def engine(request):
    torch.manual_seed(1)
    found = engine_of(language(SIZE, DEVICE, request.param))
    if SMOKE:
        kernel = standin.attention
        if request.node.originalname == INTERPRETED:
            pytest.importorskip("triton", reason="Triton, which comes with torch for GPUs, is not installed")
            kernel = None
        found.model.decoder.graphs = ReplayedPasses(found.model.decoder, kernel)
    return found


@torch.inference_mode()
def behind(engine, entries, room=256):
    """A sequence that holds noise, and NaN behind it."""
    span = engine.open(entries + room)
    for layer in span.entries_to_write(entries + room):
        layer[:, :, :entries].normal_()
        layer[:, :, entries:] = float("nan")
    span.length = entries
    return span


def check(engine, batch):
    assert engine.model.decoder.graphs.is_replayable(batch)
    expected = unreplayed(engine, batch)
    passed = engine.run(batch)
    assert engine.model.decoder.graphs is not None, engine.model.decoder.eager  # a failed capture is no error of a pass
    for mine, theirs in zip(passed, expected, strict=True):
        assert mine.logits.isfinite().all()
        torch.testing.assert_close(mine.logits, theirs.logits, rtol=0, atol=CLOSE[mine.logits.dtype])


@needs_replay
def test_rows_of_several_sequences(engine):
    spans = [behind(engine, entries) for entries in (SHORT, MIDDLE, LONG)]
    check(engine, [Rows(spans[2], TOKENS[:1])])
    check(engine, [Rows(span, TOKENS[:3]) for span in spans])
    check(engine, [Rows(spans[0], TOKENS[:6], TREE), Rows(spans[1], TOKENS[:1]), Rows(spans[2], TOKENS[:6])])
    check(engine, [Rows(spans[0], TOKENS[6:8], [*TREE, 3, 5]), Rows(spans[2], TOKENS)])
    check(engine, [Rows(spans[1], TOKENS * 8)])
    assert 64 in engine.model.decoder.graphs.captured


@needs_replay
def test_a_slab_that_moved(engine):
    span = behind(engine, MIDDLE)
    check(engine, [Rows(span, TOKENS[:1])])
    version = span.slab.version
    other = behind(engine, 30 * MIDDLE)
    assert span.slab.version > version
    check(engine, [Rows(span, TOKENS[:2]), Rows(other, TOKENS[:2])])


@needs_replay
@pytest.mark.parametrize("fed", [1, 2, 3])
def test_a_chain_equals_passes_in_turn(engine, fed):
    """But for near-ties: a chain's passes have one row, the others eight, and cuBLAS rounds both differently."""
    one, other = behind(engine, MIDDLE), behind(engine, MIDDLE)
    with torch.inference_mode():
        both = (span.slab.layers(span.start, span.start + MIDDLE) for span in (other, one))
        for into, held in zip(*both, strict=True):
            into.copy_(held)
    (tokens,) = engine.greedy([(one, TOKENS[:fed], 6)])
    assert engine.model.decoder.graphs is not None, engine.model.decoder.eager
    given = TOKENS[:fed]
    for token in tokens:
        logits = engine.run([Rows(other, given)])[0].logits[-1].float()
        limit = tie_limit(engine.model.decoder.slab.dtype, DEVICE)
        assert logits.max() - logits[token] <= limit * logits.abs().max()
        given = [token]
    assert len(tokens) == 6 and one.length == other.length


@cuda_only
@needs_replay
@torch.inference_mode()
def test_a_replay_waits_for_nothing(engine):
    """The one wait of a pass is the read-back of its tokens, after the replay."""
    span, graphs = behind(engine, 1000), engine.model.decoder.graphs
    engine.run([Rows(span, TOKENS[:3])])
    torch.cuda.synchronize()
    before = torch.cuda.memory_stats()["allocation.all.allocated"]
    torch.cuda.set_sync_debug_mode("error")
    try:
        for count in (1, 3):
            for _ in range(5):
                graphs.run([Rows(span, TOKENS[:count])], engine.model.vocabulary, choose=False)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    # The host's table, and the logits and states that are returned, of ten passes.
    assert torch.cuda.memory_stats()["allocation.all.allocated"] - before <= 3 * 10


@cuda_only
@needs_replay
@torch.inference_mode()
def test_draws_are_replayed_without_a_wait(engine):
    span, graphs = behind(engine, 1000), engine.model.decoder.graphs
    # The cut leaves fewer tokens than are sorted on the device, so what it draws is final.
    batch = [Rows(span, TOKENS[:3], draw=DrawRule(Sampling(0.8, 0.5), (0.5, 0.1, 0.9)))]
    expected = engine.run(batch)[0].chosen
    for _ in range(2):
        span.rollback(span.length - 3)
        torch.cuda.set_sync_debug_mode("error")
        try:
            planned = graphs.plan_pass(batch, engine.model.vocabulary, table := HostTable())
            choice, replay = graphs.choice(planned.step, window_kind(batch))
            plan = choice.plan_windows(batch, planned.sizes, table)
            graphs.run_pass(planned, table)
            choice.begin(plan, table)
            replay()
        finally:
            torch.cuda.set_sync_debug_mode("default")
        assert choice.chosen.exact is not None and choice.chosen.exact[:3].all()
        assert choice.chosen.tokens[:3].tolist() == expected


@pytest.mark.parametrize("rows, length", [(1, 30), (6, 3000), (90, 3000), (2000, 2000)])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_attention_equals_the_cpu(rows, length, dtype):
    """Also a chunk of a prompt, and a whole one."""
    rng = torch.Generator().manual_seed(rows)
    query = torch.randn(rows, 8, 64, generator=rng).to(dtype)
    key, value = (torch.randn(1, 2, length, 64, generator=rng).to(dtype) for _ in range(2))
    here = attend(query.float(), key.float(), value.float(), 0.125)
    there = attend(query.to(DEVICE), key.to(DEVICE), value.to(DEVICE), 0.125).cpu().float()
    close = 5e-5 if dtype is torch.float32 else 2e-2  # outputs are up to 4, where bfloat16 rounds by 2**-7
    torch.testing.assert_close(there, here, rtol=close / 4, atol=close)


@cuda_only
def test_a_prompt_in_float32_never_makes_n_by_n_numbers():
    query = torch.randn(12_000, 8, 64, device="cuda")
    key, value = (torch.randn(1, 2, 12_000, 64, device="cuda") for _ in range(2))
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    attend(query, key, value, 0.125)
    assert torch.cuda.max_memory_allocated() - before < 4 * 12_000**2  # bytes of the scores of one head
