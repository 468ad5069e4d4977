"""Windows of block drafts by the worth of their positions, and rests of drafts without gain."""

import random
from itertools import pairwise

import pytest

from vidspec.draft_length.blocks import FIRST, KNOWN, LEARNED, BlockController
from vidspec.draft_length.costs import PassCosts, TokenPrices
from vidspec.draft_length.window import REST


class Prices(TokenPrices):
    """Prices by which a row of the target and a block's pass take so many tokens."""

    def __init__(self, row, block):
        super().__init__(PassCosts(), 0.98)
        self.row, self.block = row, block

    def row_prices(self, rows):
        return [self.row * count for count in range(rows + 1)]

    def of_pass(self, lane, rows):
        return self.block


def controller(row, block, accepted=15):
    made = BlockController(Prices(row, block))
    for _ in FIRST:
        made.add_block(16, 15, accepted)
    return made


@pytest.mark.parametrize(
    ("row", "probabilities", "window"),
    [
        (0.0, [0.9] * 15, 15),  # rows are free
        (0.3, [0.9, 0.9, 0.2, 0.99, 0.99], 2),  # what comes after an unlikely token is as unlikely
        (0.3, [0.2, 0.99], 0),
        (2.0, [0.9] * 15, 0),  # a row costs more than a token
    ],
)
def test_as_many_positions_are_verified_as_are_worth_their_rows(row, probabilities, window):
    made = controller(row, 0.0)
    made.calibration = lambda probability: probability  # as it promises
    assert made.window(probabilities) == window


def scores(nodes):
    found = []
    for node in nodes:
        found.append(node.probability * (found[node.parent] if node.parent >= 0 else 1.0))
    return found


@pytest.mark.parametrize("row", [0.0, 0.05, 0.3])
@pytest.mark.parametrize("seed", range(4))
def test_a_tree_has_the_best_nodes_that_are_worth_their_rows(row, seed):
    """Against all nodes of the whole tree: three positions of three candidates."""
    rng = random.Random(seed)

    def shares():
        drawn = [rng.random() ** 3 for _ in range(3)]
        return sorted(((at, one / sum(drawn)) for at, one in enumerate(drawn)), key=lambda pair: -pair[1])

    table = [[shares() for _ in range(3)] for _ in range(3)]
    made = controller(row, 0.0)
    made.calibration, made._blocks = (lambda probability: probability), LEARNED
    for _ in range(2):
        made.prices.costs.add("target", 1, 22, 1.0)  # the widest pass: trees have at most half as many more
    nodes = made.tree(lambda position, candidate: table[position][candidate], 3)
    every, level = [], [(0, 1.0)]
    for position in range(3):
        level = [(at, above * share) for one, above in level for at, share in table[position][one if position else 0]]
        every += [score for _, score in level]
    assert scores(nodes) == pytest.approx([score for score in sorted(every, reverse=True)[:33] if score > row])
    depths = [nodes[node.parent].position + 1 if node.parent >= 0 else 0 for node in nodes]
    assert [node.position for node in nodes] == depths and all(node.parent < at for at, node in enumerate(nodes))


def test_the_first_windows_measure_the_cost_of_rows():
    made, seen = BlockController(TokenPrices(PassCosts(), 0.98)), []
    for _ in FIRST:
        seen.append(made.window([0.9] * 15))
        made.add_block(16, 15, 15)
    assert seen == list(FIRST) and made.window([0.9] * 15) in FIRST  # nothing has been measured
    assert made.window([0.9] * 2) == 2


def test_drafts_that_cost_more_than_they_gain_rest_for_longer_and_longer():
    made, rests = controller(0.1, 1.0, accepted=0), []
    for _ in range(4):
        begun = made.prices.rounds
        while made.rest():
            made.prices.rounds += 1
        rests.append(made.prices.rounds - begun)
        made.add_block(16, 15, 0)
    assert rests[0] >= REST and all(later >= earlier for earlier, later in pairwise(rests))
    while made.rest():
        made.prices.rounds += 1
    made.add_block(16, 15, 12)  # one draft that gains ends the rest
    assert not made.rest()


def test_a_rest_ends_where_the_number_of_clips_is_another():
    made = controller(0.1, 1.0, accepted=0)
    assert made.rest()
    made.prices.clips = 8
    assert not made.rest()


def test_a_batch_rests_once_blocks_of_every_clip_have_been_seen():
    made = BlockController(Prices(0.1, 1.0))
    made.prices.clips = 8
    for _ in range(8 * KNOWN - 1):
        made.add_block(16, 15, 0)
        assert not made.rest()
    made.add_block(16, 15, 0)
    assert made.rest()
