"""FLy and its entropy gate against their equations in plain Python, and on windows made by hand."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.acceptance.windows import (
    END,
    EOS,
    PROTECTED,
    SAFE,
    VOCABULARY,
    chain,
    chains,
    literal_walk,
    outcome,
    rows,
    trees,
    window_pass,
)
from tests.decoding.toys import GREEDY
from tests.tiers import examples
from vidspec.acceptance.rules.exact import ExactRule
from vidspec.acceptance.rules.fly import FlyRule
from vidspec.acceptance.rules.fly_minus import FlyMinusRule
from vidspec.drafting.base import Draft

RNG = torch.Generator()
SURE, UNSURE = 9.0, 0.5


def logits(wanted, margins):
    """The target's best token is ahead of all others by a margin, which fixes the entropy."""
    found = torch.zeros(len(wanted), VOCABULARY)
    for row, (token, margin) in enumerate(zip(wanted, margins, strict=True)):
        found[row, token] = margin
    return found


def literal_entropy(row):
    """Over the three largest of the full softmax, not renormalised."""
    weights = [math.exp(x) for x in row]
    probs = sorted((w / sum(weights) for w in weights), reverse=True)
    return -sum(p * math.log(p) for p in probs[:3])


def literal_pardons(draft, entropy_behind, theta, window):
    """``window`` None: the gate alone."""

    def pardons(path, tokens, targets):
        k = len(path)
        reasons = {}
        for i, node in enumerate(path):
            if entropy_behind[draft.parents[node] + 1] < theta:
                continue
            if window is not None:
                last = i >= k - window
                agree = all(tokens[j] == targets[j] for j in range(i + 1, min(k, i + window)))
                if last or not agree:
                    continue
            reasons[i] = "entropy"
        return reasons

    return pardons


@settings(deadline=None, max_examples=examples(60))
@given(st.lists(st.floats(-8, 8), min_size=1, max_size=9), st.integers(1, 5))
def test_entropy(row, length):
    table = torch.tensor([row] * (length + 1), dtype=torch.float32)
    measured = FlyMinusRule(GREEDY).measure(chain(*[0] * length), window_pass(chain(*[0] * length), table), RNG)
    assert measured == pytest.approx([literal_entropy(row)] * length, abs=1e-4)


def test_a_token_of_no_chance_adds_no_entropy():
    passed = window_pass(chain(0), torch.tensor([[0.0, -1e9, -1e9]] * 2))
    measured = FlyMinusRule(GREEDY).measure(chain(0), passed, RNG)
    assert measured == [0.0]


def test_entropy_is_that_of_the_place_before_the_token():
    """In a chain the row before, in a tree the parent's."""
    table = logits((0, 0, 0), (SURE, UNSURE, SURE))
    first, second = FlyMinusRule(GREEDY).measure(chain(1, 2), window_pass(chain(1, 2), table), RNG)
    assert first < 0.1 < second
    tree = Draft((1, 2), (-1, -1))
    assert FlyMinusRule(GREEDY).measure(tree, window_pass(tree, table), RNG) == [first, first]


@settings(deadline=None, max_examples=examples(200))
@given(st.data())
def test_verdicts(data):
    draft, wanted = data.draw(st.one_of(chains(), trees()))
    margins = [data.draw(st.sampled_from([0.5, 1.0, 3.0, 9.0])) for _ in wanted]
    table = logits(wanted, margins)
    theta, window = data.draw(st.sampled_from([0.0, 0.3, 0.8, 2.0])), data.draw(st.integers(1, 6))
    entropy = [literal_entropy(row) for row in table.tolist()]
    gate = FlyMinusRule(GREEDY, END, SAFE, theta=theta)(draft, window_pass(draft, table), RNG)
    assert outcome(gate) == literal_walk(draft, wanted, literal_pardons(draft, entropy, theta, None))
    judged = FlyRule(GREEDY, END, SAFE, theta=theta, window=window)(draft, window_pass(draft, table), RNG)
    assert outcome(judged) == literal_walk(draft, wanted, literal_pardons(draft, entropy, theta, window))
    for one in (*gate.loosened, *judged.loosened):
        assert one.entropy >= theta and one.relevance is None


@settings(deadline=None, max_examples=examples(100))
@given(st.one_of(chains(), trees()))
def test_a_gate_that_never_opens_is_the_exact_rule(case):
    draft, wanted = case
    table = logits(wanted, [UNSURE] * len(wanted))
    exact = ExactRule()(draft, window_pass(draft, table), RNG)
    assert FlyMinusRule(GREEDY, theta=9.0)(draft, window_pass(draft, table), RNG) == exact
    assert FlyRule(GREEDY, theta=9.0)(draft, window_pass(draft, table), RNG) == exact


@pytest.mark.parametrize(
    ("tokens", "wanted", "sure", "window", "expected"),
    [
        pytest.param((1, 2, 3, 4), (0, 2, 3, 4, 1), "", 3, ((0, 1, 2, 3), 1, [(0, 0, "entropy")]), id="loose"),
        pytest.param((1, 2, 3, 4), (0, 2, 3, 4, 1), "0", 3, ((), 0, []), id="the target is sure"),
        pytest.param((1, 2, 3, 4), (0, 2, 0, 4, 1), "", 3, ((), 0, []), id="a second mismatch inside the window"),
        pytest.param((1, 2, 3, 4), (0, 2, 3, 0, 1), "", 3, ((0, 1, 2), 0, [(0, 0, "entropy")]), id="behind the window"),
        pytest.param((1, 2, 3, 4), (1, 0, 3, 4, 1), "", 3, ((0,), 0, []), id="in the last W positions"),
        pytest.param((1, 2, 3, 4), (1, 2, 3, 0, 1), "", 1, ((0, 1, 2), 0, []), id="the last position even if W is 1"),
        pytest.param((EOS, 2, 3, 4), (0, 2, 3, 4, 1), "", 3, ((), 0, []), id="a drafted end"),
        pytest.param((1, 2, 3, 4), (EOS, 2, 3, 4, 1), "", 3, ((), EOS, []), id="the target's end"),
        pytest.param((1, 2, 3, 4), (PROTECTED, 2, 3, 4, 1), "", 3, ((), PROTECTED, []), id="a protected token"),
        pytest.param((1, 2), (1, 2, 3), "", 6, ((0, 1), 3, []), id="a window that passes"),
        pytest.param((), (4,), "", 6, ((), 4, []), id="nothing was drafted"),
    ],
)
def test_windows_by_hand(tokens, wanted, sure, window, expected):
    margins = [SURE if str(row) in sure else UNSURE for row in range(len(wanted))]
    passed = window_pass(chain(*tokens), logits(wanted, margins))
    judged = FlyRule(GREEDY, END, SAFE, theta=0.3, window=window)(chain(*tokens), passed, RNG)
    assert outcome(judged) == expected


def test_the_gate_alone_lets_neighbours_and_the_last_pass():
    table = logits((0, 0, 3), (UNSURE, UNSURE, SURE))
    judged = FlyMinusRule(GREEDY, END, SAFE)(chain(1, 2), window_pass(chain(1, 2), table), RNG)
    assert outcome(judged) == ((0, 1), 3, [(0, 0, "entropy"), (1, 0, "entropy")])


def test_they_are_not_lossless():
    assert not FlyRule.lossless and not FlyMinusRule.lossless


def test_the_gate_is_inclusive():
    passed = window_pass(chain(2), rows(0, 1))
    entropy = FlyMinusRule(GREEDY).measure(chain(2), passed, RNG)[0]
    assert FlyMinusRule(GREEDY, theta=entropy)(chain(2), passed, RNG).accepted == 1
