"""Prices of passes in tokens: what clips emit meanwhile, whatever else the passes hold."""

import pytest

from vidspec.draft_length.costs import PassCosts, TokenPrices


def run_rounds(prices, rounds, clips, drafted, *, reading=0):
    """Rounds of a draft pass and a target pass of all clips, of which every other one has prompts too."""
    costs = prices.costs
    prices.set_clips(clips)
    for number in range(rounds):
        rows = clips * (1 + drafted)
        seconds = 1e-3 * (10 + rows / 2)
        if reading and number % 2:
            costs.add_share("target", clips, rows, seconds * rows / (rows + reading))
        else:
            costs.add("target", clips, rows, seconds)
        costs.add("draft", clips, clips, 1e-3 * (1 + clips))
        prices.add_tokens(clips * (1 + drafted))
        prices.end_round()
    return rows / (seconds + 1e-3 * (1 + clips))


@pytest.mark.parametrize("reading", [0, 40, 400])
def test_the_rate_is_that_of_the_passes_without_their_prompts(reading):
    prices = TokenPrices(PassCosts(), 0.98)
    rate = run_rounds(prices, 40, 4, 5, reading=reading)
    assert prices.of_pass("draft", 1) * 4 / (1e-3 * 5) == pytest.approx(rate, rel=0.03)


def test_before_any_pass_without_prompts_rows_have_their_share_of_the_time():
    costs = PassCosts()
    costs.add_share("target", 2, 6, 0.25)
    assert costs.seconds == 0.25
    costs.add_share("target", 0, 0, 0.0)
    assert costs.seconds == 0.25


@pytest.mark.parametrize(("before", "after"), [(16, 2), (16, 1), (2, 16)])
def test_with_other_clips_the_rate_is_theirs_at_once(before, after):
    """Rounds of the first number alone would give prices that are several times too high, or too low."""
    prices = TokenPrices(PassCosts(), 0.98)
    for clips in (1, 4, 16, 2, 8):
        run_rounds(prices, 5, clips, 3)
    old = run_rounds(prices, 60, before, 3)
    expected = run_rounds(TokenPrices(PassCosts(), 0.98), 60, after, 3)
    assert max(old, expected) > 1.5 * min(old, expected)
    prices.set_clips(after)
    found = prices.of_pass("draft", 1) * after / prices.costs["draft"].by_rows(after)(after)
    assert found == pytest.approx(expected, rel=0.1)
