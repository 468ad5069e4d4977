from statistics import fmean, pstdev

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.pruning.given import best, cos, visual_tokens
from tests.tiers import examples
from vidspec.errors import ProfileError
from vidspec.pruning.base import Signals, token_grid
from vidspec.pruning.pruners.hippo import HippoPruner
from vidspec.pruning.scores import crop_variance, frame_normalised, temporal_novelty

TERMS = [(True, True, True), (False, True, True), (True, False, True), (True, True, False), (False, False, True)]


def tokens_at(visual, **where):
    return [i for i in range(len(visual)) if all(int(getattr(visual, k)[i]) == v for k, v in where.items())]


def temporal(visual, i):
    """Eq. 3-4 of one token."""
    if visual.row[i] < 0:
        return 0.0
    at = {"row": int(visual.row[i]), "column": int(visual.column[i])}
    near = [j for d in (-1, 1) for j in tokens_at(visual, frame=int(visual.frame[i]) + d, **at)]
    return 1 - (fmean(cos(visual.features[i], visual.features[j]) for j in near) if near else 0.0)


def spatial(visual, i, crop=5):
    """Eq. 5-6 of one token."""
    if visual.row[i] < 0:
        return 0.0
    same = [
        j
        for j in tokens_at(visual, frame=int(visual.frame[i]))
        if visual.row[j] >= 0
        and visual.row[j] // crop == visual.row[i] // crop
        and visual.column[j] // crop == visual.column[i] // crop
    ]
    row = [cos(visual.features[i], visual.features[k]) for k in same]
    mean = sum(row) / len(row)
    return sum((s - mean) ** 2 for s in row) / len(row)


def normalised(scores, visual, i, floor):
    """(s - mu_f) / sigma_f of one token, 0 where nothing varies."""
    frame = [scores[j] for j in tokens_at(visual, frame=int(visual.frame[i])) if visual.row[j] >= 0]
    return (scores[i] - fmean(frame)) / pstdev(frame) if pstdev(frame) > floor else 0.0


def literal(visual, attention, terms):
    """Eq. 7, one token at a time."""
    n = range(len(visual))
    parts = [
        ([float(a) for a in attention], 1e-6 * float(attention.max())),
        ([temporal(visual, i) for i in n], 1e-6),
        ([spatial(visual, i) for i in n], 1e-12),
    ]
    wanted = [part for part, on in zip(parts, terms, strict=True) if on]
    return torch.tensor(
        [sum(normalised(s, visual, i, floor) for s, floor in wanted) if visual.row[i] >= 0 else 0.0 for i in n]
    )


SHAPES = st.tuples(st.integers(1, 4), st.integers(1, 7), st.integers(1, 7))


@settings(deadline=None, max_examples=25)
@given(SHAPES, st.booleans(), st.integers(0, 99))
def test_temporal_term_equals_a_literal_transcription(shape, newline, seed):
    visual = visual_tokens(*shape, newline=newline, seed=seed)
    got = temporal_novelty(visual.features, token_grid(visual))
    expected = torch.tensor([temporal(visual, i) for i in range(len(visual))])
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-5)


@pytest.mark.full
@settings(deadline=None, max_examples=examples(25))
@given(SHAPES, st.booleans(), st.integers(0, 99))
def test_spatial_term_equals_a_literal_transcription(shape, newline, seed):
    visual = visual_tokens(*shape, newline=newline, seed=seed)
    got = crop_variance(visual.features, token_grid(visual))
    expected = torch.tensor([spatial(visual, i) for i in range(len(visual))])
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-5)


GRIDS = [(2, 5, 4), (1, 3, 3), (4, 1, 1), pytest.param((3, 6, 7), marks=pytest.mark.full)]


@pytest.mark.parametrize("terms", TERMS)
@pytest.mark.parametrize("shape", GRIDS)
def test_score_equals_a_literal_transcription(shape, terms):
    visual = visual_tokens(*shape)
    attention = torch.rand(len(visual), generator=torch.Generator().manual_seed(3)) / 100
    got = HippoPruner(*terms).scores(Signals(visual, attention))
    torch.testing.assert_close(got, literal(visual, attention, terms), rtol=0, atol=1e-4)


@pytest.fixture(scope="module")
def real(prefill):
    """The first three frames of a real prefill, and its attention to them."""
    visual = prefill.prefix.visual
    rows, columns = int(visual.row.max()) + 1, int(visual.column.max()) + 1
    n = 3 * rows * columns
    return visual_tokens(3, rows, columns, newline=False, features=visual.features[:n]), prefill.signals.attention[:n]


@pytest.mark.sample(quick=1)
@pytest.mark.parametrize("terms", TERMS)
def test_score_of_a_real_prefill(real, terms):
    visual, attention = real
    signals, expected = Signals(visual, attention), literal(visual, attention, terms)
    got = HippoPruner(*terms).scores(signals)
    torch.testing.assert_close(got, expected, rtol=1e-3, atol=2e-3)
    assert expected.std() > 0.1
    for alpha in (0.5, 0.9):
        assert HippoPruner(*terms)(signals, alpha).tolist() == best(got, visual, alpha)


def test_each_term_can_be_switched_off(prefill):
    kept = {terms: tuple(HippoPruner(*terms)(prefill.signals, 0.8).tolist()) for terms in TERMS}
    assert len(set(kept.values())) == len(TERMS)


@pytest.mark.parametrize(
    ("terms", "needs"),
    [
        ((True, True, True), {"attention", "features"}),
        ((False, True, False), {"features"}),
        ((False, False, True), {"features"}),
        ((True, False, False), {"attention"}),
    ],
)
def test_declares_only_what_its_terms_need(terms, needs):
    assert HippoPruner(*terms).needs == needs
    visual = {f"visual_{need}" if need == "attention" else need for need in needs}
    assert HippoPruner(*terms, keys="visual").needs == visual


def test_without_any_term_it_rates_nothing():
    with pytest.raises(ProfileError, match="one of its three terms"):
        HippoPruner(False, False, False)


def test_a_frame_in_which_nothing_varies_scores_zero():
    still = (
        torch.randn(1, 64, generator=torch.Generator().manual_seed(0)).expand(3 * 49, 64)
        * torch.linspace(1, 3, 147)[:, None]
    )
    visual = visual_tokens(3, 7, 7, newline=False, features=still)
    assert HippoPruner()(Signals(visual, torch.full((147,), 0.1)), 0.9).tolist() == list(range(15))
    assert HippoPruner().scores(Signals(visual, torch.full((147,), 0.1))).abs().max() == 0


def test_frames_are_normalised_each_by_itself():
    frame = torch.tensor([0, 0, 1, 1, 2, 2])
    scores = torch.tensor([1.0, 3.0, 1e-6, 3e-6, 5.0, 5.0])
    assert frame_normalised(scores, frame).tolist() == pytest.approx([-1, 1, -1, 1, 0, 0])
    assert frame_normalised(scores, frame, floor=1e-5).tolist() == pytest.approx([-1, 1, 0, 0, 0, 0])


def test_the_newline_does_not_shift_its_frame():
    visual = visual_tokens(2, 2, 2)
    attention = torch.rand(9, generator=torch.Generator().manual_seed(1))
    loud = attention.clone()
    loud[8] = 1000
    calm, shaken = (HippoPruner().scores(Signals(visual, given)) for given in (attention, loud))
    assert torch.equal(calm, shaken) and calm[8] == 0


def test_missing_places_are_left_out():
    """A video whose second frame lacks a token: its neighbours have one frame less to be compared with."""
    whole = visual_tokens(3, 2, 2, newline=False)
    grid = token_grid(whole)
    grid[1, 0, 0] = -1
    got = temporal_novelty(whole.features, grid)
    assert got[4] == 0 and got[0] == 1 and got[8] == 1
    assert torch.equal(got[[1, 5, 9]], temporal_novelty(whole.features, token_grid(whole))[[1, 5, 9]])
    three = [cos(whole.features[5], whole.features[k]) for k in (5, 6, 7)]
    expected = sum((s - fmean(three)) ** 2 for s in three) / 3
    assert float(crop_variance(whole.features, grid)[5]) == pytest.approx(expected, abs=1e-5)
