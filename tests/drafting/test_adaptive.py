"""Trees that grow by the draft's probabilities: the target's text, and as many tokens per second as chains at least."""

import statistics

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.decoding.toys import (
    SharedToyEngine,
    blend,
    greedy_text,
    on_tables,
    proposed,
    random_table,
    rounds_of,
    text_steps,
)
from tests.tiers import examples, full_but
from vidspec.decoding.limits import StoppingRules
from vidspec.decoding.loop import Loop
from vidspec.decoding.schedules.autoregressive import autoregressive
from vidspec.decoding.schedules.sequential import sequential
from vidspec.draft_length.pace import WindowController
from vidspec.draft_length.trees import DEEPEST, MOST, WIDEST
from vidspec.drafting.chain import ChainDrafter
from vidspec.drafting.tree import AdaptiveDrafter
from vidspec.engine.sampling import Sampling

GREEDY = Sampling()


class SharedPasses:
    """Clips that are decoded together in virtual time; a pass takes what its clips and rows cost.

    Args:
        verify, draft: seconds by clips and rows.
    """

    def __init__(self, verify, draft):
        self.verify, self.draft = verify, draft
        self.pace, self.now, self.tokens = WindowController(), 0.0, 0
        self.levels = self.chained = 0
        self.shapes = []  # of each window, how many tokens it had, and whether they are a chain

    def heard(self, passing):
        seconds = (self.verify if passing.lane == "target" else self.draft)(passing.sequences, passing.rows)
        self.now += seconds * passing.passes
        self.levels += passing.grows
        lane = "tree" if passing.grows else passing.lane
        self.pace.costs.add(lane, round(passing.sequences), round(passing.rows), seconds, passing.passes)

    def sequence(self, key, table, other, limits, engine, drafting, *, adaptive, sampling=GREEDY, seed=0, gamma=MOST):
        window = self.pace.window()
        if adaptive:
            drafter = AdaptiveDrafter(drafting, drafting.start_of(other))
            drafter.set_pace(self.pace, window)
            watch(drafter, self)
        else:
            drafter = ChainDrafter(drafting, drafting.start_of(other), GREEDY, torch.Generator())
        rng = torch.Generator().manual_seed(seed)
        one = on_tables(table, limits, draft=drafter, gamma=gamma, sampling=sampling, rng=rng)
        one.target.engine, one.target.span = engine, engine.start_of(table)
        one.drafting.window = None if adaptive else window
        one.key, one.steps = key, self.closing(one, window)
        return one

    def closing(self, one, window):
        yield from text_steps(sequential, one)
        window.close()

    def texts(self, pairs, limits, *, batch=1, **how):
        """Texts of clips; each is a target's table and a draft's."""
        engine, drafting, loop = SharedToyEngine(), SharedToyEngine(), Loop(now=lambda: 0.0, on_pass=self.heard)
        waiting, found = list(enumerate(pairs)), []
        while waiting or len(loop):
            while waiting and len(loop) < batch:
                key, (table, other) = waiting.pop(0)
                found.append(self.sequence(key, table, other, limits, engine, drafting, seed=key, **how))
                loop.begin(found[-1])
            list(loop.turn())
        for one in found:
            if one.error is not None:
                raise one.error
        self.tokens = sum(len(one.token_ids) for one in found)
        return [one.token_ids for one in found]


def watch(drafter, world):
    propose = drafter.propose

    def watched(gamma):
        draft = yield from propose(gamma)
        world.shapes.append((len(draft.tokens), draft.is_chain))
        if (growth := drafter._growth) is not None:
            depth, width, nodes = growth.budget
            assert max(draft.depths) <= depth <= min(gamma, DEEPEST)
            assert max(len(draft.children(node)) for node in range(-1, len(draft.tokens))) <= width <= WIDEST
            assert len(draft.tokens) <= nodes <= MOST
            assert len(growth.children) <= MOST + 1, "what was read has no room"
        return draft

    drafter.propose = watched


def pair(seed, share, scale=2.0, vocabulary=6):
    table = random_table(seed, vocabulary, scale)
    return table, blend(table, random_table(seed + 10_000, vocabulary, scale), share)


COSTS = {
    "rows cost nothing": (lambda clips, rows: 10.0, lambda clips, rows: 1.0),
    "rows cost much": (lambda clips, rows: 2.0 + 1.5 * rows, lambda clips, rows: 0.2 + 0.2 * rows),
    "rows cost little": (lambda clips, rows: 10.0 + 0.2 * rows, lambda clips, rows: 1.0 + 0.1 * rows),
    "rows are free up to eight": (lambda clips, rows: 10.0 + 2.0 * max(0, rows - 8), lambda clips, rows: 0.5),
    "the draft's rows cost much": (lambda clips, rows: 10.0, lambda clips, rows: 0.1 + 0.9 * rows),
    "the draft costs much": (lambda clips, rows: 10.0 + 0.1 * rows, lambda clips, rows: 6.0),
}


@settings(deadline=None, max_examples=examples(40))
@given(
    seed=st.integers(0, 10**6),
    share=st.floats(0, 1),
    costs=st.sampled_from(sorted(COSTS)),
    batch=st.sampled_from([1, 4]),
    gamma=st.sampled_from([1, 3, MOST]),
    tokens=st.integers(1, 40),
    eos=st.sampled_from([frozenset(), frozenset({4})]),
)
def test_it_changes_nothing(seed, share, costs, batch, gamma, tokens, eos):
    """The toys' cache checks that every row sees its own path; nor is any budget exceeded."""
    limits = StoppingRules(tokens, eos)
    pairs = [pair(seed + number, share) for number in range(5)]
    texts = SharedPasses(*COSTS[costs]).texts(pairs, limits, batch=batch, gamma=gamma, adaptive=True)
    assert texts == [greedy_text(table, limits) for table, _ in pairs]


@pytest.mark.parametrize("batch", full_but([4], [1, 4]))
def test_drawn_texts_take_one_draw_for_each_token(batch):
    limits, sampling = StoppingRules(30, frozenset({5})), Sampling(0.8, 0.95)
    pairs = [pair(seed, 0.4) for seed in range(24)]
    world = SharedPasses(*COSTS["rows cost nothing"])
    texts = world.texts(pairs, limits, batch=batch, adaptive=True, sampling=sampling)
    for key, (table, _) in enumerate(pairs):
        rng = torch.Generator().manual_seed(key)
        alone = rounds_of(autoregressive, on_tables(table, limits, sampling=sampling, rng=rng))
        assert texts[key] == [token for step in alone for token in step.token_ids]
    assert any(not chain for _, chain in world.shapes)


def compared(costs, batch, share=0.5, clips=8, tokens=80):
    """Tokens per second over those of chains, and what became of each round's window."""
    pairs = [pair(seed, share) for seed in range(clips)]
    found = []
    for adaptive in (False, True):
        world = SharedPasses(*COSTS[costs])
        world.texts(pairs, StoppingRules(tokens, frozenset()), batch=batch, adaptive=adaptive)
        found.append(world.tokens / world.now)
    return found[1] / found[0], world


@pytest.mark.sample(quick=1, full=4)
@pytest.mark.parametrize(
    ("costs", "batch", "least"),
    [
        pytest.param("rows cost nothing", 1, 1.5, marks=pytest.mark.full),
        ("rows cost little", 4, 1.0),
        ("rows cost much", 1, 0.96),
        ("rows cost much", 4, 0.96),
        pytest.param("rows are free up to eight", 1, 1.2, marks=pytest.mark.full),
        ("rows are free up to eight", 4, 0.97),
        pytest.param("the draft's rows cost much", 4, 1.0, marks=pytest.mark.full),
    ],
)
def test_a_chain_is_never_faster_by_more_than_trials_cost(costs, batch, least):
    gain, world = compared(costs, batch)
    later = [chain for _, chain in world.shapes[len(world.shapes) // 4 :]]
    assert gain > least
    if "cost much" in costs and "rows" in costs.split()[0]:
        assert statistics.mean(later) > 0.95, "a chain where rows are dear"
    if least > 1.1:
        assert statistics.mean(later) < 0.1, "a tree where they are not"


def test_nobody_has_told_what_passes_cost():
    other = pair(3, 0.3)[1]
    engine = SharedToyEngine()
    drafter = AdaptiveDrafter(engine, engine.start_of(other))
    drafter.begin(1)
    draft = proposed(drafter, 8)
    assert draft.is_chain and len(draft.tokens) == drafter.window.start == drafter.forwards
