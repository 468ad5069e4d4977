"""Windows of the parallel schedule: the paper's ratio, and the one that follows measured passes."""

import pytest

from vidspec.draft_length.costs import PassCosts
from vidspec.draft_length.window import AutoGamma, FixedGamma, window_for


@pytest.mark.parametrize(
    "tp, tq, rounding, gamma",
    [
        (420, 46.6, "down", 9),  # ParallelVLM Table 3 and the caption of Table 1
        (420, 78.3, "down", 5),
        (203, 39.8, "down", 5),
        (203, 63.7, "down", 3),
        (78.3, 25.8, "down", 3),
        (78.3, 46.6, "up", 2),
        (63.7, 39.8, "up", 2),
        (10, 30, "down", 1),
        (10, 0.1, "down", 32),
    ],
)
def test_the_window_fills_one_target_pass(tp, tq, rounding, gamma):
    assert window_for(tp, tq, rounding) == gamma


@pytest.mark.parametrize("tp, tq", [(0, 1), (1, 0), (-1, 1), (float("nan"), 1)])
def test_times_must_be_positive(tp, tq):
    with pytest.raises(ValueError, match="positive"):
        window_for(tp, tq)


def auto(start=5, **options):
    return AutoGamma(PassCosts(), start, **options)


def measured(auto, tp, tq, passes=12, rows=None):
    for _ in range(passes):
        auto.costs.add("draft", 1, 1, tq)
        auto.costs.add("target", 1, rows or auto.gamma, tp)
    return auto.gamma


def test_the_first_measurement_sets_the_window():
    assert measured(auto(), 420, 46.6, passes=1) == 9


def test_a_clip_begins_with_the_window_of_the_clips_before_it():
    first = auto()
    assert measured(first, 440, 46.6) == AutoGamma(first.costs).gamma == 9


def test_it_does_not_swing_about_a_whole_number():
    one = auto()
    assert measured(one, 4.05, 1.0) == 4
    for ratio in (3.95, 4.1, 3.9, 5.1, 4.9, 3.87, 5.14):
        assert measured(one, ratio, 1.0) == 4
    assert measured(one, 5.3, 1.0) == 5
    assert measured(one, 4.9, 1.0) == 5


def test_one_slow_pass_changes_nothing():
    one = auto()
    measured(one, 4.5, 1.0)
    one.costs.add("target", 1, 4, 40.0)
    assert one.gamma == 4


def test_it_settles_where_window_and_pass_agree():
    one = auto(start=2)
    for _ in range(200):
        one.costs.add("draft", 1, 1, 1.0)
        one.costs.add("target", 1, one.gamma, 4 + 0.5 * one.gamma)  # T_p(gamma) = gamma at 8
    assert 6 <= one.gamma <= 8


def test_a_pass_over_one_token_says_little_of_one_over_a_window():
    one = auto()
    assert measured(one, 6.5, 1.0) == 6
    assert measured(one, 3.5, 1.0, rows=1) == 6


def test_a_pass_that_other_clips_share_takes_as_long_as_it_takes():
    one = auto()
    for _ in range(12):
        one.costs.add("draft", 1, 1, 1.0)
        one.costs.add("target", 4, 4 * one.gamma, 9.5)
    assert one.gamma == 9


def test_it_rounds_up_for_self_drafting():
    one = auto(rounding="up")
    assert measured(one, 78.3, 46.6) == 2
    assert measured(one, 2.1 * 46.6, 46.6) == 2
    assert measured(one, 2.2 * 46.6, 46.6) == 3


def test_it_stays_within_its_limits():
    assert measured(auto(lowest=3), 1.0, 1.0) == 3
    assert measured(auto(highest=8), 50.0, 1.0) == 8
    assert measured(auto(), 1.0, 0.0) == 5
    with pytest.raises(ValueError, match="gamma must satisfy"):
        auto(start=40)
    with pytest.raises(ValueError, match="at least 1"):
        FixedGamma(0)
