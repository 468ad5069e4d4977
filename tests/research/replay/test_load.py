"""Many clips at once: formulas by hand, their limits, and sizes counted from configs."""

from dataclasses import replace

import pytest

from research.prediction.sheets import DataSheet
from research.replay import load
from research.replay.load import PAIRS, Assumed, memory, pass_seconds, read_seconds, throughput
from research.replay.whatif import best_chain, chain_speedup
from research.sizes import DEVICES, MODELS, SIZES, Model, Size, Tower
from vidspec.models.known_pairs import known_pairs

H100, H200 = DEVICES["h100"], DEVICES["h200"]
FULL = Assumed(decode_use=1.0, prefill_use=1.0)
KNOWN = {model.name: model for pair in known_pairs() for model in (pair.target, pair.draft) if model is not None}

#: 2 layers of 4 heads, 2 of them for keys, of 2 numbers; a tower of 3 blocks, 1 of which sees the whole frame.
SMALL = Model(Size(2, 8, 4, 2, 16, 10), Tower(3, 4, 8, 2, 12, 9, 3, 1, 1, 8, 8))
BLOCKS = 2 * (8 * 16 + 16 + 8 * 8 + 3 * 8 * 16 + 16) + 8
TOWER = 3 * (4 * 16 + 2 * 32) + 48
BEHIND = 4 * 8 + 8 * 8


@pytest.mark.parametrize("name", MODELS)
def test_parameters_of_published_models(name):
    assert MODELS[name].parameters == pytest.approx(KNOWN[name].parameters, rel=0.01)
    assert MODELS[name].language.kv_per_token == KNOWN[name].kv_per_token


def test_language_parameters_are_those_of_the_cards():
    """Qwen2.5's cards: 7.61, 32.5 (32.8 with what is not rounded) and 3.09 billion; 6.53 of 7B without embeddings."""
    assert SIZES["7B"].parameters == pytest.approx(7.61e9, rel=0.01)
    assert SIZES["7B"].blocks == pytest.approx(6.53e9, rel=0.01)
    assert SIZES["32B"].parameters == pytest.approx(32.5e9, rel=0.01)
    assert SIZES["3B"].parameters == SIZES["3B"].read == pytest.approx(3.09e9, rel=0.01)


def test_sizes_by_hand():
    language, tower = SMALL.language, SMALL.tower
    assert (language.blocks, language.read, language.parameters) == (BLOCKS, BLOCKS + 80, BLOCKS + 160)
    assert language.kv_per_token == 2 * 2 * 2 * 2
    assert language.prefill_flops(5) == 2 * BLOCKS * 5 + 2 * 2 * 8 * 25 + 2 * 80
    assert tower.parameters == TOWER + BEHIND
    assert tower.flops == 9 * (2 * TOWER + 4 * (2 * 3 + 9) * 4 + 2 * BEHIND)


def test_a_pass_is_as_slow_as_bytes_or_arithmetic():
    assumed, read = replace(FULL, decode_use=0.5), 2 * (BLOCKS + 80)
    device = DataSheet("toy", 100.0, 1e9, 1e9)
    assert pass_seconds(SMALL, device, assumed, 3, 2, 40) == pytest.approx((read + 3 * 40 * 16 * 2) / 100 / 0.5)
    device = DataSheet("toy", 1e9, 100.0, 1e9)
    assert pass_seconds(SMALL, device, assumed, 3, 2, 40) == 2 * (BLOCKS + 80) * 3 * 2 / 100 / 0.5
    halved = replace(assumed, weights="float8")
    device = DataSheet("toy", 100.0, 1e9, 1e9)
    assert pass_seconds(SMALL, device, halved, 3, 2, 40) == (read / 2 + 3 * 40 * 16 * 2) / 100 / 0.5


def test_reading_a_clip_by_hand():
    device = DataSheet("toy", 1.0, 1000.0, 1.0)
    seen, read = SMALL.tower.flops * 2, SMALL.language.prefill_flops(98 + 64)
    assert read_seconds(SMALL, device, replace(FULL, prefill_use=0.5), 392, 0.25) == (seen + read) / 500
    fast = device._replace(flops=780e12)  # a tower reaches half of it, as measured
    assert read_seconds(SMALL, fast, FULL, 392, 0.25) == pytest.approx(seen / 390e12 + read / 780e12)


def test_memory_by_hand():
    whole = SMALL.parameters
    assert memory([(SMALL, 1.0)], FULL, 0, 100) == 2 * whole
    held = 5 * 2 * 16 * ((100 + 64 + 256) + (25 + 64 + 256))
    assert memory([(SMALL, 1.0), (SMALL, 0.25)], FULL, 5, 100) == 4 * whole + held
    assert memory([(SMALL, 1.0)], replace(FULL, weights="int4"), 0, 100) == whole / 2


@pytest.mark.parametrize("name, tokens", [("32B", 68), ("7B", 308), ("3B", 676)])
def test_plain_decoding_of_a_long_video_on_one_h200(name, tokens):
    model = MODELS[f"Qwen/Qwen2.5-VL-{name}-Instruct"]
    assert 1 / pass_seconds(model, H200, FULL, 1, 1, 25_088) == pytest.approx(tokens, rel=0.03)


@pytest.mark.parametrize("kept, beta, tokens", [(1.0, 0.79, 119), (0.1, 0.79, 124), (0.1, 0.95, 194)])
def test_speculation_over_a_long_video_on_one_h200(kept, beta, tokens):
    times = load.times_at(*PAIRS["32b+7b"], H200, FULL, 1, 25_088, kept)
    gain = chain_speedup(beta, best_chain(beta, times), times)
    assert gain / times.verify(1) == pytest.approx(tokens, rel=0.03)


@pytest.mark.parametrize("kept", [1.0, 0.1])
def test_the_gain_tends_to_that_of_the_caches(kept):
    """S -> E / (1 + gamma rho kappa_q / kappa): weights no longer count, and arithmetic is not yet what is slow."""
    (target, draft), beta, gamma = PAIRS["7b+3b"], 0.8, 4
    times = load.times_at(target, draft, H200, FULL, 100_000, 100_000, kept)
    kappa, kappa_q = target.language.kv_per_token, draft.language.kv_per_token
    tokens = (1 - beta ** (gamma + 1)) / (1 - beta)
    limit = tokens / (1 + gamma * kept * kappa_q / kappa)
    assert chain_speedup(beta, gamma, times) == pytest.approx(limit, rel=0.01)


def test_an_unpruned_draft_of_similar_size_loses_with_many_clips_and_a_pruned_one_gains():
    fixed = Assumed(gamma=4, beta=0.75)
    found = [throughput(H200, "7b+3b", 25_000, batch, fixed) for batch in (1, 2, 4, 8, 16)]
    unpruned, pruned = [one.unpruned_gain for one in found], [one.pruned_gain for one in found]
    assert unpruned == sorted(unpruned, reverse=True) and unpruned[0] > 1 > unpruned[3]
    assert pruned == sorted(pruned) and pruned[0] > 1


def test_gamma_is_chosen_at_each_batch_and_may_be_none():
    few, many = (throughput(H200, "7b+3b", 25_000, batch, Assumed(beta=0.5)) for batch in (1, 32))
    assert few.unpruned_gamma == 1 and few.unpruned_gain > 1
    assert (many.unpruned_gamma, many.unpruned_gain) == (0, 1.0)
    assert many.pruned_gamma > 1 and many.pruned_gain > 1
    for gamma in (1, 2, 3):
        assert throughput(H200, "7b+3b", 25_000, 32, Assumed(beta=0.5, gamma=gamma)).unpruned_gain < 1


def test_without_a_draft_nothing_of_it_is_read():
    one = throughput(H100, "32b+7b", 2_000, 1, Assumed(beta=0.0, weights="float8"))
    assert one.pruned_gamma == 0 and one.pruned_clips_per_s == one.plain_clips_per_s


def test_clips_per_second_by_hand():
    """1 / (p + D) and 1 / (p + p_q + D / S), p and p_q from pixels to KV, D a clip's share of the decoding."""
    assumed = Assumed(tokens=100)
    one = throughput(H100, "7b+0.5b", 8_000, 8, assumed)
    target, draft = PAIRS["7b+0.5b"]
    prefill, ahead = (
        read_seconds(model, H100, assumed, 8_000, kept) for model, kept in ((target, 1.0), (draft, assumed.kept))
    )
    decode = 100 / one.plain_tokens_per_s
    assert one.plain_clips_per_s == pytest.approx(1 / (prefill + decode))
    assert one.pruned_clips_per_s == pytest.approx(1 / (prefill + ahead + decode / one.pruned_gain))


def test_weights_of_four_bits_are_read_as_fast_as_measured():
    """A card of 4.8 TB/s reads them at 1.93; one of 100 bytes per second as fast as it can."""
    size, fast = PAIRS["7b+0.5b"][0], H100._replace(bandwidth=4.8e12)
    four, slow = replace(FULL, weights="int4"), H100._replace(bandwidth=100.0)
    assert pass_seconds(size, fast, four, 1, 1, 0) == pytest.approx(size.language.read / 2 / 1.93e12)
    assert pass_seconds(size, slow, four, 1, 1, 0) == pytest.approx(size.language.read / 2 / 100)


def test_vision_and_prompt_outweigh_decoding_of_many_long_clips():
    """LLaVA-OneVision-7B on an H100: more than a second of each clip against a quarter of one."""
    one = throughput(H100, "7b+0.5b", 25_000, 32, Assumed())
    prefill = read_seconds(PAIRS["7b+0.5b"][0], H100, Assumed(), 25_000)
    assert 1.0 < prefill < 1.3 and 0.2 < 256 / one.plain_tokens_per_s < 0.3


def test_what_does_not_fit_has_no_figures():
    one = throughput(H100, "32b+7b", 2_000, 8, Assumed())
    assert one.plain_tokens_per_s and one.plain_clips_per_s and one.plain_memory < 0.9 < one.pruned_memory
    assert one.unpruned_gain is one.pruned_gain is one.pruned_gamma is one.pruned_clips_per_s is None
    one = throughput(H100, "32b+7b", 25_000, 1, Assumed())
    assert one.plain_tokens_per_s is one.plain_clips_per_s is None and one.plain_memory > 0.9
    pruned = throughput(H100, "7b+0.5b", 25_000, 32, Assumed())
    assert pruned.unpruned_gain is None and pruned.pruned_gain > 1, "room for a pruned draft only"
