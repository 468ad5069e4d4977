"""The draft's text in the parallel schedule: whatever it is cut to, it continues as if it had never been longer."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.decoding.toys import ToyEngine, random_table
from vidspec.decoding.workers.text import DraftText
from vidspec.engine.requests import run_to_completion

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


def test_it_keeps_no_more_than_there_is():
    engine = ToyEngine(random_table(1, 5))
    text = DraftText(engine, engine.start())
    run_to_completion(text.extend())
    with pytest.raises(ValueError, match="cannot keep 2 of 1"):
        text.cut(2, ())
    assert torch.is_tensor(text.prefill.logits)
