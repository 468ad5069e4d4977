"""Token recycling: successors are the target's own choices, and the text is plain decoding's."""

from dataclasses import replace

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.acceptance.windows import chain, window_pass
from tests.decoding.toys import blend, greedy_text, on_tables, proposed, random_table, rounds_of
from tests.tiers import examples
from vidspec.decoding.limits import StoppingRules
from vidspec.decoding.schedules.sequential import sequential
from vidspec.drafting.drafters.recycle import RecycleDraft


def begun(kind):
    one = kind.__class__()
    one.successors, one.text = kind.successors, []
    return one


def test_the_targets_last_choice_behind_a_token_is_proposed():
    one = begun(RecycleDraft())
    one.begin(3)
    assert proposed(one, 4).tokens == ()
    one.read((1,), window_pass(chain(*one.window), torch.eye(5)[[1]]))
    assert proposed(one, 4).tokens == ()  # nothing is known behind 1
    one.read((3,), window_pass(chain(*one.window), torch.eye(5)[[3]]))
    assert proposed(one, 3).tokens == (1, 3, 1)
    # 1 is right; the rows behind it count too, the last the most.
    passed = window_pass(chain(*one.window), torch.eye(5)[[1, 2, 4, 0]])
    one.read((1, 2), replace(passed, path=(0,)))
    assert one.text == [3, 1, 3, 1, 2] and one.successors == {3: 4, 1: 0}


@settings(deadline=None, max_examples=examples(40))
@given(st.integers(0, 10**6), st.integers(1, 8), st.floats(0, 1))
def test_texts_are_plain_decodings_and_later_clips_profit(seed, gamma, share):
    kind, limits, accepted = RecycleDraft(), StoppingRules(30, frozenset({4})), []
    markov = random_table(seed, 5)
    table = blend(lambda prefix: markov(prefix[-1:]), random_table(seed + 1, 5), 0.2 * share)
    for _ in range(2):
        rounds = rounds_of(sequential, on_tables(table, limits, draft=begun(kind), gamma=gamma))
        assert [token for one in rounds for token in one.token_ids] == greedy_text(table, limits)
        accepted.append(sum(one.accepted for one in rounds))
    if share == 0:  # the next token follows from the last alone: the first clip has taught them all
        text = greedy_text(table, limits)
        assert len(rounds) == 1 + -(-(len(text) - 1) // (gamma + 1)) and accepted[1] >= accepted[0]
    kind.forget()
    assert not kind.successors
