"""The window of the sequential schedule: where it settles, when it moves, and when the draft rests."""

import random
from itertools import pairwise

import pytest

from vidspec.planning.speed import chain_tokens
from vidspec.planning.window import REST, TRIAL, ChainWindow, best_window, line_through


def passes(rows):
    return 10.0 + 0.4 * (rows - 1)


@pytest.mark.parametrize("beta", [0.0, 0.3, 0.8, 0.95])
@pytest.mark.parametrize("tq", [0.5, 2.0, 9.0])
def test_the_best_window_beats_all_others(beta, tq):
    gamma, rate = best_window(beta, passes, tq, overhead=0.3)
    rates = [1 / passes(1)] + [chain_tokens(beta, n) / (n * tq + passes(n + 1) + 0.3) for n in range(1, 17)]
    assert rate == pytest.approx(max(rates)) and rates[gamma] == max(rates)


def test_a_draft_that_is_never_right_is_not_worth_a_window():
    assert best_window(0.0, passes, 0.1) == (0, pytest.approx(0.1))


def test_a_line_through_medians():
    line = line_through({2: 12.0, 6: 16.0, 11: 21.0})
    assert [line(n) for n in (1, 4, 20)] == pytest.approx([11.0, 14.0, 30.0])
    assert line_through({5: 20.0})(10) > 20.0, "a row costs something although nothing is known of it"
    falling = line_through({2: 9.0, 8: 3.0})
    assert falling(2) == falling(8) > 0, "noise does not make wider passes cheaper"


def decode(window, beta, tq, rounds, seed=0, verify=passes):
    """Rounds of independent acceptance; returns tokens per second of the last half."""
    rng = random.Random(seed)
    tokens = seconds = 0.0
    for at in range(rounds):
        gamma = window.gamma
        accepted = 0
        while accepted < gamma and rng.random() < beta:
            accepted += 1
        window.judged(gamma, accepted, gamma * tq, verify(gamma + 1))
        if at >= rounds // 2:
            tokens += accepted + 1
            seconds += gamma * tq + verify(gamma + 1)
    return tokens / seconds


@pytest.mark.parametrize(("beta", "tq"), [(0.5, 1.0), (0.8, 1.0), (0.95, 0.5), (0.7, 3.0)])
@pytest.mark.parametrize("told", [False, True])
def test_it_comes_within_a_tenth_of_the_best_fixed_window(beta, tq, told):
    window = ChainWindow(5)
    if told:
        window.learn(passes, tq, 0.8)
    reached = decode(window, beta, tq, 600)
    assert reached > 0.9 * best_window(beta, passes, tq)[1]


def test_it_follows_a_text_that_becomes_easier():
    window = ChainWindow(5)
    window.learn(passes, 1.0, 0.5)
    decode(window, 0.4, 1.0, 300)
    narrow = window.gamma
    decode(window, 0.97, 1.0, 300)
    assert window.gamma > narrow + 4


def test_a_machine_that_became_slower_changes_nothing():
    """Only ratios count."""
    window = ChainWindow(5)
    window.learn(passes, 1.0, 0.8)
    decode(window, 0.8, 1.0, 300)
    before = window.gamma
    decode(window, 0.8, 3.0, 300, verify=lambda rows: 3 * passes(rows))
    assert abs(window.gamma - before) <= 2


def test_a_hopeless_draft_rests_and_is_tried_again():
    window = ChainWindow(5)
    window.learn(passes, 8.0, 0.9)
    seen = []
    rng = random.Random(0)
    for _ in range(200):
        gamma = window.gamma
        seen.append(gamma)
        accepted = 0
        while accepted < gamma and rng.random() < 0.1:
            accepted += 1
        window.judged(gamma, accepted, gamma * 8.0, passes(gamma + 1))
    settled = seen[60:]
    assert settled.count(0) > 0.8 * len(settled)
    trials = [at for at, gamma in enumerate(settled) if gamma]
    assert {settled[at] for at in trials} == {TRIAL}
    assert all(b - a == REST + 1 for a, b in pairwise(trials))


def test_a_gain_within_the_slack_moves_nothing():
    window = ChainWindow(8, slack=10.0)
    window.learn(passes, 1.0, 0.3)
    assert window.gamma == 8
    eager = ChainWindow(8, slack=0.0)
    eager.learn(passes, 1.0, 0.3)
    assert eager.gamma == best_window(0.3, passes, 1.0)[0] != 8


def test_a_start_out_of_range_is_refused():
    with pytest.raises(ValueError, match="1 <= start <= highest"):
        ChainWindow(0)
    with pytest.raises(ValueError, match="1 <= start <= highest"):
        ChainWindow(9, highest=8)
