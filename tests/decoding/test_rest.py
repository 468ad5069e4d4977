"""Rounds in which the draft rests: they are plain decoding's, and the draft reads their tokens in one pass later."""

import sys

import pytest
import torch

from tests.decoding.toys import (
    GREEDY,
    ToyEngine,
    emit_window,
    greedy_text,
    on_tables,
    proposed,
    random_table,
    rounds_of,
)
from tests.draft_length.lockstep import informed
from vidspec.decoding.limits import StoppingRules
from vidspec.decoding.schedules.autoregressive import autoregressive
from vidspec.decoding.schedules.sequential import sequential
from vidspec.draft_length.trees import CHAIN
from vidspec.drafting.base import NO_DRAFT
from vidspec.drafting.chain import ChainDrafter
from vidspec.drafting.tree import AdaptiveDrafter

TABLE, OTHER, LIMITS = random_table(1, 6), random_table(2, 6), StoppingRules(65)
#: Calls of Python functions that a round may take to find that the draft rests, and to let the drafter read its token.
CALLS = 14


def hopeless():
    return informed(lambda rows: 10.0, 9.0, 0.0)


def sequence(kind, pace, limits=LIMITS):
    """One clip with a draft of this kind, and the draft's engine."""
    engine, window = ToyEngine(OTHER), pace.window()
    if kind == "chain":
        drafter = ChainDrafter(engine, engine.open(), GREEDY, torch.Generator())
    else:
        drafter = AdaptiveDrafter(engine, engine.open())
        drafter.set_pace(pace, window)
    one = on_tables(TABLE, limits, draft=drafter, gamma=16)
    one.drafting.window = window if kind == "chain" else None
    return one, engine


def calls(schedule, one):
    """Functions of Python that run from its seventh round to its last."""
    count = [0]

    def profile(frame, event, argument):
        count[0] += event == "call"

    emit = one.emit

    def emitted(event):
        emit(event)
        if len(one.rounds) == 7:  # the first rounds with so many clips are measured
            sys.setprofile(profile)

    one.emit = emitted
    try:
        rounds_of(schedule, one)
    finally:
        sys.setprofile(None)
    return count[0]


@pytest.mark.parametrize("kind", ["chain", "adaptive"])
def test_a_round_that_rests_is_plain_decodings(kind):
    limits = StoppingRules(16)  # before the first trial
    one, engine = sequence(kind, hopeless(), limits)
    if kind == "adaptive":
        one.drafting.drafter.trees.rest = lambda: True  # their first trial would be in the eighth round
    plain = on_tables(TABLE, limits)
    extra = calls(sequential, one) - calls(autoregressive, plain)
    assert one.token_ids == plain.token_ids and not engine.passes
    assert [(r.origins, r.drafted) for r in one.rounds] == [(r.origins, r.drafted) for r in plain.rounds]
    assert extra <= CALLS * 9
    assert one.drafting.drafter.declined == 15


@pytest.mark.parametrize("kind", ["chain", "adaptive"])
def test_a_draft_that_rested_reads_what_it_missed_in_one_pass(kind):
    pace = hopeless()
    one, engine = sequence(kind, pace)
    if kind == "adaptive":
        one.drafting.drafter.trees.rest = lambda: True
        one.drafting.drafter.trees.affordable = lambda gamma: CHAIN
    rounds_of(sequential, one)
    assert one.token_ids == greedy_text(TABLE, LIMITS)
    trials = [at for at, step in enumerate(one.rounds) if step.drafted]
    assert trials and engine.passes[:2] == [trials[0], 1], "all tokens of the rest, then one"
    assert sum(len(step.rejected) for step in one.rounds) <= len(trials)


def test_what_it_drafts_after_a_rest_is_what_it_drafts_without():
    chains = []
    text = greedy_text(TABLE, LIMITS)[:20]
    for rested in (True, False):
        engine = ToyEngine(OTHER)
        drafter = ChainDrafter(engine, engine.open(), GREEDY, torch.Generator())
        drafter.begin(text[0])
        for token in text[1:]:
            window = NO_DRAFT if rested else proposed(drafter, 1)
            emit_window(drafter, window, (), token)
        chains.append(proposed(drafter, 4).tokens)
        assert engine.passes[-4:] == ([20, 1, 1, 1] if rested else [1, 1, 1, 1])
    assert chains[0] == chains[1]
