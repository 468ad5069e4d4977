"""Predicted speeds against numbers computed by hand, and drafts that do not pay."""

from dataclasses import replace

import pytest
import torch

from research.prediction.costs import (
    ACCEPTANCE,
    AssumedAcceptance,
    DraftCandidate,
    EagerLaunches,
    ExpertCost,
    ModelCost,
    predict,
)
from research.prediction.drafts import cost_of_known, draft_candidates
from research.prediction.sheets import SHEETS, DataSheet
from research.prediction.stock import read_weights
from research.sizes import SIZES
from research.speed import best_window
from vidspec.models.known_pairs import MemoryWorkload, known_model, known_pairs

CARD = DataSheet("a card", 1e12, 1e14, 10e9)
TARGET = ModelCost(read=10**9, entry=1000, launches=100)


def drafting(read, beta, launches=50):
    return DraftCandidate("a", "model", AssumedAcceptance(beta, "a test"), 7, cost=ModelCost(read, 500, launches))


#: A pass of TARGET over 1,000 entries of 1,000 bytes: 2e9 bytes of weights at 78% of 1e12 a second, keys and values at
#: 84%, and 100 kernels of 2.38 us.
ALONE = 2e-3 / 0.78 + 1e-6 / 0.84 + 238e-6


def test_a_pass_by_hand():
    """A chain's pass has no idle rows; another one is padded to 8, whose idle share costs up to 0.2 us a kernel."""
    assert TARGET.pass_seconds(CARD, 1, 1, 1000, chained=True) == pytest.approx(ALONE)
    assert TARGET.pass_seconds(CARD, 1, 6, 1000) == pytest.approx(ALONE + 20e-6 * 2 / 8)
    # 200 rows are padded to 256: 2 * 1e9 * 256 operations at 70% of 1e14 take longer than 2e9 bytes.
    small = 100 * (2.3e-6 + 200 * 0.08e-6 + 0.2e-6 * 56 / 256)
    assert TARGET.pass_seconds(CARD, 200, 200, 0) == pytest.approx(512e9 / 0.7e14 + small)


def test_a_round_by_hand():
    """Windows of 1: 1 + beta tokens in a draft pass, a pass over 2 rows, and two waits of 0.45 ms."""
    draft = drafting(250_000_000, 0.5)
    plain, drafted = predict(CARD, TARGET, [draft], entries=1000, held=100, free=106)
    target = ALONE + 20e-6 * 7 / 8 + 0.45e-3
    chain = 0.5e-3 / 0.78 + 0.5e-6 / 0.84 + 119e-6
    assert plain.tokens_per_s == pytest.approx(1 / target) and plain.gain == 1 and plain.draft is None
    verify = ALONE + 20e-6 * 6 / 8 + 0.45e-3
    assert drafted.gamma == 1 and drafted.tokens_per_s == pytest.approx(1.5 / (chain + 0.45e-3 + verify))
    assert drafted.gain == pytest.approx(drafted.tokens_per_s * target)
    assert (plain.bytes, plain.fits, drafted.bytes, drafted.fits) == (100, True, 107, False)


@pytest.mark.parametrize("clips", [1, 16, 64])
@pytest.mark.parametrize("draft", [drafting(10**9, 0.9, 100), drafting(250_000_000, 0.0), drafting(10**9, 0.3)])
def test_a_draft_that_does_not_pay_is_not_used(draft, clips):
    plain, drafted = predict(CARD, TARGET, [draft], entries=1000, clips=clips)
    assert drafted.gamma == 0 and drafted.gain == 1 and drafted.tokens_per_s == plain.tokens_per_s


def test_a_gain_below_what_a_prediction_resolves_is_none():
    """A draft as costly as the target with 98% accepted gains by the host's missing time only."""
    target = ModelCost(60 * 10**9, 0, 0)
    draft = DraftCandidate("a", "int8", AssumedAcceptance(0.98, "a test"), 7, cost=target)
    seconds = 120e9 / 0.78e12
    assert best_window(0.98, lambda rows: seconds + 0.45e-3, seconds, 0.45e-3)[0] == 0
    assert predict(CARD, target, [draft], entries=0)[1].gamma == 0


@pytest.mark.parametrize("card", ["4090", "a100", "h100"])
@pytest.mark.parametrize("clips", [1, 4, 16, 64])
@pytest.mark.parametrize("entries", [2_000, 25_000])
def test_no_prediction_is_below_plain_decoding(card, clips, entries):
    load = MemoryWorkload()
    for pair in known_pairs():
        if (cost := cost_of_known(pair.target)) is not None:
            drafts = draft_candidates(pair.target.name, cost, [one for one in [pair.draft] if one], load)
            assert all(one.gain >= 1 for one in predict(SHEETS[card], cost, drafts, entries=entries, clips=clips))


def test_weights_of_few_bits_are_as_fast_as_their_kernels():
    """On an H100 1.93 TB/s of int4 were measured, 1.53 from 16 rows on; the kernels' instructions leave 28% of the
    bandwidth at 64 rows (docs/internals/engine.md). A slower memory bounds them itself."""
    cost = ModelCost(10**9, 0, 0, "int4")
    seconds = {rows: cost.pass_seconds(SHEETS["h100"], rows, rows, 0) for rows in (1, 8, 16, 32, 64, 128)}
    reached = 0.78 * 3.35
    assert [0.5625e-3 / one for one in seconds.values()] == pytest.approx(
        [1.93, 1.93, 1.53, 0.56 * reached, 0.28 * reached, 0.14 * reached]
    )
    assert cost.pass_seconds(SHEETS["4090"], 32, 32, 0) == pytest.approx(0.5625e9 / 1.008e12 / 0.78)
    eight = ModelCost(10**9, 0, 0, "int8")
    assert eight.pass_seconds(SHEETS["h200"], 1, 1, 0) == pytest.approx(1e9 / 2.4e12)


#: On an H100, 7B after 2,000 entries (docs/research/measured/gpu): draft, clips, acceptance, window, ms of a round.
MEASURED = [
    (None, 1, 0.0, 0, 6.39),
    (None, 16, 0.0, 0, 7.63),
    ("int4", 1, 0.9, 5, 20.08),
    ("int4", 16, 0.9, 5, 30.86),
    ("int4", 16, 0.8, 3, 21.77),
    ("int8", 1, 0.98, 8, 35.97),
    ("int8", 1, 0.9, 5, 24.90),
    ("3B", 1, 0.81, 3, 17.56),
]


@pytest.mark.parametrize(("draft", "clips", "beta", "gamma", "measured"), MEASURED)
def test_rounds_take_what_was_measured(draft, clips, beta, gamma, measured):
    card, target = SHEETS["h100"], ModelCost.of_decoder(SIZES["7B"].read, 28, 2 * SIZES["7B"].kv_per_token)
    size = SIZES["3B"]
    drafts = {"3B": ModelCost.of_decoder(size.read, size.layers, 2 * size.kv_per_token)}
    seconds = target.pass_seconds(card, clips, clips * (gamma + 1), 2_300) + target.host_seconds(clips)
    if draft is not None:
        cost = drafts.get(draft) or replace(target, weights=draft)
        seconds += gamma * cost.pass_seconds(card, clips, clips, 2_300, chained=True) + cost.host_seconds(clips)
    assert 1e3 * seconds == pytest.approx(measured, rel=0.08)


def test_experts_that_rows_choose():
    """One row takes 2 of 4 experts; a second row takes each of the others with probability 1/2: 3 in all."""
    experts = ExpertCost(4, 2, 1000)
    assert [experts.distinct(rows) for rows in (1, 2, 3)] == [2, 3, 3.5]
    cost = ModelCost(10**6, 0, 0, experts=experts)
    assert cost.expert_bytes(2) == 3 * 2 * 1000
    # One row is multiplied with 2 of them, however many are read: operations bound a card of little arithmetic.
    slow = DataSheet("slow", 1e18, 1e9, 10e9)
    assert cost.pass_seconds(slow, 1, 1, 0, chained=True) == pytest.approx(2 * 1_002_000 / 0.7e9)


def test_windows_and_states_by_hand():
    """3,000 entries: 10 bytes of each in full attention, 1,000 of them at 7 in windows; a state is read and written."""
    cost = ModelCost(10**6, 10, 0, windows=((1000, 7),), states=64)
    assert cost.cache_bytes(1, 3000) == 30_000 + 7_000 + 128
    assert cost.cache_bytes(4, 500) == 4 * (5_000 + 3_500 + 128)


def test_passes_that_are_not_replayed_take_their_launches():
    """16 us each from Python, more for a window and for further clips; the device's time, if that is longer."""
    cost = ModelCost(10**6, 0, 100, eager=EagerLaunches(window=20, clip=7))
    assert cost.pass_seconds(CARD, 1, 1, 0) == pytest.approx(100 * 16e-6)
    assert cost.pass_seconds(CARD, 1, 5, 0) == pytest.approx(120 * 16e-6)
    assert cost.pass_seconds(CARD, 3, 3, 0) == pytest.approx(114 * 16e-6)
    large = ModelCost(10**10, 0, 100, eager=EagerLaunches(20, 7))
    assert large.pass_seconds(CARD, 1, 1, 0) == pytest.approx(20e-3 / 0.78 + 230e-6)
    assert large.pass_seconds(CARD, 1, 200, 0) == pytest.approx(4000e9 / 0.7e14 + 276e-6)  # not padded


def test_a_draft_that_is_not_replayed_waits_for_each_token():
    cost = ModelCost(10**6, 0, 10, eager=EagerLaunches(20, 7))
    draft = DraftCandidate("a", "model", AssumedAcceptance(0.5, "a test"), 7, cost=cost)
    _, drafted = predict(CARD, TARGET, [draft], entries=1000)
    assert drafted.gamma == 3
    verify = ALONE + 20e-6 * 4 / 8 + 0.45e-3
    assert drafted.tokens_per_s == pytest.approx(1.875 / (3 * (160e-6 + 20e-6) + verify))


def test_costs_of_published_hybrids_and_mixtures_by_hand():
    """Qwen3.5-9B: 24 states of 32 x 128 x 128 float32, 8 blocks of 4 heads of 256. 30B-A3B: 48 blocks of 128 experts of
    three matrices 2048 x 768, 8 of them for a row."""
    hybrid = cost_of_known(known_model("Qwen/Qwen3.5-9B"))
    assert hybrid.states == 24 * 32 * 128 * 128 * 4 and hybrid.entry == 8 * 2 * 4 * 256 * 2
    assert hybrid.cache_bytes(1, 1000) == 1000 * hybrid.entry + 2 * hybrid.states
    assert hybrid.launches == 24 * 101 + 8 * 69 + 33
    mixture = cost_of_known(known_model("Qwen/Qwen3-VL-30B-A3B-Instruct"))
    assert mixture.experts == ExpertCost(128, 8, 48 * 3 * 2048 * 768)
    assert mixture.expert_bytes(1) == pytest.approx(2 * 8 * mixture.experts.read)
    assert mixture.read + 8 * mixture.experts.read == pytest.approx(3.04e9, rel=0.01)


def test_copies_of_a_hybrid_keep_states_and_entries():
    target = known_model("Qwen/Qwen3.5-9B")
    cost = cost_of_known(target)
    found = {one.kind: one for one in draft_candidates(target.name, cost, [], MemoryWorkload(), entries=1000)}
    assert found["int4"].bytes == round(cost.read * 0.5625) + cost.states + 1000 * cost.entry


def test_weights_that_codes_replaced_are_read():
    """Layers whose weights are emptied, as those kept as codes are, have the numbers of their shape."""
    language, head = torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.LayerNorm(6)), torch.nn.Linear(6, 10, False)
    before = read_weights(language, head)
    language[0].weight = torch.nn.Parameter(torch.empty(0))
    assert read_weights(language, head) == before == 24 + 6 + 12 + 60


def test_drafts_of_a_published_target():
    target = known_model("Qwen/Qwen2.5-VL-7B-Instruct")
    cost = cost_of_known(target)
    assert cost.read == SIZES["7B"].read and cost.launches == 293
    siblings = [pair.draft for pair in known_pairs() if pair.target == target]
    found = {draft.kind: draft for draft in draft_candidates(target.name, cost, siblings, MemoryWorkload())}
    assert set(found) == {"int4", "int8", "model", "eagle3"}
    assert found["int4"].bytes == pytest.approx(SIZES["7B"].read * 0.5625)
    assert found["model"].cost.read == SIZES["3B"].read and found["model"].assumed == ACCEPTANCE["model"]
    rounded = ModelCost(cost.read, cost.entry, cost.launches, "int4")
    assert not {one.kind for one in draft_candidates("a", rounded, [], MemoryWorkload())}


def test_assumed_acceptance():
    """ParallelVLM's run lengths by M / (1 + M); AngelSlim's 2.1 tokens per pass by bisection."""
    assert ACCEPTANCE["model"].beta == 0.81 and ACCEPTANCE["llava_onevision"].beta == 0.87
    beta = ACCEPTANCE["eagle3"].beta
    assert sum(beta**n for n in range(5)) == pytest.approx(2.1, abs=0.03)
