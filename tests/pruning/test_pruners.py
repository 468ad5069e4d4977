"""Every pruner's contract, and what each rule keeps."""

import re
from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.pruning.given import irregular_tokens, random_signals, visual_tokens
from tests.tiers import Tier, examples
from vidspec.config.schema import names
from vidspec.pruning.base import Signals, kept_count, pruners, top_scored, with_required

METHODS = [name for name in names("pruning") if name != "none"]
ALPHA = st.one_of(st.floats(0, 0.99), st.sampled_from([0.0, 0.5, 0.9, 0.99]))


def tokens(frames, cells, newline=True):
    """The visual tokens of ``frames`` frames of ``cells`` x ``cells``, and LLaVA-OneVision's newline."""
    return visual_tokens(frames, cells, cells, newline=newline, seed=frames)


def signals(visual, seed=0, needs=()):
    return random_signals(visual, needs, seed)


def contents(given):
    """Everything in ``given``, copied."""
    fixed = (given.visual.required, given.visual.features, given.visual.index, given.attention, given.text)
    return [part.clone() for part in (*fixed, *given.hidden.values(), *given.block_attention.values())]


def pruner(name):
    return pruners.get(name)()


LAYOUTS = st.one_of(
    st.builds(visual_tokens, st.integers(1, 9), st.integers(1, 5), st.integers(1, 6), newline=st.booleans()),
    st.builds(irregular_tokens, st.integers(1, 6), st.integers(1, 4), st.integers(1, 5)),
)


@pytest.mark.sample(quick=2)
@pytest.mark.parametrize("name", METHODS)
@settings(deadline=None, max_examples=examples(40))
@given(LAYOUTS, ALPHA, st.integers(0, 5))
def test_contract(name, visual, alpha, seed):
    given_ = signals(visual, seed, pruner(name).needs)
    before = contents(given_)
    kept = pruner(name)(given_, alpha)
    n = len(visual)
    assert kept.dtype == torch.long and kept.dim() == 1
    assert len(kept) == max(1, round((1 - alpha) * n))
    assert kept.tolist() == sorted(set(kept.tolist()))
    assert set(kept.tolist()) <= set(range(n))
    # Separators stay, or are all that stays.
    required = set(visual.required.nonzero()[:, 0].tolist())
    assert required <= set(kept.tolist()) or set(kept.tolist()) < required
    assert torch.equal(pruner(name)(given_, alpha), kept)  # the same again
    assert all(torch.equal(now, then) for now, then in zip(contents(given_), before, strict=True))
    if alpha == 0:
        assert kept.tolist() == list(range(n))


@pytest.mark.sample(quick=2)
@pytest.mark.parametrize("name", METHODS)
def test_budget_is_exact_for_every_alpha(name):
    """Every fiftieth of ``alpha``, or every twentieth, for videos of 1 to 9 tokens, where rounding shows, and more."""
    for visual in (*(visual_tokens(1, 1, columns, newline=False) for columns in range(1, 10)), visual_tokens(6, 3, 5)):
        given_ = signals(visual, needs=pruner(name).needs)
        for percent in range(0, 100, 5 if Tier.quick else 2):
            kept = pruner(name)(given_, percent / 100).tolist()
            assert len(kept) == len(set(kept)) == max(1, round((1 - percent / 100) * len(visual)))


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision(name, dtype):
    visual = visual_tokens(5, 3, 4, 64)
    visual = replace(visual, features=visual.features.to(dtype))
    kept = pruner(name)(signals(visual, needs=pruner(name).needs), 0.8).tolist()
    assert len(kept) == kept_count(len(visual), 0.8) and kept == sorted(set(kept)) and len(visual) - 1 in kept


@pytest.mark.parametrize("name", METHODS)
def test_declares_what_it_needs(name):
    known = re.compile(r"(attention|hidden)@\d+|attention|features")
    assert all(known.fullmatch(need) for need in pruner(name).needs)


@given(st.integers(1, 30000), ALPHA)
def test_budget(n, alpha):
    kept = kept_count(n, alpha)
    assert 1 <= kept <= n
    assert kept == 1 or abs(kept - (1 - alpha) * n) <= 0.5 + 1e-9


@pytest.mark.parametrize(
    ("n", "alpha", "kept"), [(1, 0.99, 1), (513, 0.9, 51), (513, 0.0, 513), (10, 0.5, 5), (3, 0.99, 1)]
)
def test_budgets(n, alpha, kept):
    assert kept_count(n, alpha) == kept


@given(LAYOUTS, ALPHA)
def test_uniform_spacing_is_even_within_each_frame(visual, alpha):
    """Gaps between neighbours differ by at most one, and half a gap lies before the first and behind the last."""
    chosen = set(pruner("uniform")(signals(visual), alpha).tolist())
    for frame in range(visual.frames):
        free = ((visual.frame == frame) & ~visual.required).nonzero()[:, 0].tolist()
        kept = [at for at, token in enumerate(free) if token in chosen]
        gaps = {b - a for a, b in pairwise(kept)}
        assert not gaps or max(gaps) - min(gaps) <= 1
        if kept:
            half = len(free) / len(kept) / 2
            assert abs(kept[0] - half) <= 1 and abs(len(free) - kept[-1] - half) <= 1


@given(LAYOUTS, ALPHA)
def test_uniform_takes_every_frame_alike(visual, alpha):
    """Numbers differ by at most one, unless a frame has no more; those with one more are spread over the video."""
    kept = pruner("uniform")(signals(visual), alpha)
    numbers = torch.bincount(visual.frame[kept[~visual.required[kept]]], minlength=visual.frames).tolist()
    sizes = torch.bincount(visual.frame[~visual.required], minlength=visual.frames).tolist()
    assert all(number >= max(numbers) - 1 or number == size for number, size in zip(numbers, sizes, strict=True))
    more = [at for at, number in enumerate(numbers) if number == max(numbers)]
    gaps = {b - a for a, b in pairwise(more)}
    assert len(set(sizes)) > 1 or not gaps or max(gaps) - min(gaps) <= 1


def test_uniform_counts_by_frame():
    """Eight frames of 25 tokens and a newline, of which 40 stay."""
    kept = pruner("uniform")(signals(tokens(8, 5)), 0.8)
    assert torch.bincount(tokens(8, 5).frame[kept[:-1]]).tolist() == [5, 5, 5, 4, 5, 5, 5, 5]


def test_random_differs_by_seed_and_is_spread():
    visual = tokens(20, 4)
    by_seed = {tuple(pruner("random")(signals(visual, seed), 0.9).tolist()) for seed in range(20)}
    assert len(by_seed) == 20
    share = torch.zeros(len(visual))
    for kept in by_seed:
        share[list(kept)] += 1
    assert share[-1] == 20  # the newline
    assert share[:-1].max() <= 10 and (share[:160].sum() - share[160:-1].sum()).abs() < 120


def test_random_leaves_the_global_generator_alone():
    torch.manual_seed(3)
    expected = torch.rand(1)
    torch.manual_seed(3)
    pruner("random")(signals(tokens(3, 3)), 0.5)
    assert torch.equal(torch.rand(1), expected)


@given(st.integers(1, 8), st.integers(1, 4), st.booleans(), ALPHA, st.data())
def test_attention_keeps_the_highest_scores(frames, cells, newline, alpha, data):
    visual = tokens(frames, cells, newline)
    n = len(visual)
    # Few values, so that there are ties: the earlier token wins.
    scores = data.draw(st.lists(st.sampled_from([0.0, 0.25, 0.5, 1.0]), min_size=n, max_size=n))
    kept = pruner("attention")(Signals(visual, torch.tensor(scores)), alpha).tolist()
    chosen = [i for i in range(n) if visual.required[i]]
    while len(chosen) < kept_count(n, alpha):
        best = None
        for i in range(n):
            if i not in chosen and (best is None or scores[i] > scores[best]):
                best = i
        chosen.append(best)
    assert kept == sorted(chosen)


def test_attention_without_its_signal_says_so():
    with pytest.raises(ValueError, match="attention"):
        pruner("attention")(Signals(tokens(2, 2)), 0.5)


def test_required_tokens_come_first_however_bad():
    visual = tokens(2, 2)
    order = torch.tensor([3, 1, 0, 2, 7, 6, 5, 4, 8])
    assert with_required(order, visual, 1).tolist() == [8]
    assert with_required(order, visual, 3).tolist() == [1, 3, 8]
    scores = torch.tensor([9.0, 1, 1, 9, 1, 1, 1, 1, 0])
    assert top_scored(scores, visual, 0.65).tolist() == [0, 3, 8]
