"""Windows of block drafts by the worth of their positions, and rests of drafts without gain."""

from itertools import pairwise

import pytest

from vidspec.draft_length.blocks import FIRST, KNOWN, BlockController
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
        made.add_block(16, [0.9] * 15, accepted)
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


def test_the_first_windows_measure_the_cost_of_rows():
    made, seen = BlockController(TokenPrices(PassCosts(), 0.98)), []
    for _ in FIRST:
        seen.append(made.window([0.9] * 15))
        made.add_block(16, [0.9] * 15, 15)
    assert seen == list(FIRST) and made.window([0.9] * 15) in FIRST  # nothing has been measured
    assert made.window([0.9] * 2) == 2


def test_drafts_that_cost_more_than_they_gain_rest_for_longer_and_longer():
    made, rests = controller(0.1, 1.0, accepted=0), []
    for _ in range(4):
        begun = made.prices.rounds
        while made.rest():
            made.prices.rounds += 1
        rests.append(made.prices.rounds - begun)
        made.add_block(16, [0.9] * 15, 0)
    assert rests[0] >= REST and all(later >= earlier for earlier, later in pairwise(rests))
    while made.rest():
        made.prices.rounds += 1
    made.add_block(16, [0.9] * 15, 12)  # one draft that gains ends the rest
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
        made.add_block(16, [0.9] * 15, 0)
        assert not made.rest()
    made.add_block(16, [0.9] * 15, 0)
    assert made.rest()
