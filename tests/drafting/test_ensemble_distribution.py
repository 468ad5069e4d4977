"""Sampled texts of ensembles have the target's distribution, and wrong ensembles are found out.

See docs/research/metrics.md.
"""

import pytest
import torch

from tests.acceptance.sequences import SIGNIFICANCE, exact_distribution, p_value
from tests.decoding.toys import GREEDY, blend, on_tables, random_table, rounds_of, shifted
from tests.drafting.toy_ensemble import ensemble
from vidspec.acceptance.rules.exact import ExactRule
from vidspec.decoding.limits import StoppingRules
from vidspec.decoding.schedules.sequential import sequential
from vidspec.drafting.ensemble_chain import mix_distributions
from vidspec.engine.requests import run_to_completion
from vidspec.engine.sampling import Sampling

VOCABULARY, EOS, LENGTH = 4, 3, 3
TARGET = random_table(11, VOCABULARY, 1.2)
CONTEXTS = [blend(TARGET, random_table(30 + i, VOCABULARY, 1.5), 0.3 + 0.3 * i) for i in range(3)]
LIMITS = StoppingRules(LENGTH, frozenset({EOS}))
SAMPLINGS = [Sampling(1.0), Sampling(0.7, 0.8)]


def texts(sampling, rule, count, *, draft_sampling=None, change=lambda drafter: drafter):
    rng = torch.Generator().manual_seed(6)
    for _ in range(count):
        drafter = change(ensemble([shifted(one) for one in CONTEXTS], draft_sampling or sampling, rng, rule))
        one = on_tables(
            shifted(TARGET), StoppingRules(LENGTH + 1, LIMITS.eos), draft=drafter, gamma=2, sampling=sampling,
            rule=ExactRule(), rng=rng,
        )  # fmt: skip
        first, *text = [token for step in rounds_of(sequential, one) for token in step.token_ids]
        assert first == 0
        yield tuple(text)


@pytest.mark.sample(full=2)
@pytest.mark.full
@pytest.mark.parametrize(
    ("rule", "greedy_draft", "sampling"),
    [
        pytest.param("equal", False, SAMPLINGS[0], marks=pytest.mark.full),
        ("equal", False, SAMPLINGS[1]),
        pytest.param("equal", True, SAMPLINGS[1], marks=pytest.mark.full),
        pytest.param("softmax", False, SAMPLINGS[1], marks=pytest.mark.full),
    ],
    ids=str,
)
def test_texts_have_the_targets_distribution(rule, greedy_draft, sampling):
    drawn = texts(sampling, rule, 900, draft_sampling=GREEDY if greedy_draft else None)
    assert p_value(drawn, exact_distribution(TARGET, sampling, LIMITS)) > SIGNIFICANCE


def says_one_context(drafter):
    """Wrong: draws from the mixture, and says it was the first context alone."""
    propose = drafter.propose

    def wrong(gamma):
        yield from ()
        rows = []
        run = drafter.engine.run
        drafter.engine.run = lambda batch: (rows.append(run(batch)), rows[-1])[1]
        draft = run_to_completion(propose(gamma))
        drafter.engine.run = run
        if draft.probs is not None:
            draft.probs[:] = torch.stack([drafter.sampling.distribution(row[0].logits[-1:])[0] for row in rows])
        return draft

    drafter.propose = wrong
    return drafter


def drafts_its_best(drafter):
    """Wrong: proposes the best token of the mixture, and says it was drawn."""
    propose = drafter.propose

    def wrong(gamma):
        yield from ()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("vidspec.drafting.ensemble_chain.draw_token", lambda q, rng: int(q.argmax()))
            return run_to_completion(propose(gamma))

    drafter.propose = wrong
    return drafter


@pytest.mark.full
@pytest.mark.parametrize("wrong", [says_one_context, drafts_its_best])
def test_wrong_ensembles_are_rejected(wrong):
    """The control: the same test, fewer draws even."""
    drawn = texts(SAMPLINGS[1], "equal", 500, change=wrong)
    assert p_value(drawn, exact_distribution(TARGET, SAMPLINGS[1], LIMITS)) < SIGNIFICANCE


def test_the_mixture_differs_from_its_parts():
    """Or the gate says little of ensembles."""
    rows = torch.stack([SAMPLINGS[0].distribution(table((0,))[None])[0] for table in CONTEXTS])
    mean = mix_distributions([1 / 3] * 3, rows)
    assert (rows - mean).abs().amax(-1).min() > 0.02
