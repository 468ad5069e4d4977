"""Windows of block drafts by the worth of their positions, and rests of drafts without gain."""

import random
from itertools import pairwise

import pytest

from vidspec.draft_length.blocks import FIRST, KNOWN, LEARNED, LONGER, SHORTEST, BlockController, BlockNode
from vidspec.draft_length.costs import PassCosts, TokenPrices


class Prices(TokenPrices):
    """Prices by which a row of the target and a block's pass take so many rounds of plain decoding."""

    def __init__(self, row, block):
        super().__init__(PassCosts(), 0.98)
        self.row, self.block = row, block

    def row_prices(self, rows):
        return [self.row * count for count in range(rows + 1)]

    def of_pass(self, lane, rows):
        return self.block if lane == "draft" else 1.0


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
    assert rests[0] == LONGER * SHORTEST and all(later > earlier for earlier, later in pairwise(rests))
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


def test_blocks_without_a_token_worth_its_row_are_paid_for():
    made = controller(0.1, 0.2)
    for _ in range(40):
        if not made.rest():
            made.add_block(16, 0, 0)
    assert made.rest()


class Decoding:
    """A clip at a time on a virtual machine: a pass of one row takes a second, what is measured may be slower.

    Drafts promise 0.8 for the likeliest token of each position and 0.1 for the next one.
    """

    def __init__(self, kind, row, block, slow=lambda rng, at: 1.0, seed=0):
        self.kind, self.row, self.block, self.slow = kind, row, block, slow
        self.rng, self.passes, self.rests, self.resting = random.Random(seed), 0, [], 0
        self.blocks = BlockController(TokenPrices(PassCosts(), 0.98))

    def add_pass(self, lane, rows, seconds):
        self.blocks.prices.costs.add(lane, 1, rows, seconds * self.slow(self.rng, self.passes))
        self.passes += 1
        return seconds

    def draft(self):
        if self.kind == "tree":
            return self.blocks.tree(lambda position, candidate: [(0, 0.8), (1, 0.1)], 15)
        return [BlockNode(at - 1, at, 0, 0.8) for at in range(self.blocks.window([0.8] * 15))]

    def accept(self, nodes, beta):
        """Length of the accepted path; the likeliest candidate is right with ``beta``, the next one half as often."""
        above, length = -1, 0
        while True:
            drawn = self.rng.random()
            right = 0 if drawn < beta else 1 if drawn < 1.5 * beta else 2
            children = [at for at, node in enumerate(nodes) if node.parent == above]
            for child in children:
                hit = nodes[child].candidate == right
                self.blocks.calibration.update(nodes[child].probability, hit)
                above = child if hit else above
            if above not in children:
                return length
            length += 1

    def clip(self, tokens, beta):
        """Seconds and rounds of a clip."""
        made, prices, seconds, rounds = self.blocks, self.blocks.prices, 0.0, 0
        made.begin_clip()
        while tokens > 0:
            nodes, accepted, rests = [], 0, made.rest()
            if not rests:
                self.rests, self.resting = self.rests + [self.resting] * (self.resting > 0), 0
                seconds += self.add_pass("draft", 16, self.block)
                nodes = self.draft()
                accepted = self.accept(nodes, beta)
            self.resting += rests
            seconds += self.add_pass("target", 1 + len(nodes), 1 + self.row * len(nodes))
            prices.add_tokens(accepted + 1)
            prices.end_round()
            if not rests:
                made.add_block(16, len(nodes), accepted)
            tokens, rounds = tokens - accepted - 1, rounds + 1
        return seconds, rounds


@pytest.mark.parametrize("kind", ["chain", "tree"])
@pytest.mark.parametrize(("row", "block"), [(0.01, 0.1), (0.02, 0.15), (0.05, 0.2)])
@pytest.mark.parametrize("beta", [0.0, 0.03])
def test_useless_drafts_cost_at_most_three_percent(kind, row, block, beta):
    for seed in range(4):
        decoding = Decoding(kind, row, block, seed=seed)
        first, *later = (decoding.clip(128, beta)[0] for _ in range(4))
        assert first <= 1.03 * 128 and max(later) <= 1.015 * 128


@pytest.mark.parametrize("kind", ["chain", "tree"])
@pytest.mark.parametrize("slow", [0, 1, 2, 9])
def test_a_slow_pass_costs_good_drafts_a_few_rounds_at_most(kind, slow):
    for seed in range(10):
        decoding = Decoding(kind, 0.08, 0.3, lambda rng, at: 8.0 if at == slow else 1.0, seed)
        rounds = sum(decoding.clip(128, 0.85)[1] for _ in range(4))
        assert sum(decoding.rests) + decoding.resting <= 2 * SHORTEST and rounds < 128 * 4 / 4


@pytest.mark.parametrize("kind", ["chain", "tree"])
def test_drafts_whose_first_passes_were_slow_are_tried_again_in_the_same_clip(kind):
    for seed in range(10):
        decoding = Decoding(kind, 0.08, 0.3, lambda rng, at: 8.0 if at < 4 else 1.0, seed)
        decoding.clip(128, 0.6)
        assert max([*decoding.rests, decoding.resting]) <= 64
