from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.pruning.given import visual_tokens
from vidspec.models.base import VisualTokens
from vidspec.pruning.base import Signals, kept_count
from vidspec.pruning.pruners.frame import FramePruner


def per_frame(visual, kept):
    free = kept[~visual.required[kept]]
    return torch.bincount(visual.frame[free], minlength=visual.frames).tolist()


def test_whole_frames_at_regular_intervals():
    visual = visual_tokens(12, 2, 2, newline=False)
    assert per_frame(visual, FramePruner()(Signals(visual), 0.75)) == [0, 0, 4, 0, 0, 0, 4, 0, 0, 0, 4, 0]


def test_what_is_left_is_spread_over_one_frame_more():
    visual = visual_tokens(12, 2, 4, newline=False)  # a budget of 19: two frames and three tokens
    kept = FramePruner()(Signals(visual), 0.8)
    assert per_frame(visual, kept) == [0, 0, 8, 0, 0, 0, 8, 0, 0, 0, 3, 0]
    assert kept[-3:].tolist() == [81, 84, 86]


@settings(deadline=None)
@given(st.integers(1, 30), st.integers(1, 4), st.booleans(), st.floats(0, 0.99))
def test_all_frames_but_the_last_are_whole(frames, side, newline, alpha):
    visual = visual_tokens(frames, side, side, newline=newline)
    counts = per_frame(visual, FramePruner()(Signals(visual), alpha))
    seen = [count for count in counts if count]
    wanted = kept_count(len(visual), alpha) - newline
    assert len(seen) == -(-wanted // side**2)
    assert all(count == side**2 for count in seen[:-1]) and sum(seen) == wanted
    places = [number for number, count in enumerate(counts) if count]
    gaps = {after - before for before, after in pairwise(places)}
    assert not gaps or max(gaps) - min(gaps) <= 1


@pytest.mark.parametrize("alpha", [0.0, 0.3, 0.6, 0.9])
def test_frames_of_different_sizes(alpha):
    frame = torch.tensor([0] * 9 + [1] + [2] * 4 + [3] * 2)
    n, place = len(frame), torch.arange(len(frame))
    visual = VisualTokens(place, frame, place * 0, place, torch.zeros(n, dtype=torch.bool), torch.zeros(n, 2))
    kept = FramePruner()(Signals(visual), alpha)
    assert len(kept) == kept_count(n, alpha)
    if alpha == 0.6:  # 6 tokens: frame 2 alone and frames 1 and 3 have too few, frames 0, 2 and 3 begin with enough
        assert kept.tolist() == [0, 2, 3, 5, 6, 8]
