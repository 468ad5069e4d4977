"""Predicted speeds against numbers computed by hand, and drafts that do not pay."""

import pytest
import torch

from research.prediction.costs import (
    ACCEPTANCE,
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
from vidspec.models.recommended import AssumedAcceptance

CARD = DataSheet("a card", 1e12, 1e14, 10e9)
TARGET = ModelCost(read=10**9, entry=1000, launches=100)


def drafting(read, beta, launches=50):
    return DraftCandidate("a", "model", AssumedAcceptance(beta, "a test"), 7, cost=ModelCost(read, 500, launches))


def test_a_pass_by_hand():
    """Bytes: 2e9 of weights and 1,000 entries of 1,000 bytes, at 70% of 1e12 a second; then 100 gaps of 1 us."""
    assert TARGET.pass_seconds(CARD, 1, 1, 1000) == pytest.approx(2.001e-3 / 0.7 + 100e-6)
    # 200 rows are padded to 256: 2 * 1e9 * 256 operations at 70% of 1e14 take longer than 2e9 bytes.
    assert TARGET.pass_seconds(CARD, 200, 200, 0) == pytest.approx(512e9 / 0.7e14 + 100e-6)


def test_a_round_by_hand():
    """Windows of 1: 1 + beta tokens in a draft pass, a pass over 2 rows, and two waits."""
    draft = drafting(250_000_000, 0.5)
    plain, drafted = predict(CARD, TARGET, [draft], entries=1000, held=100, free=106)
    target = 2.001e-3 / 0.7 + 100e-6 + 20e-6
    chain = 0.5005e-3 / 0.7 + 50e-6
    assert plain.tokens_per_s == pytest.approx(1 / target) and plain.gain == 1 and plain.draft is None
    assert drafted.gamma == 1 and drafted.tokens_per_s == pytest.approx(1.5 / (chain + target + 20e-6))
    assert drafted.gain == pytest.approx(drafted.tokens_per_s * target)
    assert (plain.bytes, plain.fits, drafted.bytes, drafted.fits) == (100, True, 107, False)


@pytest.mark.parametrize("clips", [1, 16, 64])
@pytest.mark.parametrize("draft", [drafting(10**9, 0.9, 100), drafting(250_000_000, 0.0), drafting(10**9, 0.3)])
def test_a_draft_that_does_not_pay_is_not_used(draft, clips):
    plain, drafted = predict(CARD, TARGET, [draft], entries=1000, clips=clips)
    assert drafted.gamma == 0 and drafted.gain == 1 and drafted.tokens_per_s == plain.tokens_per_s


def test_a_gain_below_what_a_prediction_resolves_is_none():
    """A draft as costly as the target with 98% accepted gains by its missing waits only, 0.2%."""
    target = ModelCost(0, 0, 293)
    draft = DraftCandidate("a", "int8", AssumedAcceptance(0.98, "a test"), 7, cost=target)
    assert best_window(0.98, lambda rows: 312e-6, 292e-6, 20e-6)[0] == 3
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
    """On an H100 the kernels' instructions leave 28% of the bandwidth to int4 at 64 rows (docs/internals/engine.md)."""
    cost = ModelCost(10**9, 0, 0, "int4")
    seconds = {rows: cost.pass_seconds(SHEETS["h100"], rows, rows, 0) for rows in (1, 8, 16, 32, 64, 128)}
    alone = 0.546875e9 / 3.35e12 / 0.7
    assert seconds[1] == seconds[8] == pytest.approx(alone)
    assert [seconds[rows] / alone for rows in (16, 32, 64, 128)] == pytest.approx(
        [1 / 0.84, 1 / 0.56, 1 / 0.28, 2 / 0.28]
    )
    assert cost.pass_seconds(SHEETS["4090"], 32, 32, 0) == pytest.approx(0.546875e9 / 1.008e12 / 0.7)


def test_experts_that_rows_choose():
    """One row takes 2 of 4 experts; a second row takes each of the others with probability 1/2: 3 in all."""
    experts = ExpertCost(4, 2, 1000)
    assert [experts.distinct(rows) for rows in (1, 2, 3)] == [2, 3, 3.5]
    cost = ModelCost(10**6, 0, 0, experts=experts)
    assert cost.bytes_read(CARD, 1, 2, 500) == 2 * 10**6 + 3 * 2 * 1000
    # One row is multiplied with 2 of them, however many are read: operations bound a card of little arithmetic.
    slow = DataSheet("slow", 1e18, 1e9, 10e9)
    assert cost.pass_seconds(slow, 1, 1, 0) == pytest.approx(2 * 1_002_000 / 0.7e9)


def test_windows_and_states_by_hand():
    """3,000 entries: 10 bytes of each in full attention, 1,000 of them at 7 in windows; a state is read and written."""
    cost = ModelCost(10**6, 10, 0, windows=((1000, 7),), states=64)
    assert cost.bytes_read(CARD, 1, 1, 3000) == 2 * 10**6 + 30_000 + 7_000 + 128
    assert cost.bytes_read(CARD, 4, 4, 500) == 2 * 10**6 + 4 * (5_000 + 3_500 + 128)


def test_passes_that_are_not_replayed_take_their_launches():
    """5 us each from Python, more for a window and for further clips; the device's time, if that is longer."""
    cost = ModelCost(10**6, 0, 100, eager=EagerLaunches(window=20, clip=7))
    assert cost.pass_seconds(CARD, 1, 1, 0) == pytest.approx(500e-6)
    assert cost.pass_seconds(CARD, 1, 5, 0) == pytest.approx(600e-6)
    assert cost.pass_seconds(CARD, 3, 3, 0) == pytest.approx(114 * 5e-6)
    large = ModelCost(10**9, 0, 100, eager=EagerLaunches(20, 7))
    assert large.pass_seconds(CARD, 1, 1, 0) == pytest.approx(2e-3 / 0.7 + 100e-6)
    assert large.pass_seconds(CARD, 1, 200, 0) == pytest.approx(400e9 / 0.7e14 + 120e-6)  # not padded


def test_a_draft_that_is_not_replayed_waits_for_each_token():
    cost = ModelCost(10**6, 0, 100, eager=EagerLaunches(20, 7))
    draft = DraftCandidate("a", "model", AssumedAcceptance(0.5, "a test"), 7, cost=cost)
    _, drafted = predict(CARD, TARGET, [draft], entries=1000)
    assert drafted.gamma == 2
    verify = TARGET.pass_seconds(CARD, 1, 3, 1000) + 20e-6
    assert drafted.tokens_per_s == pytest.approx(1.75 / (2 * (500e-6 + 20e-6) + verify))


def test_costs_of_published_hybrids_and_mixtures_by_hand():
    """Qwen3.5-9B: 24 states of 32 x 128 x 128 float32, 8 blocks of 4 heads of 256. 30B-A3B: 48 blocks of 128 experts of
    three matrices 2048 x 768, 8 of them for a row."""
    hybrid = cost_of_known(known_model("Qwen/Qwen3.5-9B"))
    assert hybrid.states == 24 * 32 * 128 * 128 * 4 and hybrid.entry == 8 * 2 * 4 * 256 * 2
    assert hybrid.bytes_read(CARD, 1, 1, 1000) == 2 * hybrid.read + 1000 * hybrid.entry + 2 * hybrid.states
    assert hybrid.launches == 24 * 101 + 8 * 69 + 33
    mixture = cost_of_known(known_model("Qwen/Qwen3-VL-30B-A3B-Instruct"))
    assert mixture.experts == ExpertCost(128, 8, 48 * 3 * 2048 * 768)
    assert mixture.bytes_read(CARD, 1, 1, 0) == pytest.approx(2 * (mixture.read + 8 * mixture.experts.read))
    assert mixture.read + 8 * mixture.experts.read == pytest.approx(3.04e9, rel=0.01)


def test_copies_of_a_hybrid_read_the_prompt_again():
    target = known_model("Qwen/Qwen3.5-9B")
    cost = cost_of_known(target)
    found = {one.kind: one for one in draft_candidates(target.name, cost, [], MemoryWorkload(), entries=1000)}
    assert found["int4"].arguments == "--profile self-int4 --set draft.prefill=again"
    assert found["int4"].bytes == round(cost.read * 0.546875) + cost.states + 1000 * cost.entry


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
    assert found["int4"].bytes == pytest.approx(SIZES["7B"].read * 0.546875)
    assert found["model"].cost.read == SIZES["3B"].read and found["model"].assumed == ACCEPTANCE["model"]
    assert found["int8"].arguments == "--profile self-int8"
    assert found["model"].arguments == "--profile vanilla-sd-auto --draft Qwen/Qwen2.5-VL-3B-Instruct"
    rounded = ModelCost(cost.read, cost.entry, cost.launches, "int4")
    assert not {one.kind for one in draft_candidates("a", rounded, [], MemoryWorkload())}


def test_assumed_acceptance():
    """ParallelVLM's run lengths by M / (1 + M); AngelSlim's 2.1 tokens per pass by bisection."""
    assert ACCEPTANCE["model"].beta == 0.81 and ACCEPTANCE["llava_onevision"].beta == 0.87
    beta = ACCEPTANCE["eagle3"].beta
    assert sum(beta**n for n in range(5)) == pytest.approx(2.1, abs=0.03)
