import math

import pytest
import torch

from tests.checkpoints.llava_onevision import HEADS, KV_HEADS, LAYERS, TIED, pixels, stock
from tests.engine.passing import forward
from vidspec.engine.rows import Rows
from vidspec.engine.taps import Taps, language_to_video_attention

FRAMES = 2


@pytest.fixture(scope="module")
def reference(prefix):
    """The library's own pass with eager attention, which returns its weights."""
    with torch.inference_mode():
        return stock(TIED, "eager")(
            input_ids=prefix.token_ids[None],
            pixel_values_videos=pixels(FRAMES).values[None],
            output_attentions=True,
            output_hidden_states=True,
            use_cache=False,
        )


def watch(prefix, **options):
    return Taps(rows=prefix.text_rows_after_video, visual=prefix.visual.index, **options)


def literal(query, key, rows, visual, scaling, keys="all"):
    """SpecVLM Eq. 4 (or HIPPO Eq. 2), one number at a time: the mean over text rows, of a KV head's heads the sum."""
    heads, kv_heads = query.shape[1], key.shape[1]
    groups = heads // kv_heads
    found = [[0.0] * len(visual) for _ in range(kv_heads)]
    for head in range(heads):
        for row in rows:
            scores = [
                sum(float(a) * float(b) for a, b in zip(query[0, head, row], key[0, head // groups, at], strict=True))
                for at in range(row + 1)
            ]
            weights = [math.exp(score * scaling - max(scores) * scaling) for score in scores]
            if keys == "visual":
                weights = [weight if at in visual else 0.0 for at, weight in enumerate(weights)]
            for place, at in enumerate(visual):
                found[head // groups][place] += (weights[at] / sum(weights) if at <= row else 0.0) / len(rows)
    return torch.tensor(found)


@pytest.mark.parametrize("keys", ["all", "visual"])
@pytest.mark.parametrize("heads, kv_heads", [(1, 1), (4, 2), (6, 2), (4, 1), (3, 3)])
def test_scores_equal_a_literal_transcription(heads, kv_heads, keys):
    rng = torch.Generator().manual_seed(heads)
    query = torch.randn(1, heads, 9, 4, generator=rng) * 2
    key = torch.randn(1, kv_heads, 9, 4, generator=rng) * 2
    rows, visual = [6, 7, 8], [1, 2, 3, 5]
    got = language_to_video_attention(query, key, torch.tensor(rows), torch.tensor(visual), 0.5, keys=keys)
    assert got.dtype == torch.float32 and got.shape == (kv_heads, 4)
    torch.testing.assert_close(got, literal(query, key, rows, visual, 0.5, keys), rtol=0, atol=1e-6)
    assert (got.sum() == pytest.approx(heads, abs=1e-5)) == (keys == "visual")


def test_the_average_over_visual_keys_leaves_heads_and_blocks_as_they_are():
    rng = torch.Generator().manual_seed(6)
    layers = [(torch.randn(1, 6, 9, 4, generator=rng), torch.randn(1, 2, 9, 4, generator=rng)) for _ in range(2)]
    rows, visual = [7, 8], [1, 2, 3, 5]
    taps = Taps(torch.tensor(rows), torch.tensor(visual), True, attention_at=(1,), heads=True, keys="visual")
    for block, (query, key) in enumerate(layers):
        taps.observe_attention(block, query[0].transpose(0, 1), key, 0.5)
    own = [literal(query, key, rows, visual, 0.5, "visual") for query, key in layers]
    by_head = [literal(query, key, rows, visual, 0.5) for query, key in layers]
    torch.testing.assert_close(taps.attention_scores, sum(own).sum(0) / (6 * 2), rtol=0, atol=1e-6)
    torch.testing.assert_close(taps.block_scores[1], by_head[1].sum(0) / 6, rtol=0, atol=1e-6)
    for got, expected in zip(taps.head_scores, by_head, strict=True):
        torch.testing.assert_close(got, expected, rtol=0, atol=1e-6)


def test_taps_average_over_heads_and_layers():
    rng = torch.Generator().manual_seed(5)
    layers = [(torch.randn(1, 6, 9, 4, generator=rng), torch.randn(1, 2, 9, 4, generator=rng)) for _ in range(3)]
    rows, visual = [7, 8], [1, 2, 3, 5]
    taps = Taps(torch.tensor(rows), torch.tensor(visual), attention=True, attention_at=(0, 2), heads=True)
    for block, (query, key) in enumerate(layers):
        taps.observe_attention(block, query[0].transpose(0, 1), key, 0.5)
    by_head = [literal(query, key, rows, visual, 0.5) for query, key in layers]
    for got, expected in zip(taps.head_scores, by_head, strict=True):
        torch.testing.assert_close(got, expected, rtol=0, atol=1e-6)
    assert sorted(taps.block_scores) == [0, 2]
    for block, got in taps.block_scores.items():
        torch.testing.assert_close(got, by_head[block].sum(0) / 6, rtol=0, atol=1e-6)
    torch.testing.assert_close(taps.attention_scores, sum(by_head).sum(0) / (6 * 3), rtol=0, atol=1e-6)


def test_rows_do_not_see_what_comes_later():
    rng = torch.Generator().manual_seed(0)
    query, key = torch.randn(1, 2, 7, 4, generator=rng), torch.randn(1, 1, 7, 4, generator=rng)
    rows, visual = torch.tensor([2, 6]), torch.tensor([1, 4])
    before = language_to_video_attention(query, key, rows, visual, 0.5)
    key[:, :, 3:] += 5
    only_first = language_to_video_attention(query, key, rows[:1], visual, 0.5)
    assert only_first[0, 1] == 0
    torch.testing.assert_close(before, literal(query, key - (torch.arange(7) > 2)[:, None] * 5, [2, 6], [1, 4], 0.5))


def test_scores_of_half_precision_are_float32():
    query, key = torch.randn(1, 2, 5, 4).bfloat16(), torch.randn(1, 1, 5, 4).bfloat16()
    got = language_to_video_attention(query, key, torch.tensor([4]), torch.tensor([0, 1]), 0.5)
    assert got.dtype == torch.float32
    torch.testing.assert_close(got, literal(query, key, [4], [0, 1], 0.5), rtol=0, atol=1e-6)


def test_scores_equal_the_librarys_attention_weights(engine, prefix, reference):
    taps = watch(prefix, attention=True)
    engine.prefill(prefix, 4, taps)
    weights = torch.stack(reference.attentions)[:, 0]  # layers, heads, rows, keys
    assert weights.shape == (LAYERS, HEADS, prefix.length, prefix.length)
    after = int(prefix.visual.index[-1]) + 1
    expected = weights[:, :, after:].mean((0, 1, 2))[prefix.visual.index]
    torch.testing.assert_close(taps.attention_scores, expected, rtol=0, atol=1e-6)
    assert expected.std() > 1e-3  # the weights are not all alike: mixing up tokens would be seen


def test_scores_by_head_equal_the_librarys_attention_weights(engine, prefix, reference):
    taps = watch(prefix, heads=True)
    engine.prefill(prefix, 4, taps)
    after = int(prefix.visual.index[-1]) + 1
    assert len(taps.head_scores) == LAYERS
    for got, weights in zip(taps.head_scores, reference.attentions, strict=True):
        # The library repeats each KV head for its group of neighbouring query heads.
        groups = weights[0, :, after:].mean(1)[:, prefix.visual.index].unflatten(0, (KV_HEADS, HEADS // KV_HEADS))
        torch.testing.assert_close(got, groups.sum(1), rtol=0, atol=1e-6)
        assert (got[0] - got[1]).abs().max() > 1e-3  # heads taken for each other would be seen


def test_hidden_states_equal_the_librarys(engine, prefix, reference):
    taps = watch(prefix, hidden=range(LAYERS + 1))
    engine.prefill(prefix, 4, taps)
    assert sorted(taps.states) == list(range(LAYERS + 1))
    for block in range(LAYERS):
        torch.testing.assert_close(taps.states[block], reference.hidden_states[block][0], rtol=0, atol=1e-4)
    last = engine.model.language.norm(taps.states[LAYERS])  # the library's last one is behind the final norm
    torch.testing.assert_close(last, reference.hidden_states[LAYERS][0], rtol=0, atol=1e-4)
    assert torch.equal(taps.states[0], prefix.embeds[0])


def test_only_what_was_asked_for(engine, prefix):
    taps = watch(prefix, hidden=(2,))
    engine.prefill(prefix, 4, taps)
    assert sorted(taps.states) == [2] and taps.states[2].shape == (prefix.length, 64)
    assert not taps.head_scores and not taps.block_scores
    with pytest.raises(ValueError, match="not observed"):
        _ = taps.attention_scores


def test_taps_change_nothing(engine, prefix):
    plain = engine.prefill(prefix, 4)
    watched = engine.prefill(prefix, 4, watch(prefix, attention=True, heads=True, hidden=range(LAYERS)))
    assert torch.equal(plain.logits, watched.logits)
    reads = [span.slab.layers(span.start, span.start + span.length) for span in (plain.span, watched.span)]
    assert all(torch.equal(one, other) for one, other in zip(*reads, strict=True))
    one, other = forward(engine, plain, [300, 41]), forward(engine, watched, [300, 41])
    assert torch.equal(one.logits, other.logits)


def test_taps_end_with_the_prefill(engine, prefix):
    taps = watch(prefix, attention=True, hidden=(0, LAYERS))
    state = engine.prefill(prefix, 4, taps)
    scores, before = taps.attention_scores.clone(), {at: kept.clone() for at, kept in taps.states.items()}
    forward(engine, state, [300, 41])
    assert torch.equal(taps.attention_scores, scores)
    assert all(torch.equal(taps.states[at], kept) for at, kept in before.items())


def read_in(engine, prefix, taps, *ends):
    """Read a prompt in stretches that end there; what each pass saw of ``taps``."""
    span, start = engine.open(prefix.length + 4, prefix.next_position - prefix.length), 0
    for end in ends:
        engine.run([Rows(span, prompt=prefix, stretch=(start, end), taps=taps)])
        start = end
    return span


EVERYTHING = {"hidden": (0, 2), "attention_at": (1,)}


@pytest.mark.parametrize("options", [{"hidden": (0, 2)}, {"attention_at": (1,)}, EVERYTHING], ids=str)
def test_signals_are_ready_once_they_cover_every_row(engine, prefix, options):
    whole, seen = watch(prefix, **options), []
    engine.prefill(prefix, 4, whole)

    def ready():
        seen.append({block: len(rows) for block, rows in taps.states.items()})
        assert all(torch.isfinite(scores).all() for scores in taps.block_scores.values())

    taps = watch(prefix, ready=ready, **options)
    read_in(engine, prefix, taps, 5, prefix.length - 3)
    assert not seen
    read_in(engine, prefix, watch(prefix), 3)  # another prompt
    assert not seen and not taps.block_scores
    taps = watch(prefix, ready=ready, **options)
    read_in(engine, prefix, taps, 5, prefix.length - 3, prefix.length)
    assert seen == [{block: prefix.length for block in options.get("hidden", ())}] and taps.error is None
    for block, rows in whole.states.items():
        torch.testing.assert_close(taps.states[block], rows, rtol=0, atol=1e-5)
    for block, scores in whole.block_scores.items():
        torch.testing.assert_close(taps.block_scores[block], scores, rtol=0, atol=1e-6)


@pytest.mark.parametrize("again", [(5, 25), (5, 29), (5, 12)], ids=str)
def test_a_pass_that_is_run_again_observes_nothing_twice(engine, prefix, again, monkeypatch):
    """It failed behind the blocks that were observed, and comes again with as many rows, with more or with fewer."""
    options = {"attention": True, "heads": True, **EVERYTHING}
    whole, taps = watch(prefix, **options), watch(prefix, **options)
    engine.prefill(prefix, 4, whole)
    span = read_in(engine, prefix, taps, 5)
    with monkeypatch.context() as patch:
        patch.setattr(engine.model.decoder, "norm", lambda rows: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            engine.run([Rows(span, prompt=prefix, stretch=(5, 25), taps=taps)])
    assert span.length == 5
    engine.run([Rows(span, prompt=prefix, stretch=again, taps=taps)])
    engine.run([Rows(span, prompt=prefix, stretch=(again[1], prefix.length), taps=taps)])
    for block, rows in whole.states.items():
        assert taps.states[block].shape == rows.shape
        torch.testing.assert_close(taps.states[block], rows, rtol=0, atol=1e-5)
    torch.testing.assert_close(taps.attention_scores, whole.attention_scores, rtol=0, atol=1e-6)
    torch.testing.assert_close(taps.block_scores, whole.block_scores, rtol=0, atol=1e-6)
    torch.testing.assert_close(taps.head_scores, whole.head_scores, rtol=0, atol=1e-6)


def test_what_a_reader_of_signals_raises_ends_its_own_prompt(engine, prefix):
    """The pass goes on for the others in it."""
    calls = []

    def ready():
        calls.append(1)
        raise LookupError("no tokens")

    taps = watch(prefix, hidden=(0, 1), ready=ready)
    reading = engine.start_prefill(prefix, 4, taps)
    other = engine.open(prefix.length + 4, 0)
    passed = engine.run([reading.rows(prefix.length), Rows(other, prompt=prefix, stretch=(0, prefix.length))])
    assert other.length == prefix.length and calls == [1]
    with pytest.raises(LookupError, match="no tokens"):
        reading.add_result(passed[0])
