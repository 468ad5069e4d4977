"""Sequential speculation against plain decoding, on tables: any target, any draft, any window, any end."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.decoding.toys import (
    GREEDY,
    Reciter,
    Recorder,
    ToyEngine,
    blend,
    greedy_text,
    on_tables,
    random_table,
    rounds_of,
)
from tests.tiers import examples
from vidspec.acceptance.base import Verdict
from vidspec.acceptance.rules.exact import ExactRule
from vidspec.config.part_sections import TREE
from vidspec.decoding.limits import StoppingRules
from vidspec.decoding.schedules.autoregressive import autoregressive
from vidspec.decoding.schedules.sequential import sequential
from vidspec.drafting.chain import ChainDrafter
from vidspec.events.compare import count_rounds

SETTINGS = settings(deadline=None, max_examples=examples(120))
ENDS = st.builds(StoppingRules, st.integers(1, 20), st.frozensets(st.integers(0, 5), max_size=2))


def ids(rounds):
    return [token for step in rounds for token in step.token_ids]


def watched(one):
    """All rounds; after each, drafter and target must have been told what was emitted."""
    emit = one.emit

    def checked(event):
        emit(event)
        emitted = one.token_ids
        if emitted[-1] not in one.limits.eos and len(emitted) < one.limits.max_new_tokens and len(one.rounds) > 1:
            assert one.drafting.drafter.prefix == emitted
            # All but the last token have been read by the target, and nothing else is left in its cache.
            assert one.target.span.tokens == emitted[:-1]

    one.emit = checked
    rounds = rounds_of(sequential, one)
    assert len(rounds) == 1 or one.drafting.drafter.prefix[: len(one.token_ids)] == one.token_ids
    return rounds


def check_counters(rounds, one, gamma):
    """Check the invariants of any run of rounds, whatever was drafted."""
    limits, text = one.limits, ids(rounds)
    counters = count_rounds(rounds, one.drafting.drafter.forwards)
    assert counters.emitted == len(text) <= limits.max_new_tokens
    assert not limits.eos & set(text[:-1])
    assert text[-1] in limits.eos or len(text) == limits.max_new_tokens
    assert (rounds[0].drafted, rounds[0].accepted, rounds[0].origins) == (0, 0, ("target",))
    for step in rounds:
        assert len(step.origins) == len(step.token_ids) >= 1
        assert step.drafted >= step.accepted == step.origins.count("draft")
        assert step.drafted <= gamma
        wrong = [(other.at, other.token) for other in step.rejected]
        assert [at for at, _ in wrong] == [step.accepted] * step.origins.count("correction")  # of a chain
        assert all(step.token_ids[at] != token for at, token in wrong)
    for step in rounds[:-1]:
        assert len(step.token_ids) == step.accepted + 1
    assert counters.drafted == sum(step.drafted for step in rounds) >= counters.accepted
    plain = sum(step.origins.count("target") for step in rounds)
    assert counters.emitted == counters.accepted + counters.corrections + counters.bonus + plain
    assert counters.target_forwards == len(one.target.engine.passes) == len(rounds) - 1
    assert one.target.engine.passes == [step.drafted + 1 for step in rounds[1:]]
    elapsed = [step.elapsed for step in rounds]
    assert elapsed == sorted(elapsed)


@SETTINGS
@given(st.integers(0, 10**6), st.integers(2, 6), st.floats(0, 1), st.integers(1, 8), ENDS)
def test_a_draft_model_of_any_quality_changes_nothing(seed, vocabulary, share, gamma, limits):
    target = random_table(seed, vocabulary)
    draft = blend(target, random_table(seed + 1, vocabulary), share)
    plain = rounds_of(autoregressive, on_tables(target, limits))
    assert ids(plain) == greedy_text(target, limits)
    assert all(len(step.token_ids) == 1 and step.origins == ("target",) for step in plain)

    engine = ToyEngine(draft)
    model = ChainDrafter(engine, engine.open(), GREEDY, torch.Generator())
    one = on_tables(target, limits, draft=Recorder(model), gamma=gamma)
    rounds = watched(one)
    assert ids(rounds) == ids(plain)
    check_counters(rounds, one, gamma)
    assert model.forwards == len(engine.passes) == sum(step.drafted for step in rounds)
    assert max(engine.passes, default=1) <= 2  # at most the last drafted token and the bonus are unread
    if share == 0:
        assert all(step.origins.count("correction") == 0 for step in rounds)


TREES = st.sampled_from(["0", "0 1", "0 1 2 00 01 10 000", "1 10", TREE])


@SETTINGS
@given(st.integers(0, 10**6), st.floats(0, 1), TREES, st.integers(1, 6), ENDS)
def test_a_tree_changes_nothing(seed, share, tree, gamma, limits):
    """The toy cache checks that every row sees its own path in order; the text must be the target's."""
    target = random_table(seed, 6)
    draft = blend(target, random_table(seed + 1, 6), share)
    one = on_tables(target, limits, draft=draft, gamma=gamma, tree=tree)
    one.drafting.drafter = Recorder(one.drafting.drafter)
    rounds = watched(one)
    assert ids(rounds) == greedy_text(target, limits)
    counters = count_rounds(rounds, one.drafting.drafter.forwards)
    assert counters.emitted == counters.accepted + counters.corrections + counters.bonus + sum(
        step.origins.count("target") for step in rounds
    )
    assert all(step.accepted <= min(gamma, max(map(len, tree.split()))) for step in rounds)
    for step in rounds:
        others = {other.at: other.token for other in step.rejected}
        assert all(step.token_ids[at] != token for at, token in others.items())
        assert ("correction" in step.origins) <= (step.accepted in others)
    if share == 0 and tree != "1 10":  # the best child is always right
        depth = min(gamma, max(len(word) for word in tree.split() if set(word) == {"0"}))
        assert all(step.accepted == depth for step in rounds[1:-2])


def test_a_tree_finds_what_a_chain_misses():
    """The target always wants the draft's second choice."""
    target = random_table(5, 6)

    def draft(prefix):
        scores = target(prefix).clone()
        scores[int(scores.argmin())] = 99.0
        return scores

    limits = StoppingRules(13, frozenset())
    accepted = {
        tree: count_rounds(
            rounds_of(sequential, on_tables(target, limits, draft=draft, gamma=3, tree=tree)), 0
        ).accepted
        for tree in ("0 00 000", "0 1 11 111")
    }
    assert accepted == {"0 00 000": 0, "0 1 11 111": 9}


@SETTINGS
@given(st.integers(0, 10**6), st.lists(st.integers(0, 3), min_size=1, max_size=30), st.integers(1, 8), ENDS)
def test_any_drafted_tokens_change_nothing(seed, tokens, gamma, limits):
    target = random_table(seed, 4)
    one = on_tables(target, limits, draft=Reciter(tokens), gamma=gamma)
    rounds = watched(one)
    assert ids(rounds) == greedy_text(target, limits)
    check_counters(rounds, one, gamma)


def test_the_check_can_fail():
    """The control: a rule that accepts everything is found out."""

    class AcceptsAll(ExactRule):
        def __call__(self, draft, passed, rng):
            return Verdict.chain(len(draft.tokens), passed.chosen[-1])

    target, limits = random_table(3, 4), StoppingRules(12, frozenset())
    one = on_tables(target, limits, draft=Reciter([0, 1, 2, 3]), gamma=3, rule=AcceptsAll())
    assert ids(rounds_of(sequential, one)) != greedy_text(target, limits)


def test_the_last_windows_shrink_to_what_may_still_be_emitted():
    target = random_table(1, 5)
    one = on_tables(target, StoppingRules(10, frozenset()), draft=target, gamma=4)
    rounds = rounds_of(sequential, one)
    assert [step.drafted for step in rounds] == [0, 4, 3]
    assert [len(step.token_ids) for step in rounds] == [1, 5, 4]
    one = on_tables(target, StoppingRules(7, frozenset()), draft=target, gamma=4)
    rounds = rounds_of(sequential, one)
    assert [step.drafted for step in rounds] == [0, 4, 0]
    assert rounds[-1].origins == ("target",)


def test_eos_inside_an_accepted_window_ends_the_text():
    target, limits = random_table(1, 50), StoppingRules(10, frozenset())
    text = greedy_text(target, limits)
    end = next(i for i in range(2, 5) if text[i] not in text[:i])
    one = on_tables(target, StoppingRules(10, frozenset({text[end]})), draft=target, gamma=6)
    rounds = rounds_of(sequential, one)
    assert ids(rounds) == text[: end + 1]
    assert rounds[-1].accepted == end and rounds[-1].drafted == 6
    assert set(rounds[-1].origins) == {"draft"}


@pytest.mark.parametrize("schedule", [autoregressive, sequential])
@pytest.mark.parametrize(
    "limits", [StoppingRules(1, frozenset()), StoppingRules(9, frozenset(range(5)))], ids=["limit", "EOS"]
)
def test_a_text_of_one_token_needs_no_pass(schedule, limits):
    target = random_table(1, 5)
    one = on_tables(target, limits, draft=target, gamma=3)
    (only,) = rounds_of(schedule, one)
    assert list(only.token_ids) == greedy_text(target, limits)
    assert only.elapsed == 0 and one.target.engine.passes == []


def test_a_drafter_may_propose_less_than_asked():
    """Its window is then the shorter one: passing whole, it earns a bonus."""

    class Shy(Recorder):
        def propose(self, gamma):
            return super().propose(min(gamma, 2))

    target = random_table(1, 5)
    engine = ToyEngine(target)
    shy = Shy(ChainDrafter(engine, engine.open(), GREEDY, torch.Generator()))
    one = on_tables(target, StoppingRules(9, frozenset()), draft=shy, gamma=5)
    rounds = rounds_of(sequential, one)
    assert ids(rounds) == greedy_text(target, one.limits)
    assert [step.origins[-1] for step in rounds[1:-1]] == ["bonus"] * (len(rounds) - 2)
    check_counters(rounds, one, 5)


def test_sequential_needs_somebody_who_drafts():
    with pytest.raises(ValueError, match="drafter"):
        rounds_of(sequential, on_tables(random_table(1, 3), StoppingRules(5, frozenset())))


def test_time_is_told_by_its_half():
    one = on_tables(random_table(1, 5), StoppingRules(6, frozenset()), draft=random_table(1, 5), gamma=2)
    ticks = iter(range(10**6))
    one.trace.clock, one.trace.origin = lambda: float(next(ticks)), 0.0
    rounds = rounds_of(sequential, one)
    assert all(step.draft_s > 0 and step.verify_s > 0 for step in rounds[1:])
    assert sum(step.draft_s + step.verify_s for step in rounds) <= rounds[-1].elapsed
    assert list(one.trace.totals()) == ["draft", "verify", "accept", "rollback"]
    assert {(span.kind, span.worker) for span in one.trace.spans} >= {("draft", "draft"), ("verify", "target")}
    assert max(span.end for span in one.trace.spans) <= rounds[-1].elapsed + 5
