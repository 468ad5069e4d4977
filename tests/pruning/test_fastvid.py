from itertools import pairwise

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.pruning.given import cos, visual_tokens
from vidspec.pruning.base import Signals, kept_count, token_grid
from vidspec.pruning.pruners.fastvid import FastVIDPruner
from vidspec.pruning.scores import frame_dissimilarity


def literal(visual):
    """One frame's mean at a time."""
    means = [
        torch.stack(
            [visual.features[i].double() for i in range(len(visual)) if visual.frame[i] == f and visual.row[i] >= 0]
        ).mean(0)
        for f in range(visual.frames)
    ]
    return torch.tensor([2.0, *(1 - cos(a, b) for a, b in pairwise(means))])


@given(st.integers(1, 9), st.integers(1, 4), st.integers(0, 99))
def test_scores_equal_a_literal_transcription(frames, side, seed):
    visual = visual_tokens(frames, side, side, newline=False, seed=seed)
    got = frame_dissimilarity(visual.features, token_grid(visual))
    torch.testing.assert_close(got, literal(visual).float(), rtol=0, atol=1e-5)


def test_scores_of_a_real_video(prefill):
    visual = prefill.prefix.visual
    got = frame_dissimilarity(visual.features, token_grid(visual))
    torch.testing.assert_close(got, literal(visual).float(), rtol=0, atol=1e-5)
    kept = FastVIDPruner()(prefill.signals, 0.6)
    assert len(kept) == kept_count(len(visual), 0.6) and len(visual) - 1 in kept.tolist()


@settings(deadline=None)
@given(st.integers(1, 9), st.integers(1, 3), st.booleans(), st.floats(0, 0.99), st.integers(0, 9))
def test_the_frames_that_differ_most(frames, side, newline, alpha, seed):
    visual = visual_tokens(frames, side, side, newline=newline, seed=seed)
    kept = FastVIDPruner()(Signals(visual), alpha)
    placed = visual_tokens(frames, side, side, newline=False, features=visual.features[: frames * side**2])
    scores, left = literal(placed).tolist(), kept_count(len(visual), alpha) - newline
    expected = [0] * frames
    for number in sorted(range(frames), key=lambda f: -scores[f]):
        expected[number] = min(side**2, left)
        left -= expected[number]
    free = kept[~visual.required[kept]]
    assert torch.bincount(visual.frame[free], minlength=frames).tolist() == expected


def test_a_cut_is_found_and_ties_go_to_the_earlier_frame():
    scene = torch.eye(3)[torch.tensor([0, 0, 0, 1, 1, 2])].repeat_interleave(4, 0)
    visual = visual_tokens(6, 2, 2, newline=False, features=scene)
    assert FastVIDPruner()(Signals(visual), 0.5).tolist() == [*range(4), *range(12, 16), *range(20, 24)]
    assert FastVIDPruner()(Signals(visual), 0.66).tolist() == [*range(4), *range(12, 16)]
    assert FastVIDPruner()(Signals(visual), 0.9).tolist() == [1, 3]  # less than a frame: evenly spaced in the first


def test_separators_say_nothing_about_their_frame():
    scene = torch.eye(3)[torch.tensor([0, 0, 0, 1, 1, 1])].repeat_interleave(4, 0)
    loud = torch.cat([scene, torch.tensor([[0.0, 0, 99]])])
    visual = visual_tokens(6, 2, 2, features=loud)
    assert FastVIDPruner()(Signals(visual), 0.64).tolist() == [*range(4), *range(12, 16), 24]
