"""The exact rule: greedy against a literal loop, sampled against the exact distribution of whole texts."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.acceptance.sequences import SIGNIFICANCE, exact_distribution, p_value, reference_distribution
from tests.acceptance.windows import window_pass
from tests.acceptance.wrong_rules import AcceptsAll
from tests.decoding.toys import GREEDY, ToyEngine, blend, on_tables, proposed, random_table, rounds_of, shifted
from tests.tiers import examples, full_but
from vidspec.acceptance.base import Verdict
from vidspec.acceptance.rules.exact import ExactRule
from vidspec.decoding.limits import StoppingRules
from vidspec.decoding.schedules.autoregressive import autoregressive
from vidspec.decoding.schedules.sequential import sequential
from vidspec.drafting.base import Draft
from vidspec.drafting.chain import ChainDrafter
from vidspec.engine.sampling import Sampling, draw_token

RNG = torch.Generator()


def chain(*tokens, probs=None):
    return Draft(tuple(tokens), tuple(range(-1, len(tokens) - 1)), probs)


def literal_greedy(tokens, rows):
    accepted = 0
    for token, row in zip(tokens, rows, strict=False):
        if token != row.index(max(row)):
            break
        accepted += 1
    return Verdict.chain(accepted, rows[accepted].index(max(rows[accepted])))


@settings(deadline=None, max_examples=examples(200))
@given(st.data())
def test_greedy_equals_a_literal_loop(data):
    vocabulary, gamma = data.draw(st.integers(1, 6)), data.draw(st.integers(0, 8))
    # Few different values, so that there are ties.
    value = st.sampled_from([-1.0, 0.0, 0.5, 2.0])
    rows = [[data.draw(value) for _ in range(vocabulary)] for _ in range(gamma + 1)]
    best = [row.index(max(row)) for row in rows]
    agree = data.draw(st.integers(0, gamma))
    tokens = [best[i] if i < agree else data.draw(st.integers(0, vocabulary - 1)) for i in range(gamma)]
    verdict = ExactRule()(chain(*tokens), window_pass(chain(*tokens), torch.tensor(rows)), RNG)
    assert verdict == literal_greedy(tokens, rows)
    assert verdict.loosened == ()


LOGITS = torch.tensor([[0.0, 3.0, 1.0], [2.0, 2.0, 0.0], [0.0, 0.0, 1.0]])


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [
        pytest.param((1, 0), Verdict.chain(2, 2), id="all pass and the bonus follows"),
        pytest.param((1, 1), Verdict.chain(1, 0), id="of equals the first is the target's choice"),
        pytest.param((2, 0), Verdict.chain(0, 1), id="a later match does not help"),
    ],
)
def test_greedy(tokens, expected):
    assert ExactRule()(chain(*tokens), window_pass(chain(*tokens), LOGITS), RNG) == expected


@pytest.mark.parametrize("sampling", [GREEDY, Sampling(0.7, 0.9)])
def test_an_empty_window_gives_the_targets_own_token(sampling):
    sharp = torch.tensor([[0.0, 0.0, 99.0, 0.0]])
    assert ExactRule()(chain(), window_pass(chain(), sharp, None, sampling, RNG), RNG) == Verdict.chain(0, 2)


def test_is_lossless():
    assert ExactRule.lossless is True


@pytest.mark.parametrize("given_probs", [True, False])
def test_a_token_the_target_never_draws_is_never_accepted(given_probs):
    p = torch.tensor([[0.0, -1e9, 0.5], [0.0, 0.0, 0.0]])
    probs = torch.tensor([[0.0, 1.0, 0.0]]) if given_probs else None
    rng = torch.Generator().manual_seed(1)
    draft = chain(1, probs=probs)
    verdicts = [ExactRule()(draft, window_pass(draft, p, None, Sampling(1.0), rng), rng) for _ in range(200)]
    assert {v.accepted for v in verdicts} == {0}
    assert {v.token for v in verdicts} == {0, 2}


def test_a_draft_that_equals_the_target_is_always_accepted():
    sampling, rng = Sampling(0.8, 0.9), torch.Generator().manual_seed(1)
    logits = torch.randn(4, 6, generator=rng)
    probs = sampling.distribution(logits)
    for _ in range(200):
        tokens = [draw_token(row, rng) for row in probs[:3]]
        draft = chain(*tokens, probs=probs[:3])
        assert ExactRule()(draft, window_pass(draft, logits, None, sampling, rng), rng).accepted == 3


def test_leaves_what_it_is_given_as_it_was():
    sampling, rng = Sampling(0.8), torch.Generator().manual_seed(1)
    logits, probs = torch.randn(3, 5, generator=rng), torch.full((2, 5), 0.2)
    before = logits.clone(), probs.clone()
    for _ in range(50):
        draft = chain(0, 1, probs=probs)
        ExactRule()(draft, window_pass(draft, logits, None, sampling, rng), rng)
    assert torch.equal(logits, before[0]) and torch.equal(probs, before[1])


def exact(sampling):
    """The rule; it is the target's pass that draws."""
    return ExactRule()


class ResamplesFromTarget(AcceptsAll):
    """Wrong: after a rejection draws from p instead of from what is left of it."""

    def __call__(self, draft, passed, rng):
        p = self.sampling.distribution(passed.logits)
        for i, x in enumerate(draft.tokens):
            q = 1.0 if draft.probs is None else float(draft.probs[i, x])
            if torch.rand((), generator=rng) * q >= p[i, x]:
                return Verdict.chain(i, draw_token(p[i], rng))
        return Verdict.chain(len(draft.tokens), draw_token(p[-1], rng))


class ForgetsTemperature(AcceptsAll):
    """Wrong: tests against the target's plain distribution."""

    def __call__(self, draft, passed, rng):
        return ExactRule()(draft, window_pass(draft, passed.logits, None, Sampling(1.0), rng), rng)


VOCABULARY, EOS, LENGTH = 4, 3, 3
TARGET = random_table(11, VOCABULARY, 1.2)
DRAFT = blend(TARGET, random_table(12, VOCABULARY, 1.5), 0.6)
LIMITS = StoppingRules(LENGTH, frozenset({EOS}))
SAMPLINGS = [Sampling(1.0), Sampling(0.7, 0.8)]


def draws_of_the_rule(rule, sampling, draft_sampling, count):
    """Windows of the whole remaining text, judged by ``rule``: prefix to text without any schedule."""
    rng, judge = torch.Generator().manual_seed(5), rule(sampling)
    for _ in range(count):
        text = ()
        while len(text) < LENGTH and EOS not in text:
            tokens, probs, prefix = [], [], text
            for _ in range(LENGTH - len(text)):
                q = draft_sampling.distribution(DRAFT(prefix)[None])[0]
                tokens.append(int(q.argmax()) if draft_sampling.greedy else draw_token(q, rng))
                probs.append(q)
                prefix = (*prefix, tokens[-1])
            rows = torch.stack([TARGET((*text, *tokens[:i])) for i in range(len(tokens) + 1)])
            draft = chain(*tokens, probs=None if draft_sampling.greedy else torch.stack(probs))
            verdict = judge(draft, window_pass(draft, rows, None, sampling, rng), rng)
            new = LIMITS.cut([*tokens[: verdict.accepted], verdict.token], text)[0]
            text = (*text, *new)
        yield text


def draws_of_the_schedule(rule, sampling, draft_sampling, count):
    rng = torch.Generator().manual_seed(6)
    limits = StoppingRules(LENGTH + 1, LIMITS.eos)
    target, draft = shifted(TARGET), shifted(DRAFT)
    for _ in range(count):
        one = on_tables(
            target, limits, draft=draft, gamma=2, sampling=sampling, draft_sampling=draft_sampling,
            rule=rule(sampling), rng=rng,
        )  # fmt: skip
        first, *text = [token for step in rounds_of(sequential, one) for token in step.token_ids]
        assert first == 0
        yield tuple(text)


def draws_with_a_tree(rule, sampling, draft_sampling, count):
    rng = torch.Generator().manual_seed(8)
    limits = StoppingRules(LENGTH + 1, LIMITS.eos)
    for _ in range(count):
        one = on_tables(
            shifted(TARGET), limits, draft=shifted(DRAFT), gamma=2, tree="0 1 00 01 10", sampling=sampling,
            rule=rule(sampling), rng=rng,
        )  # fmt: skip
        first, *text = [token for step in rounds_of(sequential, one) for token in step.token_ids]
        assert first == 0
        yield tuple(text)


class TakesTheFirstBranch(AcceptsAll):
    """Wrong: follows the tree's best child whenever the target does not want it, half of the time."""

    def __call__(self, draft, passed, rng):
        verdict = ExactRule()(draft, passed, rng)
        if draft.tokens and not verdict.path and torch.rand((), generator=rng) < 0.5:
            return Verdict((0,), draw_token(self.sampling.distribution(passed.logits)[1], rng))
        return verdict


@pytest.mark.full
@pytest.mark.parametrize("sampling", full_but(SAMPLINGS[-1:], SAMPLINGS), ids=str)
def test_texts_from_trees_have_the_targets_distribution(sampling):
    texts = draws_with_a_tree(exact, sampling, GREEDY, examples(2000))
    assert p_value(texts, exact_distribution(TARGET, sampling, LIMITS)) > SIGNIFICANCE


@pytest.mark.full
def test_a_wrong_walk_down_a_tree_is_rejected():
    texts = draws_with_a_tree(TakesTheFirstBranch, SAMPLINGS[0], GREEDY, 1500)
    assert p_value(texts, exact_distribution(TARGET, SAMPLINGS[0], LIMITS)) < SIGNIFICANCE


def test_greedy_walk_down_a_tree():
    """Nodes 0 and 1 follow the last token, 2 and 3 follow 1; the target says 6, then 8, then 5."""
    tree = Draft((5, 6, 7, 8), (-1, -1, 1, 1))
    rows = torch.zeros(5, 9)
    rows[0, 6] = rows[2, 8] = rows[4, 5] = 1.0
    assert ExactRule()(tree, window_pass(tree, rows), RNG) == Verdict((1, 3), 5)
    rows[0, 0] = 2.0
    assert ExactRule()(tree, window_pass(tree, rows), RNG) == Verdict((), 0)


@pytest.mark.sample(quick=1, full=3)
@pytest.mark.parametrize("sampling", full_but(SAMPLINGS[-1:], SAMPLINGS), ids=str)
@pytest.mark.parametrize("greedy_draft", [False, True], ids=["sampled draft", "greedy draft"])
@pytest.mark.parametrize("texts_of", full_but([draws_of_the_schedule], [draws_of_the_rule, draws_of_the_schedule]))
def test_texts_have_the_targets_distribution(texts_of, greedy_draft, sampling):
    texts = texts_of(exact, sampling, GREEDY if greedy_draft else sampling, examples(2000))
    assert p_value(texts, exact_distribution(TARGET, sampling, LIMITS)) > SIGNIFICANCE


@pytest.mark.full
@pytest.mark.parametrize("rule", [AcceptsAll, ResamplesFromTarget, ForgetsTemperature])
@pytest.mark.parametrize("greedy_draft", [False, True], ids=["sampled draft", "greedy draft"])
@pytest.mark.parametrize("texts_of", [draws_of_the_rule, draws_of_the_schedule])
def test_wrong_samplers_are_rejected(texts_of, greedy_draft, rule):
    """The control: the same test, fewer draws even."""
    sampling = SAMPLINGS[1]
    texts = texts_of(rule, sampling, GREEDY if greedy_draft else sampling, 800)
    assert p_value(texts, exact_distribution(TARGET, sampling, LIMITS)) < SIGNIFICANCE


@pytest.mark.full
def test_resampling_from_the_target_is_rejected_without_top_p_too():
    texts = draws_of_the_rule(ResamplesFromTarget, Sampling(1.0), Sampling(1.0), 3000)
    assert p_value(texts, exact_distribution(TARGET, Sampling(1.0), LIMITS)) < SIGNIFICANCE


@pytest.mark.sample(quick=1)
@pytest.mark.parametrize("sampling", SAMPLINGS, ids=str)
def test_plain_decoding_has_the_same_distribution(sampling):
    rng = torch.Generator().manual_seed(7)
    texts = []
    for _ in range(examples(3000)):
        rounds = rounds_of(autoregressive, on_tables(TARGET, LIMITS, sampling=sampling, rng=rng))
        texts.append(tuple(token for step in rounds for token in step.token_ids))
    assert p_value(texts, exact_distribution(TARGET, sampling, LIMITS)) > SIGNIFICANCE


@pytest.mark.parametrize("sampling", [*SAMPLINGS, Sampling(2.0, 0.5), Sampling(0.3, 0.05)], ids=str)
def test_the_reference_distribution_is_the_engines(sampling):
    """Both sides of the gate mean the same by temperature and top-p."""
    for prefix in [(), (0,), (1, 2)]:
        expected = reference_distribution(TARGET(prefix), sampling)
        assert sampling.distribution(TARGET(prefix)[None])[0].tolist() == pytest.approx(expected, abs=1e-6)


def test_the_drafter_of_the_schedule_really_samples():
    engine = ToyEngine(DRAFT)
    drafter = ChainDrafter(engine, engine.open(), Sampling(1.0), torch.Generator().manual_seed(1))
    drafter.begin(0)
    window = proposed(drafter, 2)
    assert window.probs is not None and window.probs.shape == (2, VOCABULARY)
    expected = Sampling(1.0).distribution(torch.stack([DRAFT((0,)), DRAFT((0, window.tokens[0]))]))
    assert torch.allclose(window.probs, expected)
