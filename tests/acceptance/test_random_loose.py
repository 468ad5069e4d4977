"""Random relaxation: the rate, its two ends, and what chance may not touch."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.acceptance.windows import (
    END,
    EOS,
    PROTECTED,
    SAFE,
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
from vidspec.acceptance.rules.random_loose import RandomLoose


def rng(seed=1):
    return torch.Generator().manual_seed(seed)


@settings(deadline=None, max_examples=examples(150))
@given(st.one_of(chains(), trees()), st.sampled_from([0.0, 0.25, 0.5, 0.75, 1.0]), st.integers(0, 99))
def test_verdicts(case, rate, seed):
    """One uniform number for each drafted token; branches share those of their common nodes."""
    draft, wanted = case
    draws = torch.rand(len(draft.tokens), generator=rng(seed)).tolist()

    def pardons(path, tokens, targets):
        return {i: "chance" for i, node in enumerate(path) if draws[node] < rate}

    judged = RandomLoose(GREEDY, END, SAFE, rate=rate)(draft, window_pass(draft, rows(*wanted)), rng(seed))
    assert outcome(judged) == literal_walk(draft, wanted, pardons)


@given(st.one_of(chains(), trees()))
def test_never_is_the_exact_rule(case):
    draft, wanted = case
    passed = window_pass(draft, rows(*wanted))
    assert RandomLoose(GREEDY, rate=0.0)(draft, passed, rng()) == ExactRule()(draft, passed, rng())


def test_always():
    judged = RandomLoose(GREEDY, END, SAFE, rate=1.0)(
        chain(1, 2, 3), window_pass(chain(1, 2, 3), rows(0, 2, 0, 4)), rng()
    )
    assert outcome(judged) == ((0, 1, 2), 4, [(0, 0, "chance"), (2, 0, "chance")])


@pytest.mark.parametrize("token", [EOS, PROTECTED])
def test_ends_and_protected_tokens_stay_strict(token):
    rule = RandomLoose(GREEDY, END, SAFE, rate=1.0)
    assert rule(chain(token), window_pass(chain(token), rows(1, 1)), rng()).accepted == 0
    assert outcome(rule(chain(1), window_pass(chain(1), rows(token, 1)), rng())) == ((), token, [])


def test_a_mismatch_passes_at_the_rate():
    rule, draws = RandomLoose(GREEDY, rate=0.3), rng()
    window = chain(1), window_pass(chain(1), rows(0, 0))
    passed = sum(rule(*window, draws).accepted for _ in range(3000))
    assert passed / 3000 == pytest.approx(0.3, abs=0.04)


def test_is_not_lossless():
    assert not RandomLoose.lossless
