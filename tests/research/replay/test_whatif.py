import pytest

from research import speed
from research.replay.predict import Prefill, Times, even_lengths, geometric_lengths
from research.replay.whatif import best_chain, what_if
from vidspec.draft_length.costs import pass_times
from vidspec.draft_length.window import chain_tokens, settled_window


def by_method(*args, **options):
    return {one.method: one for one in what_if(*args, **options)}


def test_the_papers_case():
    found = by_method(Times(lambda rows: 420.0, 46.6), 6.82 / 7.82, None)
    parallel, sequential = found["parallel"], found["sequential"]
    assert parallel.gamma == 9
    assert parallel.formula == pytest.approx(3.50, abs=0.01)
    assert parallel.predicted == pytest.approx(parallel.formula, rel=0.02)
    assert sequential.predicted == pytest.approx(sequential.formula, rel=0.02)
    assert found["autoregressive"].predicted == pytest.approx(1)
    assert found["parallel, one shared device"].formula < sequential.formula, "docs/research/metrics.md"


def test_a_given_window_holds_for_both():
    found = by_method(Times(lambda rows: 100.0, 20.0), 0.8, 3)
    assert found["sequential"].gamma == found["parallel"].gamma == 3
    assert found["sequential"].formula == pytest.approx((1 - 0.8**4) / 0.2 * 100 / (3 * 20 + 100))


@pytest.mark.parametrize("beta", [0.0, 1.0])
def test_the_extremes_of_acceptance(beta):
    found = by_method(Times(lambda rows: 90.0, 10.0), beta, None, tokens=2000)
    assert found["parallel"].predicted == pytest.approx(9 if beta else 1, rel=0.02)


def test_messages_cost_time():
    fast, slow = (by_method(Times(lambda rows: 90.0, 10.0, latency), 0.8, 8)["parallel"] for latency in (0.0, 5.0))
    assert slow.predicted < fast.predicted * 0.95


def test_end_to_end_by_hand_and_overlap():
    times = Times(lambda rows: 10.0, 2.0, prefill=Prefill(200.0, 100.0))
    found = by_method(times, 0.8, 5, tokens=101)
    sequential, parallel = found["sequential"], found["parallel"]
    assert sequential.end_to_end == pytest.approx(1200 / (300 + 1000 / sequential.formula), rel=0.05)
    assert parallel.end_to_end == pytest.approx(1200 / (200 + 1000 / parallel.formula), rel=0.05)
    assert by_method(Times(lambda rows: 10.0, 2.0), 0.8, 5)["parallel"].end_to_end is None


def test_pass_times_are_straight_between_the_points():
    time = pass_times([(6, 10.5), (1, 6.3), (11, 12.5)])
    assert [time(1), time(6), time(11)] == [6.3, 10.5, 12.5]
    assert time(8) == pytest.approx(11.3)
    assert time(16) == pytest.approx(14.5), "the last line goes on"
    assert pass_times([(4, 7.0)])(1) == pass_times([(4, 7.0)])(99) == 7.0
    assert pass_times([(2, 7.0), (3, 8.0)])(1) == 7.0
    for wrong in ([], [(1, 2.0), (1, 3.0)], [(0, 1.0)], [(1, -1.0)], [(1, float("nan"))], [(1, float("inf"))]):
        with pytest.raises(ValueError):
            pass_times(wrong)


def test_the_window_settles_on_a_pass_that_grows_with_it():
    assert settled_window(lambda rows: 420.0, 46.6) == 9
    assert settled_window(lambda rows: 4 + 0.5 * rows, 1.0) == 7  # T_p(7) = 7.5
    assert settled_window(lambda rows: 78.3, 46.6, "up") == 2
    assert settled_window(lambda rows: 2.0 * rows + 5, 1.0) == 32


def test_the_best_chain_is_the_best():
    times = Times(lambda rows: 420.0, 46.6)
    best = best_chain(0.87, times)

    def gain(gamma):
        return speed.sequential(chain_tokens(0.87, gamma), gamma, 420, 420, 46.6)

    assert gain(best) >= gain(best - 1) and gain(best) >= gain(best + 1)


def test_lengths_have_the_wanted_mean():
    assert sum(even_lengths(3.14, 100)) == 314 and set(even_lengths(3.14, 100)) == {3, 4}
    lengths = geometric_lengths(6.82, 400)
    assert sum(lengths) == round(6.82 * 400) and min(lengths) == 0
    assert lengths.count(0) / 400 == pytest.approx(1 / 7.82, abs=0.01)
    assert geometric_lengths(6.82, 400, seed=1) != lengths
    assert geometric_lengths(0.0, 3) == [0, 0, 0]
    assert all(min(geometric_lengths(mean, 20)) >= 0 for mean in (0.1, 0.5, 1.0, 30.0))
