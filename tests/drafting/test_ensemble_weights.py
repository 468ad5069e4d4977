"""The rules for the weights of an ensemble, against literal loops and by hand."""

import pytest
import torch

from tests.drafting.literal_ensemble import DIVERGENCES, literal_mean, literal_weights
from vidspec.drafting.ensemble_chain import (
    ContextErrors,
    equal_weights,
    grid_weights,
    inverse_weights,
    kl_divergence,
    mix_distributions,
    simplex_grid,
    softmax_weights,
    total_variation,
)

RULES = ["grid", "softmax", "inverse"]


def rows(seed, *shape, scale=1.5):
    return (scale * torch.randn(*shape, generator=torch.Generator().manual_seed(seed))).softmax(-1)


@pytest.mark.parametrize("name", ["kl", "tvd"])
@pytest.mark.parametrize("seed", range(4))
def test_divergences_equal_literal_loops(name, seed):
    p, q = rows(seed, 30), rows(seed + 50, 7, 30)
    expected = [DIVERGENCES[name](p.tolist(), row) for row in q.tolist()]
    assert {"kl": kl_divergence, "tvd": total_variation}[name](p, q).tolist() == pytest.approx(expected, rel=1e-4)


def test_divergence_of_a_distribution_from_itself_is_zero():
    p = rows(1, 600)
    assert 0 <= kl_divergence(p, p[None]).item() < 1e-6 and total_variation(p, p[None]).item() == 0


def test_tokens_that_cannot_occur():
    p, q = torch.tensor([0.5, 0.5, 0.0]), torch.tensor([[0.5, 0.25, 0.25], [1.0, 0.0, 0.0]])
    near, far = kl_divergence(p, q).tolist()
    assert near == pytest.approx(0.5 * torch.log(torch.tensor(2.0)).item())
    assert 40 < far < 50, "a token that a context rules out costs much, but not infinitely much"
    assert total_variation(p, q).tolist() == [0.25, 0.5]


@pytest.mark.parametrize(("contexts", "count"), [(1, 1), (2, 11), (3, 66), (4, 286)])
def test_grid_covers_the_simplex_in_tenths(contexts, count):
    grid = simplex_grid(contexts)
    assert grid.shape == (count, contexts) == torch.unique(grid, dim=0).shape
    assert torch.allclose(grid.sum(-1), torch.ones(count).double()) and grid.min() >= 0
    assert torch.allclose(grid * 10, (grid * 10).round())


def test_grid_of_two_is_the_papers():
    assert simplex_grid(2).tolist() == [[pytest.approx(1 - j / 10), pytest.approx(j / 10)] for j in range(11)]


@pytest.mark.sample(quick=17)
@pytest.mark.parametrize("divergence", ["kl", "tvd"])
@pytest.mark.parametrize("history", [None, 1, 4])
@pytest.mark.parametrize("contexts", [1, 2, 3, 4])
@pytest.mark.parametrize("rule", RULES)
def test_evidence_equals_literal_loops(rule, contexts, history, divergence):
    evidence = ContextErrors(rule, contexts, divergence, history)
    positions = []
    for seed in range(7):
        expected = literal_weights(rule, positions, contexts, divergence, history)
        assert evidence.weights() == pytest.approx(expected, abs=1e-4)
        p, q, emitted = rows(seed, 9), rows(seed + 90, contexts, 9), seed % 4
        evidence.add(p, q, emitted)
        positions.append((p.tolist(), q.tolist(), emitted))
    assert evidence.weights() == pytest.approx(
        literal_weights(rule, positions, contexts, divergence, history), abs=1e-4
    )


def test_matches_come_before_divergence():
    grid = simplex_grid(2)
    matches, errors = torch.zeros(11), torch.arange(11).flip(0).double()
    matches[3], matches[4] = 2, 2
    assert grid_weights(grid, matches, errors) == (pytest.approx(0.6), pytest.approx(0.4))
    matches[7] = 3
    assert grid_weights(grid, matches, errors + 100 * matches) == (pytest.approx(0.3), pytest.approx(0.7))


def test_full_ties_go_to_the_first_candidate():
    assert grid_weights(simplex_grid(3), torch.ones(66), torch.ones(66).double()) == (1.0, 0.0, 0.0)


def test_a_sampled_token_is_matched_not_the_targets_best():
    """Under sampling the two differ: the context that foresaw what was drawn counts."""
    p = torch.tensor([0.6, 0.4])
    q = torch.tensor([[0.9, 0.1], [0.1, 0.9]])
    for emitted, winner in ((0, 0), (1, 1)):
        evidence = ContextErrors("grid", 2)
        evidence.add(p, q, emitted)
        assert evidence.weights()[winner] > 0.5


def test_softmax_and_inverse_by_hand():
    errors = torch.tensor([0.5, 1.0]).double()
    assert inverse_weights(errors) == (pytest.approx(2 / 3), pytest.approx(1 / 3))
    assert softmax_weights(errors) == (pytest.approx(0.7310586), pytest.approx(0.2689414))  # softmax of 2 and 1


@pytest.mark.parametrize("rule", [softmax_weights, inverse_weights])
def test_perfect_contexts_share_and_never_divide_by_zero(rule):
    assert rule(torch.tensor([0.0, 0.0]).double()) == (0.5, 0.5)
    best, other = rule(torch.tensor([0.0, 1.0]).double())
    assert best > 0.999 and best + other == pytest.approx(1)


@pytest.mark.parametrize("rule", RULES)
def test_the_context_that_is_the_target_wins(rule):
    evidence = ContextErrors(rule, 3)
    for seed in range(6):
        p = rows(seed, 12)
        evidence.add(p, torch.stack([rows(seed + 30, 12), p, rows(seed + 60, 12)]), int(p.argmax()))
    assert evidence.weights()[1] > 0.99


def test_only_the_last_positions_count():
    evidence = ContextErrors("inverse", 2, history=3)
    p, far = rows(1, 12), rows(2, 12)
    for _ in range(9):
        evidence.add(p, torch.stack([p, far]), 0)
    for _ in range(3):
        evidence.add(p, torch.stack([far, p]), 0)
    assert evidence.weights()[1] > 0.99


@pytest.mark.parametrize("rule", RULES)
def test_equal_before_any_evidence(rule):
    assert ContextErrors(rule, 4).weights() == equal_weights(4) == (0.25,) * 4


def test_mixture_is_the_weighted_mean():
    q, weights = rows(3, 4, 20), [0.1, 0.2, 0.3, 0.4]
    assert mix_distributions(weights, q).tolist() == pytest.approx(literal_mean(weights, q.tolist()), rel=1e-5)
    assert torch.equal(mix_distributions([0.0, 1.0, 0.0, 0.0], q), q[1])
