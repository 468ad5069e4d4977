"""Drafts that are looked up: what they propose, that texts stay as they were, and who drafts in a hybrid."""

from copy import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.acceptance.sequences import SIGNIFICANCE, exact_distribution, p_value
from tests.decoding.toys import (
    GREEDY,
    Reciter,
    ToyEngine,
    blend,
    emit_window,
    greedy_text,
    on_tables,
    proposed,
    random_table,
    rounds_of,
)
from tests.draft_length.lockstep import informed
from tests.tiers import examples
from vidspec.decoding.limits import StoppingRules
from vidspec.decoding.schedules.autoregressive import autoregressive
from vidspec.decoding.schedules.sequential import sequential
from vidspec.drafting.base import NO_DRAFT
from vidspec.drafting.chain import ChainDrafter
from vidspec.drafting.drafters.hybrid import HybridDraft, HybridDrafter
from vidspec.drafting.drafters.ngram import NgramDraft
from vidspec.drafting.drafters.suffix import SuffixDraft
from vidspec.drafting.lookup import LONGEST, PRIOR, MatchAcceptance
from vidspec.drafting.memory import TextMemory
from vidspec.engine.sampling import Sampling
from vidspec.errors import ProfileError

VOCABULARY, EOS = 5, 4


class Costs:
    """Rows at one price."""

    def __init__(self, price):
        self.price = price

    def row_prices(self, rows):
        return [self.price * row for row in range(rows + 1)]


def begun(kind, *, prompt=(), nodes=None, price=0.0):
    one = copy(kind)
    one.prompt, one.text = tuple(prompt), []
    one.start(1000, nodes, Costs(price))
    return one


def remembering(*texts):
    kind = SuffixDraft()
    kind.memory = TextMemory(100_000)
    for text in texts:
        kind.memory.add(text)
    return kind


def written(one, text):
    first, *rest = text
    one.begin(first)
    one.add(rest)
    return one


def test_what_followed_the_longest_match_is_proposed():
    kind = remembering([1, 2, 3, 4, 5, 6], [9, 3, 7, 7])
    assert proposed(written(begun(kind), [8, 2, 3]), 3).tokens == (4, 5, 6)
    assert proposed(written(begun(kind), [9, 3]), 9).tokens[:2] == (7, 7)
    assert proposed(written(begun(kind), [8, 8]), 0).tokens == ()
    assert proposed(written(begun(kind), [100]), 5).tokens == ()


def test_the_most_frequent_continuation_is_proposed_and_of_equals_the_newest():
    kind = remembering([1, 2, 7], [1, 2, 8], [1, 2, 8], [1, 2, 7], [1, 2, 8])
    assert proposed(written(begun(kind), [1, 2]), 1).tokens == (8,)
    kind = remembering([1, 2, 8], [1, 2, 7])
    assert proposed(written(begun(kind), [1, 2]), 1).tokens == (7,)


def test_ngram_knows_the_prompt_and_its_own_text_alone():
    one = written(begun(NgramDraft(), prompt=[5, 6, 7, 8]), [1, 6, 7])
    draft = proposed(one, 1)
    assert draft.tokens == (8,)
    emit_window(one, draft, (0,), 9)
    assert one.text == [1, 6, 7, 8, 9]
    one.add([6, 7])
    assert proposed(one, 2).tokens == (8, 9)  # its own text is newer than the prompt
    one.finish(one.text)
    assert proposed(written(begun(NgramDraft()), [6, 7]), 2).tokens == ()


def test_a_finished_text_is_remembered_for_all_clips():
    kind = remembering()
    first = written(begun(kind), [1, 2, 3])
    second = written(begun(kind), [1, 2])
    assert proposed(second, 2).tokens == ()
    emit_window(second, NO_DRAFT, (), 5)
    first.finish([1, 2, 5, 6, 7])
    assert proposed(second, 2).tokens == (6, 7)


def test_a_tree_holds_alternatives_and_the_likeliest_come_first():
    kind = remembering([1, 2, 7, 7], [1, 2, 8, 3], [1, 2, 8, 4], [1, 2, 8, 3])
    draft = proposed(written(begun(kind, nodes=5), [1, 2]), 2)
    assert draft.tokens == (8, 3, 7, 4, 7) or draft.tokens == (8, 3, 7, 7, 4)
    assert all(parent < node for node, parent in enumerate(draft.parents)) and max(draft.depths) == 2
    assert draft.children(-1) == [0, 2] and not draft.is_chain
    assert proposed(written(begun(kind, nodes=1), [1, 2]), 2).tokens == (8,)
    assert proposed(written(begun(kind, nodes=5), [1, 2]), 1).tokens == (8, 7)


def test_windows_are_longer_behind_longer_matches_and_shorter_where_rows_are_dear():
    text = list(range(100, 164))
    kind = remembering(text)

    def length(match, price):
        return len(proposed(written(begun(kind, price=price), [1, *text[20 - match : 20]]), 64).tokens)

    lengths = [length(match, 0.1) for match in (1, 2, 4, 8, 16)]
    assert lengths == sorted(lengths) and lengths[0] < lengths[-1] <= LONGEST
    by_price = [length(8, price) for price in (0.0, 0.05, 0.2, 0.5, 1.0)]
    assert by_price == sorted(by_price, reverse=True) and by_price[-1] == 0 < by_price[-2]


def test_what_is_found_and_costs_more_than_it_gains_is_declined():
    text = list(range(100, 164))
    dear, cheap = (written(begun(remembering(text), price=price), [1, *text[10:20]]) for price in (1.0, 0.1))
    unknown = written(begun(remembering(text), price=1.0), [1, 2, 3])
    assert [len(proposed(one, 8).tokens) > 0 for one in (dear, cheap, unknown)] == [False, True, False]
    assert [one.declined for one in (dear, cheap, unknown)] == [1, 0, 0]


def test_reliance_follows_what_came_true():
    reliance = MatchAcceptance()
    assert [reliance(length) for length in (1, 2, 4, 8, 16, 99)] == pytest.approx([*PRIOR, PRIOR[-1]])
    for _ in range(2000):
        reliance.update(3, 0.5, True)
        reliance.update(8, 1.0, False)
    assert reliance(2) == 0.99 and reliance(9) < 0.05 and reliance(1) == pytest.approx(PRIOR[0])


def test_proposals_that_fail_are_made_less_and_less():
    kind = remembering([1, 2, 3])
    made = 0
    for _ in range(60):
        one = written(begun(kind, price=0.1), [1, 2])
        draft = proposed(one, 1)
        if draft.tokens:
            made += 1
            emit_window(one, draft, (), 9)
    assert 0 < made < 60


def tables(seed, repeats=True):
    """A target of few words whose choice depends on the last two: it repeats itself and other texts."""
    table = random_table(seed, VOCABULARY, 2.0)
    return (lambda prefix: table(prefix[-2:])) if repeats else table


@settings(deadline=None, max_examples=examples(40))
@given(st.integers(0, 1000), st.integers(1, 12), st.sampled_from([None, 3, 25]), st.booleans())
def test_greedy_texts_are_plain_decodings(seed, gamma, nodes, repeats):
    limits, kind = StoppingRules(40, frozenset({EOS})), remembering()
    for clip in range(3):
        table = tables(seed + clip % 2, repeats)
        one = begun(kind, prompt=[0, 1, 2, 3], nodes=nodes)
        rounds = rounds_of(sequential, on_tables(table, limits, draft=one, gamma=gamma))
        text = [token for step in rounds for token in step.token_ids]
        assert text == greedy_text(table, limits)
        assert one.text[: len(text)] == text or len(text) == 1  # which needs no draft
    assert len(kind.memory) == 3 + sum(len(greedy_text(tables(seed + n, repeats), limits)) for n in (0, 1, 0))
    assert sum(step.accepted for step in rounds) > 0 or len(text) < 10 or not repeats


DRAWN = [Sampling(1.0), Sampling(0.7, 0.8)]


@pytest.mark.sample(quick=1)
@pytest.mark.parametrize("sampling", DRAWN, ids=str)
@pytest.mark.parametrize("nodes", [None, 6])
def test_drawn_texts_do_not_depend_on_what_is_remembered(sampling, nodes):
    """Token for token those of plain decoding with the same generator, and so of the target's distribution."""
    limits, kind, table = StoppingRules(3, frozenset({EOS})), remembering(), random_table(11, VOCABULARY, 1.2)
    plain, rng = torch.Generator(), torch.Generator()
    texts, accepted = [], 0
    for seed in range(400):
        plain.manual_seed(seed)
        rng.manual_seed(seed)
        one = begun(kind, nodes=nodes)
        rounds = rounds_of(sequential, on_tables(table, limits, draft=one, gamma=3, sampling=sampling, rng=rng))
        alone = rounds_of(autoregressive, on_tables(table, limits, sampling=sampling, rng=plain))
        texts.append(tuple(token for step in rounds for token in step.token_ids))
        assert texts[-1] == tuple(token for step in alone for token in step.token_ids)
        accepted += sum(step.accepted for step in rounds)
    assert accepted > 100
    assert p_value(texts, exact_distribution(table, sampling, limits)) > SIGNIFICANCE


class TimedWindows:
    """A pace that has heard passes of given times."""

    def __new__(cls, verify, draft, beta=0.6):
        pace = informed(verify, draft, beta)
        window = pace.window()
        window.update(0, 0)
        window.close()
        return pace


def hybrid(model, kind, pace, gamma=None, nodes=None, given=False):
    lookup = begun(kind, nodes=nodes)
    lookup.prices = None
    one = HybridDrafter(model, lookup, gamma, given)
    one.set_pace(pace, pace.window())
    return one


def chain(table):
    engine = ToyEngine(table)
    return ChainDrafter(engine, engine.open(), GREEDY, torch.Generator())


def test_a_hybrid_takes_what_gains_more():
    kind = remembering([1, 2, 3, 5, 6, 7, 8])
    sure = TimedWindows(lambda rows: 1 + 0.01 * rows, 0.3)
    one = hybrid(Reciter([9]), kind, sure, gamma=3)
    one.begin(1)
    one.lookup.add([2, 3, 5])
    assert proposed(one, 8).tokens == (6, 7, 8)  # nothing to pay for
    one = hybrid(Reciter([9]), kind, sure, gamma=3)
    one.begin(4)
    assert proposed(one, 8).tokens == (9, 9, 9)  # nothing was found
    free = TimedWindows(lambda rows: 1 + 0.01 * rows, 1e-6, beta=0.99)
    one = hybrid(Reciter([9]), kind, free, gamma=8)
    one.begin(1)
    assert proposed(one, 8).tokens == (9,) * 8  # a model that costs nothing and is always right


SURE = TimedWindows(lambda rows: 1 + 0.01 * rows, 0.01, beta=0.95)


def test_lookup_continues_the_models_window():
    kind = remembering([1, 2, 3, 4, 5, 6, 7])
    one = hybrid(Reciter([3, 4, 5]), kind, SURE, gamma=3, given=True)
    one.begin(9)
    assert proposed(one, 16).tokens == (3, 4, 5, 6, 7)  # 9 has not been seen, and 3 4 5 goes on with 6 7
    assert proposed(one, 4).tokens == (3, 4, 5, 6)  # the end of the text is near
    one.lookup.prices = Costs(0.9)
    assert proposed(one, 16).tokens == (3, 4, 5)  # more rows cost more than they gain


class Others(Reciter):
    """A reciter that takes any path of a window, which also has others' tokens."""

    def read(self, tokens, passed):
        self.prefix += tokens


def test_in_trees_lookup_stands_beside_a_model_that_is_often_wrong():
    unsure = TimedWindows(lambda rows: 1 + 0.001 * rows, 0.001, beta=0.3)
    one = hybrid(Others([3, 9]), remembering([1, 2, 3, 4, 5]), unsure, gamma=2, nodes=9, given=True)
    one._expected_gain = lambda window: float("inf")  # the model drafts
    one.begin(1)
    one.lookup.add([2])
    draft = proposed(one, 16)
    assert draft.paths == ((3,), (3, 9), (3, 4))
    emit_window(one, draft, (0, 2), 7)
    assert (one.window.acceptance.failed, one.lookup.text) == (
        pytest.approx(0.98 * 0.7 * 16 + 1, 0.05),
        [1, 2, 3, 4, 7],
    )


@pytest.mark.parametrize("nodes", [None, 12])
def test_reliance_follows_the_part_of_a_window_that_was_looked_up(nodes):
    """After the model's tokens, if all were right; a branch that the model shares is judged as far as it goes."""
    told = []
    kind = remembering([1, 2, 3, 4, 5, 6, 7, 8, 9])
    one = hybrid(Others([3, 4, 5, 6]), kind, SURE, gamma=4, nodes=nodes, given=True)
    one.lookup.reliance.update = lambda length, share, right: told.append((length, right))
    one.begin(99)
    window = proposed(one, 16)
    assert window.tokens == (3, 4, 5, 6, 7, 8, 9)
    emit_window(one, window, (0, 1, 2, 3, 4), 98)
    assert told == [(4, True), (5, False)]
    told.clear()
    emit_window(one, proposed(one, 16), (0,), 97)
    assert not told and one.lookup.text == [99, 3, 4, 5, 6, 7, 98, 3, 97]  # the tail was not reached


def test_lookup_beside_a_model_writes_more_a_pass_than_either():
    """A model that is right in nine of ten cases, and lookup in texts that share phrases with this one."""
    limits, table = StoppingRules(200), tables(5)
    known = greedy_text(table, limits)[20:120]
    model = blend(table, random_table(77, VOCABULARY, 2.0), 0.35)
    passes = {}
    for name in ("model", "lookup", "both"):
        one = chain(model) if name == "model" else begun(remembering(known))
        if name == "both":
            one = hybrid(chain(model), remembering(known), SURE, gamma=3, given=True)
        rounds = rounds_of(sequential, on_tables(table, limits, draft=one, gamma=3 if name == "model" else 16))
        assert [token for step in rounds for token in step.token_ids] == greedy_text(table, limits)
        passes[name] = len(rounds)
    assert passes["both"] < min(passes["model"], passes["lookup"])


@pytest.mark.sample(quick=1)
@pytest.mark.parametrize("sampling", DRAWN, ids=str)
@pytest.mark.parametrize("nodes", [None, 6])
def test_drawn_texts_of_a_hybrid_are_plain_decodings(sampling, nodes):
    """Behind a first token that is always 0: a token of the model and one of lookup fit into texts of four."""
    limits, kind, behind = StoppingRules(4), remembering(), random_table(11, VOCABULARY, 1.2)
    first = torch.tensor([99.0, 0.0, 0.0, 0.0, 0.0])
    table = lambda prefix: behind(prefix[1:]) if prefix else first  # noqa: E731
    plain, rng = torch.Generator(), torch.Generator()
    texts, parts = [], set()
    for seed in range(400):
        plain.manual_seed(seed)
        rng.manual_seed(seed)
        one = hybrid(chain(table), kind, SURE, gamma=1, nodes=nodes, given=True)
        one.lookup.prices = Costs(0.0)  # else it soon proposes little: texts are at random
        rounds = rounds_of(sequential, on_tables(table, limits, draft=one, gamma=3, sampling=sampling, rng=rng))
        alone = rounds_of(autoregressive, on_tables(table, limits, sampling=sampling, rng=plain))
        texts.append(tuple(token for step in rounds for token in step.token_ids))
        assert texts[-1] == tuple(token for step in alone for token in step.token_ids)
        parts |= {(step.drafted > 1, step.accepted) for step in rounds}
    assert {(True, 0), (True, 1), (True, 2)} <= parts
    assert p_value(texts, exact_distribution(table, sampling, limits)) > SIGNIFICANCE


@settings(deadline=None, max_examples=examples(30))
@given(
    st.integers(0, 1000),
    st.sampled_from([None, 2, 5]),
    st.floats(0.01, 0.9),
    st.sampled_from([None, 4, 12]),
    st.booleans(),
)
def test_greedy_texts_of_a_hybrid_are_plain_decodings(seed, gamma, cost, nodes, given):
    """The model's cache catches up with what was looked up: it asserts the order of places, and proposes the same."""
    limits, kind = StoppingRules(40, frozenset({EOS})), remembering()
    for clip in range(3):
        table = tables(seed + clip % 2)
        model = chain(blend(table, random_table(seed, VOCABULARY), 0.4))
        pace = TimedWindows(lambda rows: 1 + 0.02 * rows, cost)
        one = hybrid(model, kind, pace, gamma, nodes, given=given and gamma is not None)
        rounds = rounds_of(sequential, on_tables(table, limits, draft=one, gamma=gamma or 16))
        text = [token for step in rounds for token in step.token_ids]
        assert text == greedy_text(table, limits)
        read = model.span.tokens  # what was emitted, and at most a window that was not
        assert read[: min(len(read), len(text))] == one.lookup.text[: min(len(read), len(text))]


def test_a_hybrid_mixes_both():
    """Rounds of each kind, and the same proposals as a model alone would make there."""
    table = tables(5)
    limits = StoppingRules(200)
    both = [0, 0]
    one = hybrid(chain(table), remembering(greedy_text(table, limits)[30:60]), TimedWindows(lambda rows: 1.0, 0.2), 4)
    propose = one.propose

    def counted(gamma):
        draft = yield from propose(gamma)
        both[not one._drafted.tokens] += 1
        return draft

    one.propose = counted
    text = [
        token
        for step in rounds_of(sequential, on_tables(table, limits, draft=one, gamma=4))
        for token in step.token_ids
    ]
    assert text == greedy_text(table, limits) and min(both) > 0


@pytest.mark.parametrize("of", ["hybrid", "ngram", "suffix"])
def test_a_hybrid_is_of_a_drafter_with_a_model(of):
    with pytest.raises(ProfileError, match=r"draft\.options\.of: "):
        HybridDraft(of)


def test_a_hybrid_is_what_its_drafter_is():
    assert (HybridDraft().model, HybridDraft("self").model) == ("draft", "target")
    sparse = HybridDraft("sparse_kv", {"entries": 7})
    assert sparse.needs == {"head_attention"} and sparse.inner.entries == 7
    mixed = HybridDraft("ensemble", {"contexts": ["video", "text"], "weights": "grid"})
    assert mixed.contexts == ("video", "text") and mixed.inner.weights == "grid"
