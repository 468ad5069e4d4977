import pytest

from vidspec.draft_length.gamma import AutoGamma, FixedGamma, window_for


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


def measured(auto, tp, tq, passes=12, rows=None):
    for _ in range(passes):
        auto.add_draft_pass(tq)
        auto.add_target_pass(rows or auto.gamma, tp)
    return auto.gamma


def test_the_first_measurement_sets_the_window():
    auto = AutoGamma(start=5)
    assert measured(auto, 420, 46.6, passes=1) == 9


def test_it_does_not_swing_about_a_whole_number():
    auto = AutoGamma(start=5)
    assert measured(auto, 4.05, 1.0) == 4
    for ratio in (3.95, 4.1, 3.9, 5.1, 4.9, 3.87, 5.14):
        assert measured(auto, ratio, 1.0) == 4
    assert measured(auto, 5.3, 1.0) == 5
    assert measured(auto, 4.9, 1.0) == 5


def test_one_slow_pass_changes_nothing():
    auto = AutoGamma(start=5)
    measured(auto, 4.5, 1.0)
    auto.add_target_pass(4, 40.0)
    assert auto.gamma == 4


def test_it_settles_where_window_and_pass_agree():
    auto = AutoGamma(start=2)
    for _ in range(200):
        auto.add_draft_pass(1.0)
        auto.add_target_pass(auto.gamma, 4 + 0.5 * auto.gamma)  # T_p(gamma) = gamma at 8
    assert 6 <= auto.gamma <= 8


def test_passes_over_a_window_count_more_than_those_over_one_token():
    auto = AutoGamma(start=5)
    assert measured(auto, 3.5, 1.0, rows=1) == 3
    assert measured(auto, 6.5, 1.0) == 6
    assert measured(auto, 3.5, 1.0, rows=1) == 6


def test_it_rounds_up_for_self_drafting():
    auto = AutoGamma(start=5, rounding="up")
    assert measured(auto, 78.3, 46.6) == 2
    assert measured(auto, 2.1, 1.0) == 2
    assert measured(auto, 2.2, 1.0) == 3


def test_it_stays_within_its_limits():
    assert measured(AutoGamma(start=5, lowest=3), 1.0, 1.0) == 3
    assert measured(AutoGamma(start=5, highest=8), 50.0, 1.0) == 8
    assert measured(AutoGamma(start=5), 1.0, 0.0) == 5
    with pytest.raises(ValueError, match="gamma must satisfy"):
        AutoGamma(start=40)
    with pytest.raises(ValueError, match="at least 1"):
        FixedGamma(0)
