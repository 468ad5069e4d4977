import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.pruning.given import cos, visual_tokens
from vidspec.pruning.base import Signals, kept_count
from vidspec.pruning.pruners.dycoke import DyCokePruner


def literal(visual, alpha):
    """Merge group by group, token by token, until the budget is met; then the first groups' frames again."""
    n, wanted = len(visual), kept_count(len(visual), alpha)
    where = {(int(visual.frame[i]), int(visual.row[i]), int(visual.column[i])): i for i in range(n)}
    kept, frames = set(range(n)), list(range(visual.frames))
    while len(frames) > 1:
        found = []
        for first in range(0, len(frames), 4):
            group = frames[first : first + 4]
            for later, earlier in ((1, 0), (2, 0), (3, 2)):
                if later < len(group):
                    for (f, r, c), i in where.items():
                        if f == group[later] and r >= 0:
                            other = where[group[earlier], r, c]
                            found.append((cos(visual.features[i], visual.features[other]), i))
        for _, i in sorted(found, reverse=True):
            if len(kept) == wanted:
                return sorted(kept)
            kept.remove(i)
        frames = frames[::4]
    left = wanted - int(visual.required.sum())
    rest = [i for i in sorted(kept) if not visual.required[i]]
    spread = [rest[(2 * k + 1) * len(rest) // (2 * left)] for k in range(left)]
    return sorted([i for i in kept if visual.required[i]][:wanted] + spread)


@settings(deadline=None)
@given(st.integers(1, 21), st.integers(1, 3), st.booleans(), st.floats(0, 0.99), st.integers(0, 99))
def test_equals_a_literal_transcription(frames, side, newline, alpha, seed):
    visual = visual_tokens(frames, side, side, newline=newline, seed=seed)
    assert DyCokePruner()(Signals(visual), alpha).tolist() == literal(visual, alpha)


def test_equals_it_on_a_real_video(prefill):
    visual = prefill.prefix.visual
    noise = torch.randn(visual.features.shape, generator=torch.Generator().manual_seed(0))
    features = visual.features + 0.05 * visual.features.std() * noise  # what stands still would be all ties
    visual = visual_tokens(5, int(visual.row.max()) + 1, int(visual.column.max()) + 1, features=features)
    assert torch.equal(visual.frame, prefill.prefix.visual.frame)
    for alpha in (0.3, 0.7, 0.9):
        assert DyCokePruner()(Signals(visual), alpha).tolist() == literal(visual, alpha)


def test_what_moves_stays():
    """One token of four changes in frame 2 of 4; the rest stands still."""
    features = torch.eye(5)[:4].repeat(4, 1)
    features[9] = torch.eye(5)[4]
    visual = visual_tokens(4, 2, 2, newline=False, features=features)
    kept = DyCokePruner()(Signals(visual), 0.62)
    # Frame 2 differs from frame 0 there, and frame 3 from frame 2: both tokens stay, beside the first frame.
    assert kept.tolist() == [0, 1, 2, 3, 9, 13]


def test_of_equally_similar_tokens_the_earlier_stays():
    visual = visual_tokens(4, 1, 2, newline=False, features=torch.eye(2).repeat(4, 1))
    assert DyCokePruner()(Signals(visual), 0.4).tolist() == [0, 1, 2, 3, 4]
