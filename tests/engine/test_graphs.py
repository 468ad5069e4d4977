"""A pass as a GPU replays it, kernel by kernel on the CPU: equal logits, nothing read back, no size by its lengths."""

from __future__ import annotations

import copy
import gc
import weakref
from contextlib import contextmanager, nullcontext
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import Qwen2Config, Qwen2ForCausalLM

from tests.engine import standin
from tests.engine.families import case
from tests.engine.passing import poison, unreplayed
from tests.engine.test_fused import SIZE, engine_of
from tests.tiers import full_but, in_turn
from vidspec.baselines.engine import PrunedSpan
from vidspec.engine.attention import split_count
from vidspec.engine.block_kernels import triton_problem
from vidspec.engine.choices import ChoiceKind
from vidspec.engine.forward import Engine
from vidspec.engine.graphs.choice import ChoiceStep
from vidspec.engine.graphs.passes import ReplayedPasses, eager_reason, make_graphs
from vidspec.engine.graphs.step import GraphStep, table_columns
from vidspec.engine.penalties import Penalties, PenaltyHistory
from vidspec.engine.requests import Chain
from vidspec.engine.rows import ChainRule, Rows
from vidspec.engine.sampling import DrawRule, Sampling, SamplingCuts
from vidspec.errors import DeviceError

FUSED = ["llava_onevision", "qwen2_5_vl", "qwen3_vl"]
CLOSE = {"rtol": 0, "atol": 4e-5}  # of logits up to 4: 1e-5 of the largest
TOKENS = [40, 41, 77, 77, 60, 123, 38, 90]
TREE = [-1, 0, 0, 1, 2, 2]
ROOM = 80


def replaying(family, monkeypatch):
    """Return an engine with static passes, which the test can take away."""
    found = Engine(case(family)[0])
    monkeypatch.setattr(found.model.decoder, "graphs", ReplayedPasses(found.model.decoder, standin.attention))
    return found


@pytest.fixture(params=full_but(["qwen3_vl"], in_turn(FUSED, 2)))
def engine(request, monkeypatch):
    return replaying(request.param, monkeypatch)


@pytest.fixture(params=FUSED)
def each_engine(request, monkeypatch):
    """An engine of each family, for tests of results that differ by family."""
    return replaying(request.param, monkeypatch)


def prompts(engine):
    model = engine.model
    texts = ["\n", "image: a red circle moves", "image: a blue square"]
    return [model.text_prefix(model.template.ids_with_text(text, "Describe the video.")) for text in texts]


def static(engine, batch):
    assert engine.model.decoder.graphs.is_replayable(batch)
    return engine.run(batch)


def check(engine, batch):
    lengths = [rows.span.length for rows in batch]
    expected, got = unreplayed(engine, batch), static(engine, batch)
    for rows, length, mine, theirs in zip(batch, lengths, got, expected, strict=True):
        assert rows.span.length == length + len(rows)
        torch.testing.assert_close(mine.logits, theirs.logits, **CLOSE)
        torch.testing.assert_close(mine.hidden, theirs.hidden, rtol=0, atol=1e-4)


@pytest.mark.sample(quick=5)
@pytest.mark.parametrize("rows", [1, 2, 3, 5, 8])
def test_windows_equal_the_usual_pass(each_engine, rows):
    engine = each_engine
    spans = [engine.prefill(prompt, ROOM).span for prompt in prompts(engine)]
    for span in spans:
        poison(span)
    check(engine, [Rows(spans[0], TOKENS[:rows])])
    check(engine, [Rows(span, TOKENS[:rows]) for span in spans])


def test_a_token_a_window_and_trees_in_one_pass(each_engine):
    engine = each_engine
    one, other, third = (engine.prefill(prompt, ROOM).span for prompt in prompts(engine))
    check(engine, [Rows(one, TOKENS[:6], TREE), Rows(other, TOKENS[:1]), Rows(third, TOKENS[:3])])
    # Two more nodes of the first tree, whose others are in the cache, and a path of it kept.
    check(engine, [Rows(third, TOKENS[3:5]), Rows(one, TOKENS[6:8], [*TREE, 3, 5])])
    one.gather(one.length - 8, [0, 1, 3, 6])
    poison(one)
    check(engine, [Rows(one, TOKENS[:2]), Rows(third, TOKENS[5:6])])


def test_the_most_rows(engine):
    span = engine.prefill(prompts(engine)[0], ROOM).span
    tokens = (TOKENS * 8)[:64]
    check(engine, [Rows(span, tokens)])
    assert not engine.model.decoder.graphs.is_replayable([Rows(span, [*tokens, 1])])


@pytest.mark.full
def test_windows_of_many_clips_are_one_pass(engine):
    """16 clips of 6 rows; beyond 512 rows there is a second pass."""
    prompt, graphs = prompts(engine)[0], engine.model.decoder.graphs
    spans = [engine.prefill(prompt, ROOM).span for _ in range(87)]
    check(engine, [Rows(span, TOKENS[:6]) for span in spans[:16]])
    assert set(graphs.captured) == {128}
    batch = [Rows(span, TOKENS[:6]) for span in spans]
    assert not graphs.is_replayable(batch) and graphs.split_batch(batch) == ([[*range(85)], [85, 86]], [])
    expected = unreplayed(engine, batch)
    for mine, theirs in zip(engine.run(batch), expected, strict=True):
        torch.testing.assert_close(mine.logits, theirs.logits, **CLOSE)
    assert set(graphs.captured) == {128, 512, 16}


def test_a_stretch_of_a_prompt_leaves_the_token_rows_to_a_replayed_pass(engine):
    one, two, _ = prompts(engine)
    graphs = engine.model.decoder.graphs
    span, other = engine.prefill(one, ROOM).span, engine.prefill(one, ROOM).span
    reading, again = engine.open(ROOM), engine.open(ROOM)
    (alone,) = unreplayed(engine, [Rows(again, prompt=two, stretch=(0, two.length))])
    (token,) = unreplayed(engine, [Rows(other, TOKENS[:2])])
    first, second = engine.run([Rows(reading, prompt=two, stretch=(0, two.length)), Rows(span, TOKENS[:2])])
    torch.testing.assert_close(first.logits, alone.logits, **CLOSE)
    torch.testing.assert_close(second.logits, token.logits, **CLOSE)
    assert set(graphs.captured) == {8} and (span.length, reading.length) == (one.length + 2, two.length)


@pytest.mark.parametrize("chain", [False, True])
def test_kernels_that_cannot_be_built_end_no_run(engine, chain):
    def attend(*_):
        raise RuntimeError("Failed to find C compiler\nplease install one")

    decoder = engine.model.decoder
    decoder.graphs = ReplayedPasses(decoder, attend)
    span, other = (engine.prefill(prompts(engine)[0], ROOM).span for _ in range(2))
    if chain:
        (got,) = engine.greedy([(span, TOKENS[:1], 3)])
        assert engine.greedy([(other, TOKENS[:1], 3)]) == [got]
    else:
        (got,), (expected,) = engine.run([Rows(span, TOKENS[:2])]), engine.run([Rows(other, TOKENS[:2])])
        assert torch.equal(got.logits, expected.logits)
    assert span.length == other.length
    assert decoder.graphs is None and decoder.eager == "RuntimeError: Failed to find C compiler"


def test_a_pass_without_room_says_so_and_changes_nothing(engine):
    span, small = engine.prefill(prompts(engine)[0], ROOM).span, engine.prefill(prompts(engine)[0], 1).span
    lengths = span.length, small.length
    with pytest.raises(IndexError, match="cannot take"):
        engine.run([Rows(span, TOKENS[:1]), Rows(small, TOKENS[:3])])
    assert (span.length, small.length) == lengths and engine.model.decoder.graphs is not None


def test_captured_passes_let_go_of_a_slab_before_it_grows(engine):
    span = engine.prefill(prompts(engine)[0], ROOM).span
    engine.run([Rows(span, TOKENS[:1])])
    slab, graphs = span.slab, engine.model.decoder.graphs
    assert graphs.captured
    version, seen = slab.version, []
    slab.before_move["behind the passes"] = lambda: seen.append(list(graphs.captured))
    more = engine.open(slab.capacity + 1)
    assert seen == [[]] and more.room and slab.version == version + 1


def test_a_decoder_is_freed_without_the_collector(engine):
    found = Engine(case("llava_onevision")[0])
    decoder = copy.copy(found.model.decoder)
    vars(decoder).pop("slab", None)
    decoder.graphs = ReplayedPasses(decoder, standin.attention)
    decoder.graphs.step(2, found.model.vocabulary)
    left = weakref.ref(decoder)
    gc.disable()
    try:
        del decoder
        assert left() is None
    finally:
        gc.enable()


@pytest.mark.parametrize(
    ("capability", "windows", "reason"),
    [((8, 0), (4096, None), None), ((7, 5), None, "compute capability 7.5"), ((9, 0), (4, None), "fewer than 64")],
)
def test_why_a_gpu_would_not_replay(engine, monkeypatch, capability, windows, reason):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: name)
    monkeypatch.setattr("vidspec.engine.graphs.passes.triton_problem", lambda device: None)
    decoder = engine.model.decoder
    monkeypatch.setattr(decoder, "windows", windows)
    monkeypatch.setattr(decoder, "width", 64)
    found = eager_reason(decoder)
    assert found is None if reason is None else reason in found


@pytest.mark.parametrize(("platform", "package"), [("win32", "triton-windows"), ("linux", "triton")])
def test_a_gpu_without_triton_is_told_how_to_get_it(engine, monkeypatch, platform, package):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.setattr("sys.platform", platform)
    monkeypatch.setattr(engine.model.decoder, "width", 64)
    assert eager_reason(engine.model.decoder) == f"triton is not installed: pip install {package}"


def test_a_gpu_without_a_compiler_is_told_what_triton_needs(engine, monkeypatch):
    def no_compiler(rows):
        raise RuntimeError("Failed to find C compiler.\nPlease specify via CC")

    pytest.importorskip("triton", reason="Triton, which comes with torch for GPUs, is not installed")
    monkeypatch.setattr("vidspec.engine.kernel_elementwise.silu_product", no_compiler)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.setattr("vidspec.engine.graphs.passes.triton_problem", triton_problem.__wrapped__)
    monkeypatch.setattr(engine.model.decoder, "width", 64)
    reason = eager_reason(engine.model.decoder)
    assert reason.startswith("triton runs no kernel (RuntimeError: Failed to find C compiler.): install a C compiler")


@pytest.mark.sample(full=1)
@pytest.mark.full
def test_memory_that_captures_keep_is_known_before(engine, monkeypatch):
    """Logits and last states of each captured pass; nothing more once passes and chains are captured."""
    graphs, decoder = engine.model.decoder.graphs, engine.model.decoder
    assert graphs.bytes_to_capture == 0  # nothing is captured on a CPU
    monkeypatch.setattr(graphs, "_can_capture", True)
    before = graphs.bytes_to_capture
    kept = []
    for count in (8, 16, 32, 64, 128, 256, 512):
        step = GraphStep(decoder, count, engine.model.vocabulary, standin.attention)
        with torch.inference_mode():
            step()
        kept.append(step.logits.untyped_storage().nbytes() + step.hidden.nbytes)
    assert sum(kept) < before < 3 * sum(kept) + 512 * decoder.pass_width * 4
    graphs._steps |= {(8, False): None, (1, True): None}
    assert graphs.bytes_to_capture == 0
    graphs.clear()


@pytest.fixture
def sliding(monkeypatch):
    """Full attention in the first block, windows of 64 tokens in the others; sequences before, at and behind a
    window's end."""
    config = Qwen2Config(**{**SIZE, "use_sliding_window": True, "max_window_layers": 1, "sliding_window": 64})
    torch.manual_seed(0)
    model = Qwen2ForCausalLM(config).eval().requires_grad_(False)
    found = engine_of(model, "fused")
    assert found.model.decoder.windows == (None, 64, 64)
    spans = [found.open(ROOM + length) for length in (150, 61, 20)]
    for span, length in zip(spans, (150, 61, 20), strict=True):
        found.run([Rows(span, [7 * place % 97 for place in range(length)])])
    monkeypatch.setattr(found.model.decoder, "graphs", ReplayedPasses(found.model.decoder, standin.attention))
    return found, spans


def test_rows_see_as_far_back_as_in_the_usual_pass(sliding):
    engine, (far, near, none) = sliding
    tokens = [token % 97 for token in TOKENS]
    for span in (far, near, none):
        poison(span)
    check(engine, [Rows(far, tokens[:6]), Rows(near, tokens[:6]), Rows(none, tokens[:1])])
    check(engine, [Rows(near, tokens[:6], TREE), Rows(far, tokens[:6], TREE), Rows(none, tokens[:8])])
    check(engine, [Rows(far, tokens[6:8], [*TREE, 3, 5]), Rows(near, (tokens * 8)[:64])])
    lengths = [span.length for span in (far, near, none)]
    found = []
    for graphs in (engine.model.decoder.graphs, None):
        for span, length in zip((far, near, none), lengths, strict=True):
            span.rollback(length)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(engine.model.decoder, "graphs", graphs)
            found.append(engine.greedy([(far, [3, 4], 5), (none, [5], 3)]))
            found.append([span.length for span in (far, near, none)])
    assert found[:2] == found[2:]


def test_a_chain_is_what_passes_in_turn_give(engine):
    prompt = prompts(engine)[1]
    for fed, gamma in ((TOKENS[:1], 1), (TOKENS[:1], 6), (TOKENS[:2], 1), (TOKENS[:3], 5)):
        one, other = engine.prefill(prompt, 8).span, engine.prefill(prompt, 8).span
        poison(one)
        (got,) = engine.greedy([(one, fed, gamma)])
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(engine.model.decoder, "graphs", None)
            assert [got] == engine.greedy([(other, fed, gamma)])
        assert one.length == other.length == prompt.length + len(fed) + gamma - 1
        check(engine, [Rows(one, TOKENS[:1])])
        with pytest.raises(IndexError, match="cannot take"):
            engine.greedy([(one, TOKENS[:2], 8)])


@pytest.mark.sample(quick=1)
@pytest.mark.parametrize("gammas", [(4, 4, 4), (5, 1, 3)])
def test_chains_of_several_clips_are_fed_on_the_device(engine, gammas):
    """One reading for all of their tokens, and no row moves on behind its chain's end."""
    batch, again = (
        [
            (engine.prefill(prompt, 12).span, TOKENS[: 1 + at], gamma)
            for at, (prompt, gamma) in enumerate(zip(prompts(engine), gammas, strict=True))
        ]
        for _ in range(2)
    )
    for span, _, _ in batch:
        poison(span)
    got = engine.greedy(batch)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine.model.decoder, "graphs", None)
        assert got == engine.greedy(again) and list(map(len, got)) == list(gammas)
    assert [span.length for span, _, _ in batch] == [span.length for span, _, _ in again]
    check(engine, [Rows(span, TOKENS[:2]) for span, _, _ in batch])


def test_a_slab_that_moved_is_followed(engine):
    span = engine.prefill(prompts(engine)[0], ROOM).span
    check(engine, [Rows(span, TOKENS[:1])])
    version = span.slab.version
    held = engine.open(span.slab.capacity + 1)
    assert span.slab.version > version and held.room > 0
    check(engine, [Rows(span, TOKENS[1:2])])


def test_what_is_not_taken(engine):
    prompt = prompts(engine)[0]
    span = engine.prefill(prompt, ROOM).span
    take = engine.model.decoder.graphs.is_replayable
    assert take([Rows(span, [1])])
    assert not take([Rows(span, [1]), Rows(engine.open(99), prompt=prompt, stretch=(0, prompt.length))])
    assert not take([Rows(PrunedSpan(span.slab, 9), [1])])  # its layers have different entries
    assert make_graphs(engine.model.decoder) is None  # on a CPU


class Sizes(TorchDispatchMode):
    """Every operation with the shapes it gives; refuses what reads a tensor back or has a size by its contents."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.overloadpacket.__name__
        assert name not in ("_local_scalar_dense", "item", "nonzero", "unique", "masked_select"), name
        assert torch.Tag.data_dependent_output not in func.tags, name
        # A number among its arguments would be copied to a device.
        assert name != "where" or all(one.ndim for one in tree_leaves(args) if isinstance(one, torch.Tensor))
        masked = any(one.dtype is torch.bool for one in tree_leaves(args[1:]) if isinstance(one, torch.Tensor))
        assert torch.Tag.dynamic_output_shape not in func.tags or (name == "index" and not masked), name
        out = func(*args, **(kwargs or {}))
        self.seen.append((name, [tuple(one.shape) for one in tree_leaves(out) if isinstance(one, torch.Tensor)]))
        return out


@torch.inference_mode()
def test_a_pass_reads_nothing_back_and_its_sizes_do_not_depend_on_lengths(engine):
    graphs, vocabulary = engine.model.decoder.graphs, engine.model.vocabulary
    spans = [engine.prefill(prompt, ROOM).span for prompt in prompts(engine)]
    seen = []
    for spent in (0, 7, 30):
        step, replay = graphs.step(4, vocabulary)
        spans[0].length += spent
        batch = [(span, span.length, TOKENS[:count], None) for span, count in zip(spans, (2, 1), strict=False)]
        step.table.copy_(torch.from_numpy(table_columns(batch, engine.model.decoder.axes, step.idle)))
        with Sizes() as sizes:
            replay()
        seen.append(sizes.seen)
    assert seen[0] == seen[1] == seen[2] and len(seen[0]) > 50
    sampling = Sampling(0.8, 0.9, 20, 0.1)
    chain = graphs.step(4, vocabulary, chained=True)[0]
    for done in (step, chain):
        cuts = SamplingCuts.of([sampling, Sampling(0.8, 0.9), Sampling(0.8)])
        _, choose = graphs.choice(done, ChoiceKind(cuts, True, not done.chained, 4 * (not done.chained)))
        with Sizes() as sizes:
            choose()
        assert len(sizes.seen) > 30


def test_such_a_reading_would_be_seen():
    with Sizes(), pytest.raises(AssertionError, match="_local_scalar_dense"):
        int(torch.ones(1))


class RecordedGraphs:
    """CUDA's graphs as far as a pass touches them: capturing computes nothing, a replay runs the pass."""

    def __init__(self, patch):
        self.done, self.choices, self.pools, self.pooled, self.capturing = [], [], 0, None, None
        patch.setattr(torch.cuda, "current_stream", lambda: self)
        patch.setattr(torch.cuda, "Stream", lambda: self)
        patch.setattr(torch.cuda, "stream", lambda stream: nullcontext())
        patch.setattr(torch.cuda, "graph_pool_handle", self.pool)
        patch.setattr(torch.cuda, "CUDAGraph", SimpleNamespace)
        patch.setattr(torch.cuda, "graph", self.capture)
        for kind in (GraphStep, ChoiceStep):
            patch.setattr(kind, "__call__", lambda step, call=kind.__call__: self.run(step, call))

    def wait_stream(self, other):
        pass

    def pool(self):
        self.pools += 1
        return self.pools

    @contextmanager
    def capture(self, graph, pool, stream, *, capture_error_mode):
        self.capturing, self.pooled = graph, pool
        yield
        self.capturing = None

    def run(self, step, call):
        done = self.done if isinstance(step, GraphStep) else self.choices
        if self.capturing is None:
            done.append(f"ran {step.count}")
            return call(step)
        done.append(f"captured in {self.pooled}")
        assert torch.equal(
            *((step.table, step._idle_table) if isinstance(step, GraphStep) else (step.fields, step._idle))
        )
        self.capturing.replay = partial(self.replay, step, call, done)

    def replay(self, step, call, done):
        done.append(f"replayed {step.count}")
        call(step)


@pytest.mark.sample(full=1)
@pytest.mark.full
def test_a_pass_is_captured_once_for_each_count_and_slab(engine, monkeypatch):
    graphs = engine.model.decoder.graphs
    graphs._can_capture = True
    cuda = RecordedGraphs(monkeypatch)
    span = engine.prefill(prompts(engine)[0], ROOM).span
    counts = [8, 16, 32, 64, 128, 256, 512]

    def captured(counts, pool=1):
        return [done for count in counts for done in (f"ran {count}", f"captured in {pool}")]

    check(engine, [Rows(span, TOKENS[:1])])
    assert cuda.done == [*captured(counts), "replayed 8"]  # at first use all of them: no later pass has to wait
    cuda.done.clear()
    check(engine, [Rows(span, TOKENS[:1])])
    check(engine, [Rows(span, TOKENS[:3])])
    check(engine, [Rows(span, (TOKENS * 2)[:9])])
    assert cuda.done == ["replayed 8", "replayed 8", "replayed 16"]
    cuda.done.clear()
    engine.greedy([(span, TOKENS[:2], 3)])
    assert cuda.done == [*captured([1, 2, 4, *counts]), "replayed 8", "replayed 1", "replayed 1"]
    cuda.done.clear()
    engine.open(span.slab.capacity + 1)
    check(engine, [Rows(span, TOKENS[:3])])
    assert cuda.done == [*captured(counts, 2), "replayed 8"] and sorted(graphs.captured) == counts


@pytest.mark.full
def test_memory_for_the_largest_passes_may_be_lacking(engine, monkeypatch):
    graphs = engine.model.decoder.graphs
    graphs._can_capture = True
    RecordedGraphs(monkeypatch)
    run = GraphStep.__call__

    def limited(step):
        if step.count > 32:
            raise torch.OutOfMemoryError
        run(step)

    monkeypatch.setattr(GraphStep, "__call__", limited)
    span = engine.prefill(prompts(engine)[0], ROOM).span
    check(engine, [Rows(span, TOKENS[:3])])
    assert sorted(graphs.captured) == [8, 16, 32] and engine.preparing > 0
    with pytest.raises(DeviceError, match="passes of 64 rows: no memory is left to capture them") as caught:
        engine.run([Rows(span, (TOKENS * 8)[:40])])
    assert "models.decoder: stock" in caught.value.hint and caught.value.kind == "memory"
    assert engine.model.decoder.graphs is graphs  # smaller passes are replayed still
    check(engine, [Rows(span, TOKENS[:3])])


@pytest.mark.parametrize(
    ("kv_heads", "tiles", "parts"),
    [(4, 1, 64), (8, 1, 32), (4, 2, 32), (4, 3, 16), (4, 16, 8), (8, 16, 8), (1, 1, 64), (32, 1, 8), (4, 32, 8)],
)
def test_keys_are_split_until_each_processor_has_two_programs(kv_heads, tiles, parts):
    assert split_count(kv_heads, tiles, 132) == parts
    assert parts in (8, 64) or 2**0.5 * 132 <= kv_heads * tiles * parts <= 2**1.5 * 132


def test_a_token_and_a_window_are_one_pass_to_the_device(engine):
    """As many rows, and keys that are split alike: each row is computed alike, whatever the others are."""
    span, again = (engine.prefill(prompts(engine)[1], ROOM).span for _ in range(2))
    rows = []
    for token in TOKENS[:6]:
        (one,) = engine.run([Rows(again, [token])])
        rows.append(one.logits[0])
    (window,) = engine.run([Rows(span, TOKENS[:6])])
    assert set(engine.model.decoder.graphs.captured) == {8}
    assert torch.equal(window.logits.argmax(-1), torch.stack(rows).argmax(-1))
    torch.testing.assert_close(window.logits, torch.stack(rows), **CLOSE)


RULES = {
    "drawn": (None, Sampling(0.8, 0.9)),
    "penalised": (Penalties(1.3, 0.5), None),
    "both": (Penalties(1.3, 0.5), Sampling(0.8, 0.9, 20)),
    "runs": (Penalties(no_repeat_ngram=2), None),
}


@pytest.mark.full
@pytest.mark.sample(quick=1, full=5)
@pytest.mark.parametrize("kind", RULES)
def test_chains_chosen_on_the_device_are_those_of_passes_that_are_read_one_by_one(engine, kind):
    """Several clips with windows of different lengths; runs of tokens need the host."""
    penalties, sampling = RULES[kind]
    gammas, chains = (3, 5, 4), [[], []]
    for way in chains:
        for prompt, gamma in zip(prompts(engine), gammas, strict=False):
            history = penalties and PenaltyHistory(penalties, TOKENS)
            way.append(
                Chain(engine, engine.prefill(prompt, ROOM).span, TOKENS[:2], gamma, history=history, path=[60],
                      sampling=sampling, uniforms=[0.3, 0.9, 0.1, 0.7, 0.5][:gamma])
            )  # fmt: skip
    mine, theirs = chains
    found = engine.chain([(one.span, one.token_ids, one.gamma) for one in mine], [one.rule for one in mine])
    for one in theirs:
        one.run()
    if kind == "runs":
        assert found is None and all(
            one.span.length < other.span.length for one, other in zip(mine, theirs, strict=True)
        )
        return
    assert [tokens for tokens, _ in found] == [one.answer for one in theirs]
    assert [one.span.length for one in mine] == [one.span.length for one in theirs]
    for (_, probs), one in zip(found, theirs, strict=True):
        assert (probs is None) == (sampling is None)
        if probs is not None:
            torch.testing.assert_close(probs, torch.cat(one.probs), rtol=1e-3, atol=1e-5)


def verified(engine, spans, penalties, sampling, drafted):
    """Windows that drafts have drawn and greedy trees after texts, of clips with and without rules."""
    batch = []
    for at, span in enumerate(spans):
        tokens, parents = ([60, 41, 77, 77], None) if at != 1 else ([60, 3, 5, 9, 9, 2], TREE)
        history = penalties and at < 2 and PenaltyHistory(penalties, TOKENS)
        changes = None
        if history:
            history.add([38, 60])
            paths = [()]
            for node, token in enumerate(tokens[1:], 1):
                paths.append((*paths[node - 1 if parents is None else parents[node]], token))
            changes = history.changes_for_paths(paths)
        draw = None
        if sampling and at != 2:
            probs = drafted if at == 0 else None
            draw = DrawRule(sampling[at], (0.3, 0.9, 0.1, 0.7, 0.5, 0.2)[: len(tokens)], probs, keeps_probs=True)
        batch.append(Rows(span, tokens, parents, draw=draw, processor=changes, top=3 * (at == 2)))
    return batch


@pytest.mark.sample(full=1)
@pytest.mark.full
@pytest.mark.parametrize("kind", ["both", "drawn", "penalised"])
def test_windows_are_chosen_in_the_replayed_pass_as_outside(engine, monkeypatch, kind):
    """Clips are sampled differently, or not; the second replay writes over the first one's tensors."""
    penalties, _ = RULES[kind]
    sampling = (Sampling(0.8, 0.9), Sampling(1.3, 1.0, 20, 0.02)) if kind != "penalised" else None
    graphs = engine.model.decoder.graphs
    graphs._can_capture, cuda = True, RecordedGraphs(monkeypatch)
    spans = [engine.prefill(prompt, ROOM).span for prompt in prompts(engine)]
    drafted = torch.rand(3, engine.model.vocabulary, generator=torch.Generator().manual_seed(4)) ** 20
    drafted /= drafted.sum(-1, keepdim=True)
    got = engine.run(verified(engine, spans, penalties, sampling, drafted))
    assert cuda.choices == ["ran 16", "captured in 1", "replayed 16"]
    again = [engine.prefill(prompt, ROOM).span for prompt in prompts(engine)]
    engine.run([Rows(span, TOKENS[:5]) for span in again])
    for span in again:
        span.rollback(span.length - 5)
    engine.run(verified(engine, again, penalties and Penalties(2.0), sampling and sampling[::-1], drafted.flip(0)))
    assert cuda.choices[-1] == "replayed 16" and cuda.choices.count("captured in 1") <= 3
    for span in again:
        span.rollback(span.length - (6 if span is again[1] else 4))
    monkeypatch.setattr("vidspec.engine.graphs.passes.window_kind", lambda batch: None)
    expected = engine.run(verified(engine, again, penalties, sampling, drafted))
    for one, other in zip(got, expected, strict=True):
        assert (one.chosen, one.likeliest, one.finite) == (other.chosen, other.likeliest, other.finite)
        assert [ids for ids, _ in one.top] == [ids for ids, _ in other.top]
        torch.testing.assert_close(one.logits, other.logits, **CLOSE)
        assert (one.probs is None) == (other.probs is None)
        if one.probs is not None:
            torch.testing.assert_close(one.probs, other.probs, rtol=1e-3, atol=1e-5)


def test_windows_of_a_flat_distribution_are_drawn_from_exactly(engine, monkeypatch):
    monkeypatch.setattr("vidspec.engine.sampling.PREFIX", 1)
    span = engine.prefill(prompts(engine)[0], ROOM).span
    rule = DrawRule(Sampling(20.0, 0.99), (0.9, 0.4), keeps_probs=True)
    (got,) = engine.run([Rows(span, TOKENS[:2], draw=rule)])
    torch.testing.assert_close(got.probs, rule.sampling.distribution(got.logits))
    expected = [int((row.cumsum(-1) <= u * row.sum()).sum()) for row, u in zip(got.probs, rule.uniforms, strict=True)]
    assert got.chosen == expected and (got.probs > 0).sum(-1).min() > 1


@pytest.mark.full
def test_captured_choices_are_dropped_all_together(engine, monkeypatch):
    """A graph that is released alone frees memory that others of its pool still use."""
    graphs = engine.model.decoder.graphs
    monkeypatch.setattr("vidspec.engine.graphs.passes._MOST_CHOICES", 2)
    span = engine.prefill(prompts(engine)[0], ROOM).span
    graphs.clear()
    kept = []
    for sampling in (Sampling(0.5), Sampling(0.5, 0.9), Sampling(0.5, 0.9, 4), Sampling(0.5, 0.9, 4, 0.1)):
        engine.run([Rows(span, [1], draw=DrawRule(sampling, (0.5,)))])
        kept.append(len(graphs._choices))
    assert max(kept) == 2 and 1 in kept[2:]


def test_a_chain_of_a_flat_distribution_is_drawn_pass_by_pass(engine, monkeypatch):
    monkeypatch.setattr("vidspec.engine.sampling.PREFIX", 1)
    span = engine.prefill(prompts(engine)[0], ROOM).span
    length = span.length
    assert engine.chain([(span, TOKENS[:2], 3)], [ChainRule(None, (), Sampling(2.0, 0.99), [0.1] * 3)]) is None
    assert span.length == length
