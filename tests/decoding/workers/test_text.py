"""The draft's text in the parallel schedule: whatever it is cut to, it continues as if it had never been longer."""

from collections import Counter

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.decoding.toys import ToyEngine, random_table
from vidspec.decoding.workers.draft import DraftText
from vidspec.engine.history import TextHistory
from vidspec.engine.requests import run_to_completion
from vidspec.errors import GenerationError

MOVES = st.lists(
    st.one_of(st.none(), st.tuples(st.integers(0, 30), st.lists(st.integers(0, 4), max_size=3))), max_size=40
)


@given(st.integers(0, 10**6), MOVES)
def test_it_proposes_the_greedy_continuation(seed, moves):
    table = random_table(seed, 5)
    engine = ToyEngine(table)
    text, expected = DraftText(engine, engine.start()), []
    for move in moves:
        if move is None:
            expected.append(int(table(tuple(expected)).argmax()))
            assert run_to_completion(text.extend()) == expected[-1]
        else:
            keep = min(move[0], len(expected))
            expected[keep:] = move[1]
            text.cut(keep, move[1])
        assert text.tokens == expected
        # What is cached is a true beginning of the text, and something is left to be read.
        read = text.span.tokens
        assert read == expected[: len(read)] and (not expected or len(read) < len(expected))
    assert text.forwards == len(engine.passes)


class CountedHistory(TextHistory):
    """Counts the tokens that it reads, and refuses some as a grammar does."""

    refused = frozenset()

    def __init__(self, work, ids=()):
        self.work, self.ids, self.asked = work, list(ids), []

    def add(self, token_ids):
        if self.refused & {*token_ids}:
            raise GenerationError("does not follow the grammar")
        self.work["read"] += len(token_ids)
        self.ids += token_ids

    def before(self, count):
        self.work["restored"] += 1
        return CountedHistory(self.work, self.ids[: len(self.ids) - count])

    def changes_for_paths(self, paths, tokens=None):
        self.work["read"] += len(paths[-1])
        self.asked = [*self.ids, *paths[-1]]
        return super().changes_for_paths(paths, tokens)

    @classmethod
    def apply(cls, batch, logits, tokens): ...


@given(st.integers(0, 10**6), MOVES)
def test_its_history_reads_each_token_once(seed, moves):
    engine = ToyEngine(random_table(seed, 5))
    work = Counter()
    text, expected = DraftText(engine, engine.start(), CountedHistory(work)), 0
    for move in moves:
        if move is None:
            before = [*text.tokens]
            run_to_completion(text.extend())
            assert text.history.ids == before
        else:
            keep = min(move[0], len(text.tokens))
            expected += len(text.tokens) - keep
            text.cut(keep, move[1])
    assert work["read"] <= len(text.tokens) + expected and work["restored"] <= len(moves)


def test_a_token_that_the_grammar_refuses_stays_out_of_its_history(monkeypatch):
    engine = ToyEngine(random_table(3, 5))
    history = CountedHistory(Counter())
    text = DraftText(engine, engine.start(), history)
    run_to_completion(text.extend())
    first = text.tokens[0]
    other = (first + 1) % 5
    monkeypatch.setattr(CountedHistory, "refused", frozenset({other}))
    text.cut(1, [other, first])
    run_to_completion(text.extend())
    assert history.asked == [first, other, first] and history.ids == [first]
    text.cut(1, [first])
    run_to_completion(text.extend())
    assert text.history.ids == [first, first]


def test_it_keeps_no_more_than_there_is():
    engine = ToyEngine(random_table(1, 5))
    text = DraftText(engine, engine.start())
    run_to_completion(text.extend())
    with pytest.raises(ValueError, match="cannot keep 2 of 1"):
        text.cut(2, ())
    assert torch.is_tensor(text.prefill.logits)
