"""Drawn texts of every drafter under all cuts and penalties at once have the target's distribution."""

from functools import cache

import pytest
import torch

from tests.acceptance.sequences import SIGNIFICANCE, exact_distribution, p_value
from tests.decoding.toys import ToyEngine, blend, on_tables, random_table, rounds_of, shifted
from tests.drafting.test_blocks import TappedTable, ToyBlocks
from tests.drafting.toy_ensemble import ensemble
from tests.engine.test_penalties import processed
from vidspec.decoding.limits import StoppingRules
from vidspec.decoding.schedules.sequential import sequential
from vidspec.drafting.block import BlockDrafter
from vidspec.drafting.tree import AdaptiveDrafter
from vidspec.engine.penalties import Penalties, PenaltyHistory
from vidspec.engine.sampling import Sampling, choose_tokens, draw_token, invert_cdf

pytestmark = pytest.mark.full

VOCABULARY, EOS, LENGTH = 4, frozenset({3}), 3
TARGET = random_table(11, VOCABULARY, 1.2)
DRAFT, OTHER = blend(TARGET, random_table(12, VOCABULARY, 1.5), 0.6), random_table(13, VOCABULARY, 1.2)
SAMPLINGS = [Sampling(0.9, 0.95, 3, 0.2), Sampling(1.3, min_p=0.25), Sampling(1.1, top_k=2)]
#: A penalty below 1 and a negative one favour repetition.
PENALTIES = [None, Penalties(1.5, 0.5, 2), Penalties(0.7, -0.6)]


def mixture(rule, **evidence):
    def make(sampling, rng):
        return ensemble([shifted(DRAFT), shifted(OTHER), shifted(TARGET)], sampling, rng, rule, **evidence)

    return make


def grown(sampling, rng):
    engine = ToyEngine(shifted(DRAFT))
    return AdaptiveDrafter(engine, engine.open())


def block(candidates):
    def make(sampling, rng):
        engine = ToyBlocks(random_table(12, VOCABULARY, 1.5), candidates)
        return BlockDrafter(engine, engine.open(), sampling, rng)

    return make


#: Ways to draft: a table for a chain or a static tree, or what makes a drafter.
WAYS = {
    "chain": {"draft": shifted(DRAFT)},
    "tree": {"draft": shifted(DRAFT), "tree": "0 1 2 00 01 10"},
    "adaptive": {"draft": grown},
    "equal": {"draft": mixture("equal")},
    "grid": {"draft": mixture("grid", history=2)},
    "softmax": {"draft": mixture("softmax")},
    "inverse": {"draft": mixture("inverse", divergence="tvd", history=1)},
    "block": {"draft": block(0)},
    "selector": {"draft": block(2)},
}


def texts(way, sampling, penalties, count):
    rng = torch.Generator().manual_seed(4)
    for _ in range(count):
        given = dict(WAYS[way])
        if given["draft"] not in (WAYS["chain"]["draft"], WAYS["tree"]["draft"]):
            given["draft"] = given["draft"](sampling, rng)
        history = PenaltyHistory(penalties, [1]) if penalties else None
        limits = StoppingRules(LENGTH + 1, EOS)
        one = on_tables(shifted(TARGET), limits, gamma=2, sampling=sampling, rng=rng, history=history, **given)
        if way in ("block", "selector"):
            one.target.engine.__class__, one.target.tapped = TappedTable, (1,)
        first, *text = [token for step in rounds_of(sequential, one) for token in step.token_ids]
        assert first == 0
        yield tuple(text)


def exact(sampling, penalties):
    def changed(prefix):
        logits = TARGET(prefix)
        return processed(penalties, [1], (0, *prefix), logits) if penalties else logits

    return exact_distribution(cache(changed), sampling, StoppingRules(LENGTH, EOS))


@pytest.mark.sample(full=18)
@pytest.mark.parametrize("penalties", PENALTIES, ids=str)
@pytest.mark.parametrize("sampling", SAMPLINGS, ids=str)
@pytest.mark.parametrize("way", WAYS)
def test_texts_have_the_targets_distribution(way, sampling, penalties):
    assert p_value(texts(way, sampling, penalties, 600), exact(sampling, penalties)) > SIGNIFICANCE


def draws_from_p_after_a_rejection(probs, uniforms, tokens, drafted):
    """Wrong: not from what is left of p."""
    right = choose_tokens(probs, uniforms, tokens, drafted)
    return right if drafted is None else torch.where(right == tokens, right, invert_cdf(probs, uniforms))


@pytest.mark.parametrize("way", ["chain", "grid", "block"])
def test_a_wrong_residual_is_found(way, monkeypatch):
    monkeypatch.setattr("vidspec.engine.choices.choose_tokens", draws_from_p_after_a_rejection)
    assert p_value(texts(way, SAMPLINGS[0], PENALTIES[1], 600), exact(SAMPLINGS[0], PENALTIES[1])) < SIGNIFICANCE


@pytest.mark.parametrize("way", ["equal", "grid"])
def test_a_mixture_drawn_by_another_cut_than_it_says_is_found(way, monkeypatch):
    further = Sampling(1.0, min_p=0.6)
    wrong = lambda q, rng: draw_token(further.nucleus(q[None])[0], rng)  # noqa: E731
    monkeypatch.setattr("vidspec.drafting.ensemble_chain.draw_token", wrong)
    assert p_value(texts(way, SAMPLINGS[1], PENALTIES[2], 600), exact(SAMPLINGS[1], PENALTIES[2])) < SIGNIFICANCE
