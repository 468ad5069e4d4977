import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from research import speed
from research.replay.simulated import SimulatedWorkers, simulate
from research.replay.virtual import Costs, Pattern, simulate_sequential
from tests.tiers import examples
from vidspec.decoding.scheduler import ParallelSettings, Scheduler
from vidspec.draft_length.window import FixedGamma, chain_tokens


def test_chain_tokens_by_hand():
    assert chain_tokens(0.5, 2) == 1 + 0.5 + 0.25
    assert chain_tokens(0.0, 5) == 1
    assert chain_tokens(1.0, 5) == 6


def test_sequential_by_hand():
    """HIPPO 4.2: T_p = 3 T_q, three tokens; all accepted gives 2, none 0.5."""
    assert speed.sequential(4, 3, 3.0, 3.0, 1.0) == 2
    assert speed.sequential(1, 3, 3.0, 3.0, 1.0) == 0.5
    assert speed.sequential(4, 3, 3.0, 3.0, 1.0, overhead=2.0) == 1.5


@pytest.mark.parametrize(
    "tp, tq, gamma, run_length, expected",
    [
        (78.3, 25.8, 3, 8.47, 2.29),
        (420, 46.6, 9, 6.82, 3.50),
        (203, 39.8, 5, 4.23, 2.34),
        (78.3, 46.6, 2, 14.8, 1.54),
        (63.7, 39.8, 2, 14.4, 1.46),
    ],
)
def test_renewal_formula_on_parallelvlm_table_1(tp, tq, gamma, run_length, expected):
    beta = speed.beta_of_run_length(run_length)
    assert speed.parallel(beta, gamma, tp, tp, tq) == pytest.approx(expected, abs=0.005)


def test_parallel_by_hand():
    """beta 0.5, gamma 2: 2 tokens in 1 + 0.5 / 0.75 rounds of 2 time units."""
    assert speed.parallel(0.5, 2, 2.0, 2.0, 1.0) == pytest.approx(2 / (5 / 3))
    assert speed.parallel(0.5, 2, 2.0, 2.0, 1.0, shared=True) == pytest.approx(2 / (5 / 3) / 2)
    assert speed.parallel(1.0, 4, 4.0, 4.0, 1.0) == 4
    assert speed.parallel(0.0, 4, 4.0, 4.0, 1.0) == 1
    assert speed.run_rounds(1.0, 3) == math.inf


@settings(max_examples=examples(200))
@given(st.floats(0, 1), st.integers(1, 12))
def test_beta_and_length_are_each_others_inverse(beta, gamma):
    assert speed.beta_of_tokens_per_pass(chain_tokens(beta, gamma), gamma) == pytest.approx(beta, abs=1e-6)
    if beta < 0.999:
        assert speed.beta_of_run_length(beta / (1 - beta)) == pytest.approx(beta)


@pytest.mark.parametrize(
    "call",
    [
        lambda: chain_tokens(1.1, 3),
        lambda: speed.beta_of_run_length(-1),
        lambda: speed.beta_of_tokens_per_pass(5.5, 4),
        lambda: speed.parallel(0.5, 2, 0.0, 1.0, 1.0),
        lambda: speed.sequential(2, 2, 1.0, float("nan"), 1.0),
    ],
)
def test_impossible_arguments_are_refused(call):
    with pytest.raises(ValueError):
        call()


def simulated(beta, gamma, tp1, tp, tq, seed, tokens=6_000):
    costs = Costs(lambda rows: tp if rows > 1 else tp1, lambda: tq)
    workers = SimulatedWorkers(Pattern.bernoulli(beta, seed), costs)
    run = simulate(Scheduler(ParallelSettings(tokens, startup=gamma), FixedGamma(gamma)), workers)
    return run.decoded * tp1 / run.decode_s


@pytest.mark.full
@pytest.mark.parametrize(
    "beta, gamma, tp, tq", [(0.87, 9, 420.0, 46.6), (0.6, 4, 10.0, 2.5), (0.95, 3, 3.0, 1.0), (0.3, 2, 2.0, 1.0)]
)
def test_the_scheduler_is_as_fast_as_the_renewal_formula_says(beta, gamma, tp, tq):
    assert simulated(beta, gamma, tp, tp, tq, 1) == pytest.approx(speed.parallel(beta, gamma, tp, tp, tq), rel=0.03)


@pytest.mark.full
@pytest.mark.parametrize(
    "beta, gamma, tp1, tp, tq",
    [(0.87, 14, 420.0, 420.0, 46.6), (0.8, 7, 6.3, 9.0, 1.2), (0.8, 10, 6.3, 12.0, 1.2), (0.94, 2, 78.3, 78.3, 46.6)],
)
def test_with_aborts_and_cheap_single_passes_it_is_as_fast_as_the_finer_formula_says(beta, gamma, tp1, tp, tq):
    expected = speed.parallel_with_abort(beta, gamma, tp1, tp, tq)
    assert simulated(beta, gamma, tp1, tp, tq, 1) == pytest.approx(expected, rel=0.03)
    assert expected > speed.parallel(beta, gamma, tp1, tp, tq) or gamma == 2


@pytest.mark.parametrize("beta, gamma", [(0.8, 5), (0.5, 3), (0.0, 4), (1.0, 6)])
def test_the_sequential_schedule_is_as_fast_as_its_formula_says(beta, gamma):
    costs = Costs(lambda rows: 4 + 0.5 * rows, lambda: 0.7)
    options = {"max_new_tokens": 6_000, "eos": frozenset()}
    run = simulate_sequential(Pattern.bernoulli(beta, 3), costs, gamma=gamma, **options)
    measured = run.decoded * 4.5 / run.decode_s
    expected = speed.sequential(chain_tokens(beta, gamma), gamma, 4.5, 4 + 0.5 * (gamma + 1), 0.7)
    assert measured == pytest.approx(expected, rel=0.03)


def test_plain_decoding_takes_one_pass_per_token():
    costs = Costs(lambda rows: 4 + rows, lambda: 1.0, target_prefill=10.0, draft_prefill=3.0)
    run = simulate_sequential(Pattern.bernoulli(0.5), costs, max_new_tokens=11, gamma=0, eos=frozenset())
    assert (run.times[0], run.decode_s, run.draft_forwards, run.tokens) == (10.0, 50.0, 0, tuple(range(11)))


def passes(rows):
    return 10.0 + 0.4 * (rows - 1)


@pytest.mark.parametrize("beta", [0.0, 0.3, 0.8, 0.95])
@pytest.mark.parametrize("tq", [0.5, 2.0, 9.0])
def test_the_best_window_beats_all_others(beta, tq):
    gamma, rate = speed.best_window(beta, passes, tq, overhead=0.3)
    rates = [1 / passes(1)] + [chain_tokens(beta, n) / (n * tq + passes(n + 1) + 0.3) for n in range(1, 17)]
    assert rate == pytest.approx(max(rates)) and rates[gamma] == max(rates)


def test_a_draft_that_is_never_right_is_not_worth_a_window():
    assert speed.best_window(0.0, passes, 0.1) == (0, pytest.approx(0.1))
