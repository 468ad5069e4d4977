"""LVSpec against its equations in plain Python, and on windows made by hand."""

import math
from fractions import Fraction

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
    leaves,
    literal_walk,
    outcome,
    rows,
    trees,
    window_pass,
)
from tests.decoding.toys import GREEDY
from tests.tiers import examples
from vidspec.acceptance.base import Verdict, for_clip
from vidspec.acceptance.loose import branches
from vidspec.acceptance.rules.exact import ExactRule
from vidspec.acceptance.rules.lvspec import LVSpec
from vidspec.drafting.base import Draft
from vidspec.engine.sampling import Sampling
from vidspec.errors import ProfileError

RNG = torch.Generator()
LAMS = ["0", "0.1", "0.2", "0.3", "0.5", "0.57", "0.7", "0.9", "1"]


def unit(vectors):
    return torch.nn.functional.normalize(torch.tensor(vectors, dtype=torch.float32), dim=-1)


def states(relevance):
    """Last states whose cosine with the one visual state of :data:`VISUAL` is as given; the first row is nobody's."""
    return torch.tensor([[3.0, 4.0], *([5 * r, 5 * math.sqrt(1 - r * r)] for r in relevance)])


VISUAL = torch.tensor([[1.0, 0.0]])


def rule(visual=VISUAL, **options):
    return LVSpec(GREEDY, END, SAFE, **options).for_clip(visual)


def judge(tokens, wanted, relevance, **options):
    return rule(**options)(chain(*tokens), window_pass(chain(*tokens), rows(*wanted), states(relevance)), RNG)


def literal_relevance(states, visual, n):
    """Eq. 8."""
    found = []
    for h in states:
        cosines = []
        for v in visual:
            dot = sum(a * b for a, b in zip(h, v, strict=True))
            cosines.append(dot / math.sqrt(sum(a * a for a in h)) / math.sqrt(sum(b * b for b in v)))
        top = sorted(cosines, reverse=True)[:n]
        found.append(sum(top) / len(top))
    return found


def literal_pardons(relevance, lam, tolerance):
    """Eq. 9 to 11 on one branch."""

    def pardons(path, tokens, targets):
        k = len(path)
        scores = [(relevance[node], i) for i, node in enumerate(path)]
        loose = [i for _, i in sorted(scores)][: math.floor(Fraction(lam) * k)]
        reasons = {}
        for i in range(k):
            if i in loose:
                reasons[i] = "relevance"
            elif tolerance and any(targets[i] == tokens[j] for j in range(k)):
                reasons[i] = "shift"
        return reasons

    return pardons


@settings(deadline=None, max_examples=examples(60))
@given(st.data())
def test_relevance_is_equation_8(data):
    number = st.integers(-4, 4)
    size = data.draw(st.integers(1, 4))
    vector = st.lists(number, min_size=size, max_size=size).filter(any)
    visual = data.draw(st.lists(vector, min_size=1, max_size=12))
    own = data.draw(st.lists(vector, min_size=1, max_size=5))
    n = data.draw(st.integers(1, 12))
    hidden = torch.tensor([own[0], *own], dtype=torch.float32)
    draft = chain(*[0] * len(own))
    measured = rule(unit(visual), similar=n).measure(draft, window_pass(draft, rows(*[0] * len(hidden)), hidden), RNG)
    assert measured == pytest.approx(literal_relevance(own, visual, n), abs=1e-5)


@settings(deadline=None, max_examples=examples(200))
@given(st.data())
def test_verdict_is_equations_9_to_11(data):
    """On chains and on trees, whose branches are windows of their own."""
    draft, wanted = data.draw(st.one_of(chains(), trees()))
    relevance = [data.draw(st.sampled_from([-0.5, 0.0, 0.25, 0.8])) for _ in draft.tokens]  # few: there are ties
    lam, tolerance = data.draw(st.sampled_from(LAMS)), data.draw(st.booleans())
    judged = rule(lam=float(lam), tolerance=tolerance)(draft, window_pass(draft, rows(*wanted), states(relevance)), RNG)
    assert outcome(judged) == literal_walk(draft, wanted, literal_pardons(relevance, lam, tolerance))
    for one in judged.loosened:
        assert one.relevance == pytest.approx(relevance[judged.path[one.at]], abs=1e-6) and one.entropy is None
    assert tuple(judged.path[one.at] for one in judged.loosened) == tuple(
        node for i, node in enumerate(judged.path) if _differs(draft, wanted, judged.path, i)
    )


def _differs(draft, wanted, path, i):
    return draft.tokens[path[i]] != wanted[path[i - 1] + 1 if i else 0]


@pytest.mark.full
@settings(deadline=None, max_examples=examples(200))
@given(st.data())
def test_without_a_loose_share_and_tolerance_it_is_the_exact_rule(data):
    draft, wanted = data.draw(st.one_of(chains(), trees()))
    relevance = [data.draw(st.floats(-1, 1)) for _ in draft.tokens]
    logits = rows(*wanted)
    passed = window_pass(draft, logits, states(relevance))
    assert rule(lam=0.0, tolerance=False)(draft, passed, RNG) == ExactRule()(draft, passed, RNG)


@given(trees())
def test_branches_are_the_ways_to_the_leaves_depth_first(tree):
    assert [list(path) for path in branches(tree[0])] == leaves(tree[0])


LOW, HIGH = 0.1, 0.9


@pytest.mark.parametrize(
    ("tokens", "wanted", "relevance", "options", "expected"),
    [
        pytest.param(
            (1, 2), (3, 2, 4), (LOW, HIGH), {"lam": 0.5, "tolerance": False}, ((0, 1), 4, [(0, 3, "relevance")]),
            id="the first mismatch is loose and the bonus follows",
        ),
        pytest.param(
            (1, 2), (3, 2, 4), (HIGH, LOW), {"lam": 0.5, "tolerance": False}, ((), 3, []),
            id="the first mismatch says something of the video",
        ),
        pytest.param(
            (1, 2), (1, 3, 4), (HIGH, LOW), {"lam": 0.5, "tolerance": False}, ((0, 1), 4, [(1, 3, "relevance")]),
            id="loose at the end of the window",
        ),
        pytest.param(
            (1, 2), (1, 3, 4), (LOW, HIGH), {"lam": 0.5, "tolerance": False}, ((0,), 3, []),
            id="strict at the end of the window",
        ),
        pytest.param(
            (1, 2, 3), (1, 3, 3, 4), (HIGH,) * 3, {"lam": 0.0}, ((0, 1, 2), 4, [(1, 3, "shift")]),
            id="the target's token comes later",
        ),
        pytest.param(
            (1, 2, 3), (1, 1, 3, 4), (HIGH,) * 3, {"lam": 0.0}, ((0, 1, 2), 4, [(1, 1, "shift")]),
            id="the target's token came before",
        ),
        pytest.param(
            (1, 2, 3), (1, 4, 3, 4), (HIGH,) * 3, {"lam": 0.0}, ((0,), 4, []), id="the target's token was not drafted",
        ),
        pytest.param(
            (1, 2, 3), (1, 3, 3, 4), (HIGH,) * 3, {"lam": 0.0, "tolerance": False}, ((0,), 3, []),
            id="no tolerance of shifted positions",
        ),
        pytest.param(
            (1, EOS), (2, 3, 4), (LOW, LOW), {"lam": 1.0}, ((0,), 3, [(0, 2, "relevance")]),
            id="a drafted end is never loose",
        ),
        pytest.param((1, 2), (EOS, 2, 4), (LOW, LOW), {"lam": 1.0}, ((), EOS, []), id="nor the target's"),
        pytest.param(
            (1, EOS, 2), (1, EOS, 2, 4), (LOW,) * 3, {"lam": 1.0}, ((0, 1, 2), 4, []), id="an end that both want"
        ),
        pytest.param((EOS, 1), (1, 1, 4), (HIGH,) * 2, {"lam": 0.0}, ((), 1, []), id="a shift over an end"),
        pytest.param((PROTECTED, 1), (2, 1, 4), (LOW,) * 2, {"lam": 1.0}, ((), 2, []), id="a protected drafted token"),
        pytest.param((1, PROTECTED), (PROTECTED, 1, 4), (LOW,) * 2, {"lam": 1.0}, ((), PROTECTED, []), id="a wanted"),
        pytest.param(
            (1, 2, 3), (0, 0, 0, 4), (LOW,) * 3, {"lam": 0.4, "tolerance": False}, ((0,), 0, [(0, 0, "relevance")]),
            id="of equals the first is loose",
        ),
        pytest.param(
            (1, 2, 3), (0, 2, 3, 4), (0.5, 0.2, 0.2), {"lam": 0.7, "tolerance": False}, ((), 0, []),
            id="tokens that match take a place among the loose",
        ),
        pytest.param((), (4,), (), {}, ((), 4, []), id="nothing was drafted"),
    ],
)  # fmt: skip
def test_windows_by_hand(tokens, wanted, relevance, options, expected):
    assert outcome(judge(tokens, wanted, relevance, **options)) == expected


def test_the_loose_share_is_that_of_the_decimal_number():
    """In binary 0.57 * 100 is less than 57."""
    judged = judge((1,) * 100, (0,) * 101, (LOW,) * 100, lam=0.57, tolerance=False)
    assert judged.accepted == 57 == len(judged.loosened)


def test_each_branch_of_a_tree_has_its_own_loose_share():
    """Nodes 0, 2 and 1, 3: of each branch one of two may pass. The first branch fails behind its loose token."""
    tree = Draft((1, 2, 3, 4), (-1, -1, 0, 1))
    relevance = states((LOW, LOW, HIGH, HIGH))
    judged = rule(lam=0.5, tolerance=False)(tree, window_pass(tree, rows(0, 5, 4, 5, 2), relevance), RNG)
    assert outcome(judged) == ((1, 3), 2, [(0, 0, "relevance")])
    # Of two that get equally far it is the first, although the second matches without being loose.
    judged = rule(lam=0.5, tolerance=False)(tree, window_pass(tree, rows(2, 3, 4, 1, 2), relevance), RNG)
    assert outcome(judged) == ((0, 2), 1, [(0, 2, "relevance")])


def test_tolerance_looks_at_its_own_branch():
    tree = Draft((1, 2, 3, 4), (-1, -1, 0, 1))
    judged = rule(lam=0.0)(tree, window_pass(tree, rows(3, 3, 0, 1, 2), states((HIGH,) * 4)), RNG)
    assert outcome(judged) == ((0, 2), 1, [(0, 3, "shift")])
    assert rule(lam=0.0)(tree, window_pass(tree, rows(3, 0, 4, 1, 2), states((HIGH,) * 4)), RNG).path == (0,)


def test_relevance_is_of_the_tokens_own_position():
    """Row 0 belongs to the token before the window."""
    hidden = states((HIGH, LOW))
    hidden[0] = torch.tensor([1.0, 0.0])
    passed = window_pass(chain(1, 2), rows(0, 0, 0), hidden)
    assert rule().measure(chain(1, 2), passed, RNG) == pytest.approx([HIGH, LOW])


def test_is_made_for_each_clip():
    bare = LVSpec(GREEDY)
    with pytest.raises(ValueError, match="visual"):
        bare(chain(1), window_pass(chain(1), rows(1, 1), states((LOW,))), RNG)
    with pytest.raises(ValueError, match="visual"):
        for_clip(bare, None)
    passed = window_pass(chain(1), rows(1, 2), states((LOW,)))
    assert for_clip(bare, VISUAL)(chain(1), passed, RNG) == Verdict.chain(1, 2)
    exact = ExactRule()
    assert for_clip(exact, None) is exact
    assert LVSpec.lossless is False


def test_refuses_to_draw():
    with pytest.raises(
        ProfileError, match=r"generate.temperature: 0.5, .*nearest valid choice: generate.temperature: 0"
    ):
        LVSpec(Sampling(0.5))
