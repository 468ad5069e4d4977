"""Trees grow by the likeliest paths, never beyond their budget, and as long as that is worth its time."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.draft_length.lockstep import informed
from tests.tiers import examples
from vidspec.draft_length.pace import WindowController
from vidspec.draft_length.trees import CHAIN, FIRST, MOST, TRIALS, DraftCalibration, TreeBudget


def told(verify, draft, beta=0.6):
    """A pace that was told what passes cost."""
    pace = informed(verify, draft, beta)
    window = pace.window()
    for rows in (1, 30, 30, 60, 60):
        pace.costs.add("target", 1, rows, verify(rows))
    for rows in (1, 2, 4, 8):
        pace.costs.add("tree", 1, rows, draft)
    window.update(0, 0)
    assert window.gamma >= 0
    return pace, window


def grow(growth, probabilities):
    """Each node has children of these probabilities, by the node and its depth."""
    read, frontier = [], [-1]
    while frontier:
        read += frontier
        for node in frontier:
            depth = growth.depths[node] if node >= 0 else 0
            growth.add_children(node, probabilities(node, depth))
        frontier = growth.next_nodes()
    return read


def brute(growth, nodes):
    """The most that so many nodes with all their ancestors add up to, by adding the best that is left."""
    chosen = set()
    while len(chosen) < nodes:
        left = [n for n in range(len(growth.scores)) if n not in chosen and growth.parents[n] in {-1, *chosen}]
        if not left:
            break
        chosen.add(max(left, key=lambda node: growth.scores[node]))
    return math.fsum(growth.scores[node] for node in chosen)


@settings(deadline=None, max_examples=examples(50))
@given(
    st.lists(st.lists(st.floats(0, 1), min_size=1, max_size=5), min_size=1, max_size=20),
    st.integers(1, 8),
    st.integers(2, 6),
    st.integers(1, 30),
    st.floats(0, 0.2),
)
def test_the_best_nodes_are_kept_with_all_before_them(tables, depth, width, nodes, row):
    pace, window = told(lambda rows: 1 + row * rows, 0.01)
    growth = pace.trees.growth(window, TreeBudget(depth, width, nodes))

    def children(node, depth):
        table = sorted(tables[node % len(tables)], reverse=True)[:width]
        return [one / max(1.0, sum(table)) for one in table]

    read = grow(growth, children)
    kept = growth.best_nodes()
    assert 1 <= len(kept) <= nodes and max(growth.depths) <= depth
    assert len(read) <= min(MOST, 1 + (depth - 1) * width) + 1 and len(set(read)) == len(read)
    places = {node: at for at, node in enumerate(kept)}
    assert all(growth.parents[node] < 0 or places[growth.parents[node]] < places[node] for node in kept)
    assert math.fsum(growth.scores[node] for node in kept) == pytest.approx(brute(growth, len(kept)))


def test_sure_tokens_give_depth_and_unsure_ones_width():
    pace, window = told(lambda rows: 1 + 0.02 * rows, 0.05)
    made = {}
    for name, table in {"sure": [0.97, 0.02], "unsure": [0.3, 0.25, 0.2, 0.15]}.items():
        growth = pace.trees.growth(window, TreeBudget(16, 4, 60))
        grow(growth, lambda node, depth, table=table: table)
        kept = growth.best_nodes()
        made[name] = max(growth.depths[node] for node in kept), sum(growth.parents[node] == -1 for node in kept)
    assert made["sure"][0] > 2 * made["unsure"][0] and made["sure"][1] == 1 and made["unsure"][1] == 4


def test_a_dear_draft_stops_growing():
    passes = []
    for draft in (0.001, 0.3, 3.0):
        pace, window = told(lambda rows: 1 + 0.01 * rows, draft)
        growth = pace.trees.growth(window, TreeBudget(16, 4, 60))
        grow(growth, lambda node, depth: [0.7, 0.1, 0.1])
        passes.append(max(growth.depths))
    assert passes[0] > passes[1] > passes[2] == 1


def test_what_rows_cost_bounds_the_tree():
    found = [told(lambda rows, row=row: 1 + row * rows, 0.05)[0].trees.affordable(16) for row in (0.0, 0.3, 5.0)]
    assert found[0] == TreeBudget(16, 8, MOST)
    assert found[0].nodes > found[1].nodes > found[2].nodes and found[0].width >= found[1].width > found[2].width == 1
    assert WindowController().trees.affordable(8) == CHAIN, "nobody knows what rows cost"


def test_no_more_rows_than_have_been_seen_by_half():
    pace = WindowController()
    window = pace.window()
    for _ in range(3):
        pace.costs.add("draft", 1, 1, 0.1)
        pace.costs.add("target", 1, 6, 1.0)
        window.update(5, 3)
    assert pace.trees.affordable(16).nodes == 9
    pace.costs.add("target", 1, 40, 1.0)
    assert pace.trees.affordable(16).nodes == 9, "a single pass may have been a freak"


@pytest.mark.parametrize(("lost", "stay"), [(0.0, True), (2.0, False)])
def test_trees_are_tried_and_stay_where_they_gain(lost, stay):
    """``lost``: tokens less than the tree promises to gain over the chain."""
    pace, window = told(lambda rows: 10 + 0.01 * rows, 0.5)
    shapes = []
    for _ in range(120):
        budget = pace.trees.budget(window, 16)
        shapes.append(budget.width > 1)
        if shapes[-1]:
            growth = pace.trees.growth(window, budget)
            grow(growth, lambda node, depth: [0.5, 0.3])
            growth.spent += lost
            pace.trees.add_tree(growth, window.chosen, 2)
        pace.costs.add("target", 1, 5, 10.0)
        window.update(4, 2)
    begun = FIRST - 4  # four rounds were told
    assert not any(shapes[:begun]) and all(shapes[begun : begun + TRIALS])
    assert (sum(shapes[20:]) > 90) if stay else (sum(shapes[20:]) < 10)


def test_promises_of_a_draft_that_rests_count_for_nothing():
    """It is sure of its tokens, and none is ever accepted: each tree shows that, and the next ones become rare."""
    pace, window = told(lambda rows: 10 + 0.01 * rows, 1.0, beta=0.0)
    grown = 0
    for _ in range(400):
        pace.costs.add("target", 1, 1, 10.0)
        if pace.trees.rest() and window.rest():
            window.update(0, 0)
            continue
        budget = pace.trees.budget(window, 16)
        if budget.width > 1:
            growth = pace.trees.growth(window, budget)
            grow(growth, lambda node, depth: [0.9, 0.05])
            pace.trees.add_tree(growth, window.chosen, 0)
            grown += 1
        window.update(window.gamma, 0)
    assert 2 <= grown <= 4


def test_calibration_follows_the_target():
    calibration = DraftCalibration()
    assert calibration(0.6) == pytest.approx(0.6) and calibration(1.0) <= 0.99
    for number in range(3000):
        calibration.update(0.6, number % 10 < 3)
        calibration.update(0.1, number % 10 < 3)
    assert calibration(0.6) == pytest.approx(0.3, abs=0.03) and calibration(0.1) == pytest.approx(0.3, abs=0.03)
