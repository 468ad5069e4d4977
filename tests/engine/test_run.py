"""The one door: sequences in one pass get what each would get alone, and what the stock model gives."""

from dataclasses import replace

import pytest
import torch

from tests.engine.families import FAMILIES, case, stock_logits
from tests.engine.passing import forward, poison
from vidspec.engine import forward as door
from vidspec.engine.forward import Engine
from vidspec.engine.rows import PrefillResult, Rows
from vidspec.engine.taps import Taps
from vidspec.errors import ModelError

CLOSE = {"rtol": 0, "atol": 4e-5}  # of logits up to 4: 1e-5 of the largest
TOKENS = [40, 41, 77, 77, 60, 123, 38, 90]
ROOM = 24


def prompts(model, whole):
    return [
        model.text_prefix(model.template.ids_with_text("\n", "Describe the video.")),
        whole,
        whole.keep(torch.tensor([0, 3, 4, 11])),
        model.text_prefix(model.template.ids_with_text("image: a red circle moves", "Describe the video.")),
    ]


@pytest.fixture(scope="module", params=FAMILIES)
def several(request):
    """The engine and four prompts of unequal length."""
    model, whole = case(request.param)
    found = prompts(model, whole)
    assert len({prefix.length for prefix in found}) >= 3
    return Engine(model), found


@torch.inference_mode()
def alone(engine, prefix, token_ids):
    read = engine.prefill(prefix, ROOM)
    return torch.cat([read.logits[None], forward(engine, read, token_ids).logits])


@pytest.mark.sample(quick=3)
def test_a_prompt_and_a_window_equal_the_stock_models_forward(several):
    engine, found = several
    for prefix in found:
        torch.testing.assert_close(alone(engine, prefix, TOKENS), stock_logits(engine.model, prefix, TOKENS), **CLOSE)


@pytest.mark.sample(quick=9)
@pytest.mark.parametrize("chunks", [[8], [1] * 8, [3, 1, 2, 2]], ids=str)
def test_sequences_in_one_pass_equal_each_alone(several, chunks):
    engine, found = several
    expected = torch.stack([alone(engine, prefix, TOKENS)[1:] for prefix in found])
    reads = [engine.prefill(prefix, ROOM) for prefix in found]
    for read in reads:
        poison(read)
    parts, rest = [], TOKENS
    for chunk in chunks:
        passed = engine.run([Rows(read.span, rest[:chunk]) for read in reads])
        parts.append(torch.stack([one.logits for one in passed]))
        rest = rest[chunk:]
    got = torch.cat(parts, dim=1)
    torch.testing.assert_close(got, expected, **CLOSE)
    assert torch.equal(got.argmax(-1), expected.argmax(-1))
    apart = (expected[:, None] - expected[None]).abs().amax((-1, -2)) + torch.eye(len(found)) * 9
    assert apart.min() > 0.02  # the prompts must matter, or the test says nothing


@pytest.mark.sample(quick=3)
def test_rows_of_every_kind_share_a_pass(several):
    """A whole prompt, a chunk of one, a single token, a window and a tree."""
    engine, found = several
    text, whole, pruned, other = found
    expected = [alone(engine, prefix, TOKENS[:4]) for prefix in found]
    single, window, tree = engine.prefill(text, ROOM), engine.prefill(pruned, ROOM), engine.prefill(other, ROOM)
    chunked = engine.open(whole.length + ROOM, whole.next_position - whole.length)
    half = whole.length // 2
    engine.run([Rows(chunked, prompt=whole, stretch=(0, half))])
    fresh = engine.open(text.length + ROOM, text.next_position - text.length)
    passed = engine.run(
        [
            Rows(chunked, prompt=whole, stretch=(half, whole.length)),
            Rows(single.span, TOKENS[:1]),
            Rows(fresh, prompt=text, stretch=(0, text.length)),
            Rows(window.span, TOKENS[:4]),
            Rows(tree.span, [TOKENS[0], TOKENS[1], 5, TOKENS[2]], [-1, 0, 0, 1]),
        ]
    )
    torch.testing.assert_close(passed[0].logits, expected[1][:1], **CLOSE)
    torch.testing.assert_close(passed[1].logits, expected[0][1:2], **CLOSE)
    torch.testing.assert_close(passed[2].logits, expected[0][:1], **CLOSE)
    torch.testing.assert_close(passed[3].logits, expected[2][1:], **CLOSE)
    torch.testing.assert_close(passed[4].logits[[0, 1, 3]], expected[3][1:4], **CLOSE)
    tree.span.gather(other.length, [0, 1, 3])
    poison(tree)
    # All go on, in one pass again.
    passed = engine.run([Rows(chunked, TOKENS[:4]), Rows(tree.span, TOKENS[3:4]), Rows(single.span, TOKENS[1:4])])
    torch.testing.assert_close(passed[0].logits, expected[1][1:], **CLOSE)
    torch.testing.assert_close(passed[1].logits, expected[3][4:], **CLOSE)
    torch.testing.assert_close(passed[2].logits, expected[0][2:], **CLOSE)


def test_a_neighbour_of_nan_changes_nothing(several):
    engine, found = several
    expected = alone(engine, found[1], TOKENS[:2])[1:]
    mine, bad = engine.prefill(found[1], ROOM), engine.prefill(found[0], ROOM)
    with torch.inference_mode():
        for layer in bad.span.slab.layers(bad.span.start, bad.span.start + bad.span.length):
            layer.fill_(float("nan"))
    passed = engine.run([Rows(bad.span, TOKENS[:3]), Rows(mine.span, TOKENS[:2])])
    assert not passed[0].logits.isfinite().any()
    torch.testing.assert_close(passed[1].logits, expected, **CLOSE)


@pytest.mark.parametrize("kind", ["fused", "stock"])
def test_passes_over_a_prompt_are_short_on_a_cpu(kind, monkeypatch):
    """By the size of the model alone: the same text whatever the time."""
    model, whole = case("llava_onevision")
    model.prepare(kind, packed=False)
    engine = Engine(model)
    prefix = max(prompts(model, whole), key=lambda one: one.length)
    numbers = sum(weight.numel() for weight in model.language.layers.parameters() if weight.dim() == 2)
    assert engine.chunk == door.CHUNK and model.decoder.numbers == numbers
    whole_pass = engine.prefill(prefix, ROOM)
    monkeypatch.setattr(door, "_FEWEST", 8)
    monkeypatch.setattr(door, "_PRODUCTS", 16 * numbers)
    sizes, run = [], Engine.run
    monkeypatch.setattr(Engine, "run", lambda self, batch: sizes.append(sum(map(len, batch))) or run(self, batch))
    torch.testing.assert_close(engine.prefill(prefix, ROOM).logits, whole_pass.logits, **CLOSE)
    assert sizes == [16] * (prefix.length // 16) + [prefix.length % 16] * (prefix.length % 16 > 0)
    assert door.prefill_chunk(torch.device("cpu"), 10**12) == 8
    assert door.prefill_chunk(torch.device("cuda"), 10**12) == door.CHUNK
    model.prepare(packed=False)  # other tests have this model


@pytest.mark.sample(quick=6)
@pytest.mark.parametrize("chunk", [7, 64])
def test_a_prompt_in_chunks(several, chunk, monkeypatch):
    """The same logits, states and signals as in one pass."""
    engine, found = several
    for prefix in found[1:3]:
        seen = []
        for size in (door.CHUNK, chunk):
            monkeypatch.setattr(door.Engine, "chunk", size)
            called = []
            taps = Taps(
                prefix.text_rows_after_video,
                prefix.visual.index,
                attention=True,
                heads=True,
                attention_at=(1,),
                hidden=(0, 1, engine.model.layers),
                ready=lambda called=called: called.append(True),
            )
            read: PrefillResult = engine.prefill(prefix, ROOM, taps, states=True)
            assert called == [True]
            seen.append((read, taps))
        (one, whole), (other, parts) = seen
        torch.testing.assert_close(other.logits, one.logits, **CLOSE)
        torch.testing.assert_close(other.visual_states, one.visual_states, **CLOSE)
        torch.testing.assert_close(parts.attention_scores, whole.attention_scores, rtol=1e-4, atol=1e-7)
        torch.testing.assert_close(parts.block_scores[1], whole.block_scores[1], rtol=1e-4, atol=1e-7)
        for at, states in whole.states.items():
            torch.testing.assert_close(parts.states[at], states, **CLOSE)
        assert len(parts.head_scores) == engine.model.layers


def test_signals_are_ready_before_the_pass_ends(several):
    """Those of an early block, while later blocks still run."""
    engine, found = several
    blocks = []
    block = engine.model.decoder.block
    prefix = found[1]

    def counted(index, *rest):
        blocks.append(index)
        return block(index, *rest)

    at = []
    taps = Taps(prefix.text_rows_after_video, prefix.visual.index, hidden=(1,), ready=lambda: at.append(len(blocks)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine.model.decoder, "block", counted)
        engine.prefill(prefix, ROOM, taps)
    assert at == [1] and len(blocks) == engine.model.layers


def test_no_room(several):
    engine, found = several
    read = engine.prefill(found[0], 2)
    with pytest.raises(IndexError, match="cannot take"):
        engine.run([Rows(read.span, TOKENS[:3])])
    assert read.span.length == found[0].length
    forward(engine, read, TOKENS[:2])


@pytest.mark.parametrize("parents", [[0], [-1, 1], [-2]])
def test_a_tree_whose_nodes_come_before_their_parents(several, parents):
    engine, found = several
    read = engine.prefill(found[0], ROOM)
    with pytest.raises(ValueError, match="cannot follow"):
        engine.run([Rows(read.span, TOKENS[: len(parents)], parents)])


def test_gathered_tree_path_equals_a_fresh_run(several):
    """Siblings 1 and 2 behind token 0, then 3 behind 2: keep 0, 2, 3 and go on."""
    engine, found = several
    prefix = found[1]
    read, fresh = engine.prefill(prefix, ROOM), engine.prefill(prefix, ROOM)
    forward(engine, read, TOKENS[:4], [-1, 0, 0, 2])
    read.span.gather(prefix.length, [0, 2, 3])
    forward(engine, fresh, [TOKENS[0], TOKENS[2], TOKENS[3]])
    assert read.span.length == fresh.span.length == prefix.length + 3
    got, expected = (forward(engine, one, TOKENS[4:]).logits for one in (read, fresh))
    torch.testing.assert_close(got, expected, **CLOSE)


def test_poisoned_entries_change_nothing(several):
    """Gate of losslessness: what was rejected is never read again, in one row, in several or in a tree."""
    engine, found = several
    prefix = found[1]
    clean, dirty = engine.prefill(prefix, ROOM), engine.prefill(prefix, ROOM)
    poison(dirty)
    for read in (clean, dirty):
        forward(engine, read, [60, *TOKENS])
    for start, rows in ((3, 1), (4, 5), (5, 2), (2, 7), (0, 3)):
        logits = []
        for read in (clean, dirty):
            read.span.rollback(prefix.length + start)
            if read is dirty:
                poison(dirty)
            logits.append(forward(engine, read, TOKENS[:rows]).logits)
        assert torch.isfinite(logits[1]).all() and torch.equal(*logits)
    logits = []
    for read in (clean, dirty):
        read.span.gather(prefix.length, [0, 2])
        if read is dirty:
            poison(dirty)
        logits.append(forward(engine, read, TOKENS[:3], [-1, -1, 0]).logits)
    assert torch.equal(*logits) and torch.isfinite(logits[1]).all()


def test_poison_would_be_seen(several):
    engine, found = several
    read = engine.prefill(found[1], ROOM)
    with torch.inference_mode():
        read.span.slab.layers(read.span.start, read.span.start + read.span.length)[1][:, :, -1] = float("nan")
    assert not torch.isfinite(forward(engine, read, TOKENS[:1]).logits).all()


def test_logits_that_are_not_finite_are_an_error_of_their_sequence(several):
    """NaN in what one sequence reads, as of damaged features; its neighbour in the pass goes on."""
    engine, found = several
    broken, sound = found[1], found[0]
    embeds = broken.embeds.clone()
    embeds[0, 2] = float("nan")
    reads = [engine.start_prefill(prefix, ROOM) for prefix in (replace(broken, embeds=embeds), sound)]
    passed = engine.run([one.rows(door.CHUNK) for one in reads])
    assert [one.finite for one in passed] == [False, True]
    with pytest.raises(ModelError, match="not finite"):
        reads[0].add_result(passed[0])
    torch.testing.assert_close(reads[1].add_result(passed[1]).logits, alone(engine, sound, [1])[0], **CLOSE)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_weights_that_are_not_finite_are_an_error(several, bad, monkeypatch):
    engine, found = several
    decoder, norm = engine.model.decoder, engine.model.decoder.norm
    read = engine.prefill(found[0], ROOM)
    monkeypatch.setattr(decoder, "norm", lambda rows: norm(rows) * torch.tensor(bad))
    with pytest.raises(ModelError, match="not finite"):
        engine.prefill(found[0], ROOM)
    length = read.span.length
    with pytest.raises(ModelError, match="not finite"):
        engine.greedy([(read.span, [40], 3)])
    assert read.span.length == length


def test_a_chain_that_fails_leaves_its_sequences_as_they_were(several, monkeypatch):
    engine, found = several
    reads = [engine.prefill(prefix, ROOM) for prefix in found[:2]]
    lengths = [read.span.length for read in reads]
    expected = engine.greedy([(reads[0].span, [40, 41], 4), (reads[1].span, [77], 4)])
    for read, length in zip(reads, lengths, strict=True):
        read.span.rollback(length)
    decoder, norm, passes = engine.model.decoder, engine.model.decoder.norm, []

    def fails(rows):
        passes.append(len(rows))
        if len(passes) == 3:
            raise MemoryError
        return norm(rows)

    monkeypatch.setattr(decoder, "norm", fails)
    with pytest.raises(MemoryError):
        engine.greedy([(reads[0].span, [40, 41], 4), (reads[1].span, [77], 4)])
    assert [read.span.length for read in reads] == lengths
    assert [engine.greedy([(reads[0].span, [40, 41], 4)])[0], engine.greedy([(reads[1].span, [77], 4)])[0]] == expected
