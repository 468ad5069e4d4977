"""Numbers of clips at once, on virtual machines."""

import pytest

from tests.draft_length.lockstep import Machine, bandwidth, compute
from vidspec.draft_length.costs import PASSES, SIZES, START, BatchSize, PassCosts, batch_rate


def served(machine, gamma, rounds, chained=True, clips=None):
    """The most clips at once after so many rounds of a folder that always has more."""
    size, costs = BatchSize(), PassCosts()
    seen = [size.most]
    for _ in range(rounds):
        n = min(size.most, clips or size.most)
        if gamma and chained:
            costs.add("draft", n, n, machine.measured(machine.draft(n, n)), gamma)
        for _ in range(0 if chained else gamma):
            costs.add("draft", n, n, machine.measured(machine.draft(n, n)))
        costs.add("target", n, n * (gamma + 1), machine.measured(machine.verify(n, n * (gamma + 1))))
        size.add_pass(n, costs)
        if size.most != seen[-1]:
            seen.append(size.most)
    return seen


def true_rate(machine, gamma, n):
    return n / (gamma * machine.draft(n, n) + machine.verify(n, n * (gamma + 1)))


def wanted(machine, gamma):
    """The fewest clips of which twice as many gain less than 3%."""
    enough = (n for n in SIZES[:-1] if true_rate(machine, gamma, 2 * n) < 1.03 * true_rate(machine, gamma, n))
    return next(enough, SIZES[-1])


@pytest.mark.parametrize("gamma", [0, 4])
@pytest.mark.parametrize("seed", range(3))
def test_it_grows_while_it_pays(gamma, seed):
    machine = bandwidth(0.05, seed=seed)
    assert wanted(machine, gamma) == 32
    assert served(machine, gamma, 8 * PASSES) == [8, 16, 32], "never more than doubled at a time"


def test_it_shrinks_where_rows_are_dear():
    """Beyond some rows a pass costs its arithmetic, and every clip more what it reads."""
    machine = Machine(lambda n, rows: 0.5 + 2.0 * rows, lambda n, rows: 0.2 * n)
    assert wanted(machine, 4) == 4
    assert served(machine, 4, 2 * PASSES)[-1] == 4


@pytest.mark.parametrize("gamma", [0, 2, 5])
@pytest.mark.parametrize("seed", range(3))
def test_it_settles_near_the_best(gamma, seed):
    machine = compute(seed)
    found = served(machine, gamma, 16 * PASSES)[-1]
    assert true_rate(machine, gamma, found) > 0.93 * true_rate(machine, gamma, SIZES[-1])
    assert found <= 2 * wanted(machine, gamma)


def test_draft_passes_count_one_by_one_or_as_a_chain():
    machine = Machine(lambda n, rows: 10.0 + 0.01 * rows, lambda n, rows: 3.0 * n, noise=0.0, spikes=0.0)
    for chained in (True, False):
        costs = PassCosts()
        for _ in range(PASSES - 1):
            for _ in range(1 if chained else 5):
                costs.add("draft", 8, 8, 24.0, 5 if chained else 1)
            costs.add("target", 8, 48, machine.verify(8, 48))
        assert batch_rate(costs, 8) == pytest.approx(8 / (5 * 24 + 10.48), rel=0.02)


def test_passes_that_grow_trees_count_with_their_rows():
    costs = PassCosts()
    for _ in range(PASSES):
        for rows in (1, 4, 4):
            costs.add("tree", 8, 8 * rows, 2.0 + rows)
        costs.add("target", 8, 80, 10.0)
    assert batch_rate(costs, 8) == pytest.approx(8 / (3 + 6 + 6 + 10), rel=0.05)


def test_nothing_is_concluded_from_a_few_clips():
    assert served(bandwidth(0.05), 4, 20 * PASSES, clips=START // 2) == [START]
