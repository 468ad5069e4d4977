"""Ends of texts."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vidspec.acceptance.base import Verdict
from vidspec.decoding.limits import StoppingRules
from vidspec.drafting.base import Draft
from vidspec.events.events import LooseToken

EOS = 9


@pytest.mark.parametrize(
    ("tokens", "emitted", "expected"),
    [
        pytest.param((1, 2, 3), 0, ((1, 2, 3), False), id="room is left"),
        pytest.param((1, EOS, 3), 0, ((1, EOS), True), id="EOS inside a window"),
        pytest.param((EOS, EOS), 0, ((EOS,), True), id="the first EOS counts"),
        pytest.param((1, 2, 3), 2, ((1, 2, 3), True), id="the limit is reached exactly"),
        pytest.param((1, 2, 3), 3, ((1, 2), True), id="the limit cuts"),
        pytest.param((1, 2, EOS), 3, ((1, 2), True), id="EOS beyond the limit"),
        pytest.param((1, 2, EOS), 2, ((1, 2, EOS), True), id="EOS is the last token there is room for"),
        pytest.param((1,), 4, ((1,), True), id="one token left"),
    ],
)
def test_cut(tokens, emitted, expected):
    assert StoppingRules(5, frozenset({EOS})).cut(tokens, [0] * emitted) == expected


@given(
    st.lists(st.integers(0, 5), min_size=1, max_size=9),
    st.integers(1, 12),
    st.data(),
    st.frozensets(st.integers(0, 5), max_size=2),
)
def test_cut_is_the_longest_allowed_beginning(tokens, limit, data, eos):
    emitted = data.draw(st.integers(0, limit - 1))
    kept, over = StoppingRules(limit, eos).cut(tuple(tokens), [7] * emitted)
    assert kept == tuple(tokens[: len(kept)]) and 1 <= len(kept) <= limit - emitted
    assert not eos & set(kept[:-1])
    ends = kept[-1] in eos or len(kept) + emitted == limit
    assert over == ends
    assert ends or len(kept) == len(tokens)


@pytest.mark.parametrize(
    ("verdict", "gamma", "emitted", "expected"),
    [
        (Verdict.chain(0, 1), 0, 1, ("target",)),
        (Verdict.chain(0, 1), 3, 1, ("correction",)),
        (Verdict.chain(2, 1), 3, 3, ("draft", "draft", "correction")),
        (Verdict.chain(3, 1), 3, 4, ("draft", "draft", "draft", "bonus")),
        (Verdict.chain(3, 1), 3, 2, ("draft", "draft")),
        (Verdict.chain(3, 1, (LooseToken(1, 9, "chance"),)), 3, 4, ("draft", "loose", "draft", "bonus")),
    ],
)
def test_origins(verdict, gamma, emitted, expected):
    chain = Draft((1,) * gamma, tuple(range(-1, gamma - 1)))
    assert replace(verdict, draft=chain).origins[:emitted] == expected


@pytest.mark.parametrize(
    ("path", "last"),
    [((), "correction"), ((0,), "correction"), ((1,), "bonus"), ((0, 2), "bonus"), ((0, 3), "bonus")],
)
def test_origins_in_a_tree(path, last):
    """A token behind a leaf is a bonus: nothing was proposed in its place."""
    tree = Draft((5, 6, 7, 8), (-1, -1, 0, 0))
    assert Verdict(path, 1, draft=tree).origins == ("draft",) * len(path) + (last,)
