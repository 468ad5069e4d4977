import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.tiers import examples
from vidspec.engine.choices import read_back_tokens
from vidspec.engine.rows import PassResult, Rows
from vidspec.engine.sampling import PREFIX, DrawRule, Sampling, SamplingCuts, cut_rows, draw_token

LOGITS = st.lists(st.floats(-12, 12, width=32), min_size=1, max_size=12)


def row(values):
    return torch.tensor([values])


@given(LOGITS)
def test_greedy_is_one_hot_at_the_argmax(values):
    got = Sampling().distribution(row(values))
    assert got.dtype == torch.float32 and sorted(got[0].tolist())[-1] == 1.0 and got.sum() == 1.0
    assert int(got.argmax()) == int(row(values).argmax())


def test_greedy_tie_takes_what_argmax_takes():
    tied = torch.tensor([[1.0, 3.0, 3.0, 2.0], [0.0, 0.0, 0.0, 0.0]])
    got = Sampling(top_p=0.1).distribution(tied)
    assert got.sum(-1).tolist() == [1.0, 1.0]  # never two tokens
    assert torch.equal(got.argmax(-1), tied.argmax(-1))


@given(LOGITS, st.floats(0.1, 4))
def test_temperature(values, temperature):
    got = Sampling(temperature).distribution(row(values))
    expected = (row(values).double() / temperature).exp()
    torch.testing.assert_close(got.double(), expected / expected.sum(), rtol=1e-4, atol=1e-6)


def test_half_precision_logits_give_float32():
    got = Sampling(0.7, 0.9).distribution(torch.tensor([[1.0, 2.0]]).bfloat16())
    assert got.dtype == torch.float32


@given(LOGITS, st.floats(0.05, 0.99), st.sampled_from([0.5, 1.0, 2.0]))
@settings(max_examples=examples(200))
def test_top_p_is_the_smallest_set_that_reaches_p(values, top_p, temperature):
    whole = Sampling(temperature).distribution(row(values))[0].double()
    got = Sampling(temperature, top_p).distribution(row(values))[0].double()
    kept = got > 0
    assert got.sum().item() == pytest.approx(1, abs=1e-5)
    reached = whole[kept].sum().item()
    assert reached >= top_p - 1e-5
    assert reached - whole[kept].min().item() < top_p + 1e-5  # one fewer would not do
    if not kept.all():
        assert whole[kept].min() >= whole[~kept].max()  # the likeliest ones
    torch.testing.assert_close(got[kept], whole[kept] / reached, rtol=1e-4, atol=1e-6)  # their ratios stay


@pytest.mark.parametrize(
    "top_p, kept", [(0.3, [1]), (0.49, [1]), (0.51, [1, 3]), (0.74, [1, 3]), (0.8, [1, 2, 3]), (0.95, [0, 1, 2, 3])]
)
def test_top_p_by_hand(top_p, kept):
    probs = torch.tensor([[0.0625, 0.5, 0.1875, 0.25]])
    got = Sampling(1.0, top_p).distribution(probs.log())
    assert (got[0] > 0).nonzero()[:, 0].tolist() == kept
    torch.testing.assert_close(got[0, kept], probs[0, kept] / probs[0, kept].sum())


def test_top_p_of_ties_keeps_only_as_many_as_needed():
    got = Sampling(1.0, 0.45).distribution(torch.zeros(1, 5))
    assert (got > 0).sum() == 3
    torch.testing.assert_close(got[got > 0], torch.full((3,), 1 / 3))


def test_top_p_always_keeps_one():
    got = Sampling(1.0, 1e-6).distribution(torch.tensor([[0.0, 0.1, 0.05]]))
    assert got.tolist() == [[0.0, 1.0, 0.0]]


def test_rows_are_independent():
    rng = torch.Generator().manual_seed(0)
    logits = torch.randn(4, 9, generator=rng) * 3
    for sampling in (Sampling(), Sampling(0.8), Sampling(0.8, 0.7)):
        together = sampling.distribution(logits)
        for index in range(4):
            torch.testing.assert_close(sampling.distribution(logits[index : index + 1])[0], together[index])


def test_logits_are_not_changed():
    logits = torch.tensor([[1.0, 2.0, 3.0]])
    for sampling in (Sampling(), Sampling(0.8), Sampling(0.8, 0.7)):
        sampling.distribution(logits)
    assert logits.tolist() == [[1.0, 2.0, 3.0]]


def test_greedy_property():
    assert Sampling().greedy and Sampling(0, 0.5).greedy and not Sampling(0.1).greedy


def test_draw_repeats_with_its_seed():
    probs = torch.full((50,), 0.02)

    def drawn(seed):
        rng = torch.Generator().manual_seed(seed)
        return [draw_token(probs, rng) for _ in range(20)]

    assert drawn(1) == drawn(1) != drawn(2)


def test_draw_follows_the_probabilities():
    probs, rng = torch.tensor([0.5, 0.0, 0.3, 0.2]), torch.Generator().manual_seed(0)
    counts = torch.bincount(torch.tensor([draw_token(probs, rng) for _ in range(4000)]), minlength=4)
    assert counts[1] == 0
    # the greatest of three deviations beyond 4.5 standard deviations happens once in 50,000 seeds
    deviation = (counts - 4000 * probs).abs() / (4000 * probs * (1 - probs)).clamp(min=1e-9).sqrt()
    assert deviation.max() < 4.5


def test_draw_of_a_one_hot_row():
    rng = torch.Generator().manual_seed(0)
    assert {draw_token(Sampling().distribution(torch.tensor([[0.0, 5.0, 1.0]]))[0], rng) for _ in range(20)} == {1}


@pytest.mark.parametrize("settings", [{"top_k": 3}, {"min_p": 0.2}, {"top_k": 5, "top_p": 0.8, "min_p": 0.1}])
def test_cuts_are_those_of_transformers(settings):
    """In its order: temperature, top-k, top-p, min-p."""
    from transformers.generation.logits_process import (
        MinPLogitsWarper,
        TemperatureLogitsWarper,
        TopKLogitsWarper,
        TopPLogitsWarper,
    )

    logits = torch.randn(6, 40, generator=torch.Generator().manual_seed(3)) * 2
    warpers = [TemperatureLogitsWarper(0.7)]
    warpers += [TopKLogitsWarper(settings["top_k"])] if "top_k" in settings else []
    warpers += [TopPLogitsWarper(settings["top_p"])] if "top_p" in settings else []
    warpers += [MinPLogitsWarper(settings["min_p"])] if "min_p" in settings else []
    expected = logits.clone()
    for warper in warpers:
        expected = warper(None, expected)
    found = Sampling(0.7, **settings).distribution(logits)
    torch.testing.assert_close(found, expected.softmax(-1))
    assert ((found > 0).sum(-1) < 40).all()


def test_no_cut_leaves_all_tokens():
    logits = torch.randn(2, 9)
    assert torch.equal(Sampling(0.7, 1.0, 0, 0.0).distribution(logits), (logits / 0.7).softmax(-1))


def by_sort(sampling, probs):
    """Top-k, then top-p, of all probabilities in order; of equal ones those with lower ids first."""
    ordered, index = probs.sort(dim=-1, descending=True, stable=True)
    if sampling.top_k:
        ordered[:, sampling.top_k :] = 0
        ordered /= ordered.sum(-1, keepdim=True)
    if sampling.top_p < 1:
        ordered = ordered.masked_fill(ordered.cumsum(-1) - ordered >= sampling.top_p, 0.0)
    cut = torch.zeros_like(probs).scatter_(-1, index, ordered)
    return cut / cut.sum(-1, keepdim=True)


@pytest.mark.parametrize("settings", [{"top_p": 0.9}, {"top_p": 0.999}, {"top_k": 50, "top_p": 0.8}, {"top_k": 900}])
@pytest.mark.parametrize("scale", [0.01, 1, 5], ids=["flat", "usual", "sharp"])
def test_cuts_are_those_of_a_whole_sort_to_the_bit(scale, settings):
    """Also with many ties, as half precision has them, and where the first probabilities do not hold the mass."""
    logits = torch.randn(3, 2500, generator=torch.Generator().manual_seed(5)) * scale
    for rows in (logits, logits.bfloat16().float(), logits.round()):
        probs, sampling = rows.softmax(-1), Sampling(1.0, **settings)
        assert torch.equal(sampling.nucleus(probs), by_sort(sampling, probs))


def test_a_flat_distribution_is_drawn_from_exactly():
    """A second read-back, only where a prefix does not reach top-p."""
    sampling, flat = Sampling(1.0, 0.95), torch.zeros(1, 3 * PREFIX)
    fields = torch.tensor(sampling.fields)[:, None, None]
    assert not cut_rows(flat.softmax(-1), fields, SamplingCuts.of([sampling]))[1].all()
    batch = [Rows(None, [0], draw=DrawRule(sampling, (0.9,), keeps_probs=True))]
    (found,) = read_back_tokens(batch, [PassResult(flat, flat)])
    assert torch.equal(found.probs, sampling.distribution(flat)) and (found.probs > 0).sum() > PREFIX
    assert found.chosen == [int(0.9 * (found.probs > 0).sum())]
