from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.checkpoints import checkpoint
from tests.pruning.given import visual_tokens
from vidspec.captioner import Captioner
from vidspec.config import profiles
from vidspec.embedded.samples import shipped
from vidspec.events.events import Prefilled
from vidspec.models import loading
from vidspec.models.placement import resolve_placement
from vidspec.pruning.base import Signals, kept_count
from vidspec.pruning.pruners.specvlm import SpecVLMPruner
from vidspec.pruning.scores import head_count


def top_p(attention, lam_r):
    """Eq. 6 in exact arithmetic: add the largest until their share is reached."""
    shares, held, count = sorted(attention, reverse=True), Fraction(0), 0
    while held < lam_r * sum(shares):
        held += shares[count]
        count += 1
    return count


def literal(attention, visual, alpha, lam_r):
    """Both stages, token by token; the required ones first, and the budget exact."""
    n, wanted = len(visual), kept_count(len(visual), alpha)
    kept = [i for i in range(n) if visual.required[i]][:wanted]
    ranked = sorted(range(n), key=lambda i: (-attention[i], i))
    for i in ranked[: top_p(attention, lam_r)]:
        if len(kept) < wanted and i not in kept:
            kept.append(i)
    rest, left = [i for i in range(n) if i not in kept and not visual.required[i]], wanted - len(kept)
    kept += [rest[k * (len(rest) - 1) // max(1, left - 1)] for k in range(left)]
    return sorted(kept)


SIXTEENTHS = st.integers(0, 16).map(lambda part: Fraction(part, 16))


@given(st.lists(SIXTEENTHS, min_size=1, max_size=40), SIXTEENTHS)
def test_head_count_equals_a_literal_transcription(attention, lam_r):
    got = head_count(torch.tensor([float(share) for share in attention]), float(lam_r))
    assert got == top_p(attention, lam_r)


@settings(deadline=None)
@given(st.integers(1, 7), st.integers(1, 4), st.booleans(), st.floats(0, 0.99), SIXTEENTHS, st.data())
def test_equals_a_literal_transcription(frames, side, newline, alpha, lam_r, data):
    visual = visual_tokens(frames, side, side, newline=newline)
    attention = data.draw(st.lists(SIXTEENTHS, min_size=len(visual), max_size=len(visual)))
    signals = Signals(visual, torch.tensor([float(share) for share in attention]))
    assert SpecVLMPruner(float(lam_r))(signals, alpha).tolist() == literal(attention, visual, alpha, lam_r)


@pytest.mark.parametrize("alpha", [0.5, 0.9])
def test_equals_it_on_a_real_prefill(prefill, alpha):
    attention = [Fraction(float(share)) for share in prefill.signals.attention]
    for lam_r in (0.1, 0.4):
        assert top_p(attention, Fraction(lam_r)) > 0
        expected = literal(attention, prefill.prefix.visual, alpha, Fraction(lam_r))
        assert SpecVLMPruner(lam_r)(prefill.signals, alpha).tolist() == expected


@pytest.mark.full
@pytest.mark.parametrize("alpha", [0.2, 0.4])
def test_the_second_stage_fills_the_budget_of_a_clip(monkeypatch, alpha):
    """Attention of a small model that reads a clip: a share of 0.4 lies on fewer tokens than the budget has."""
    place, given = resolve_placement("cpu", "float32"), []
    pair = [loading.load_model(str(checkpoint("readable")), place) for name in ("target", "draft")]
    settings_ = {"video.frames": 4, "generate.max_new_tokens": 2, "prune.lam_r": 0.4, "prune.alpha": alpha}
    captioner = Captioner(profiles.load("specvlm-chain", settings_, env={}), *pair)
    call = SpecVLMPruner.__call__
    monkeypatch.setattr(SpecVLMPruner, "__call__", lambda self, *its: given.append(its[0]) or call(self, *its))
    kept = next(event.kept for event in captioner.stream(shipped()[0]) if isinstance(event, Prefilled))
    attention, visual = [Fraction(float(share)) for share in given[0].attention], given[0].visual
    head = top_p(attention, Fraction(0.4))
    assert 0 < head < kept_count(len(visual), alpha) - 3 and len(set(attention)) > head
    assert list(kept) == literal(attention, visual, alpha, Fraction(0.4))


def test_the_two_stages():
    visual = visual_tokens(4, 2, 4, newline=False)
    attention = torch.ones(32)
    attention[3], attention[20] = 10.0, 12.0
    kept = SpecVLMPruner(0.4)(Signals(visual, attention), 0.8).tolist()  # a budget of 6; 22 of 52 lie on two tokens
    assert kept == [0, 3, 10, 20, 21, 31]
    assert SpecVLMPruner(0.0)(Signals(visual, attention), 0.8).tolist() == [0, 6, 12, 18, 24, 31]  # even spacing alone
    assert SpecVLMPruner(1.0)(Signals(visual, attention), 0.95).tolist() == [3, 20]  # stage I alone would keep all


@pytest.mark.parametrize(("tokens", "alpha"), [(64, 0.9), (392, 0.9), (97, 0.5), (10, 0.95), (33, 0.0)])
def test_the_second_stage_is_the_released_codes(tokens, alpha):
    """``torch.linspace(0, n - 1, k)`` over the tokens that are left, cut to whole numbers."""
    visual = visual_tokens(1, 1, tokens, newline=False)
    wanted = kept_count(tokens, alpha)
    spaced = [int(place + 1e-9) for place in torch.linspace(0, tokens - 1, wanted, dtype=torch.float64).tolist()]
    assert SpecVLMPruner(0.0)(Signals(visual, torch.ones(tokens)), alpha).tolist() == spaced
