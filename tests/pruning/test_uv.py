import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.pruning.given import best, cos, visual_tokens
from tests.tiers import examples
from vidspec.errors import ProfileError
from vidspec.pruning.base import Signals
from vidspec.pruning.pruners.uv import UVPruner
from vidspec.pruning.pruners.uv_attention import UVAttentionPruner
from vidspec.pruning.pruners.uv_similarity import UVSimilarityPruner
from vidspec.pruning.scores import similarity_variation, text_similarity


def literal(states, visual, text):
    """Eq. 2-3, not telescoped: for each token the sum over the text and over all layers 1 ... L."""
    return torch.tensor(
        [
            sum(
                cos(states[layer][i], states[layer][j]) - cos(states[layer - 1][i], states[layer - 1][j])
                for j in text
                for layer in range(1, len(states))
            )
            for i in visual
        ]
    )


@settings(deadline=None, max_examples=examples(30))
@given(st.integers(1, 12), st.integers(1, 5), st.integers(1, 4), st.integers(2, 9), st.integers(0, 99))
def test_variation_equals_the_triple_sum(n, words, layers, hidden, seed):
    rng = torch.Generator().manual_seed(seed)
    states = [torch.randn(3 + n + words, hidden, generator=rng) * 10.0**scale for scale in range(layers + 1)]
    visual, text = torch.arange(3, 3 + n), torch.arange(3 + n, 3 + n + words)
    got = similarity_variation(states[-1], states[0], visual, text)
    assert got.dtype == torch.float32
    expected = literal(states, visual.tolist(), text.tolist())
    torch.testing.assert_close(got, expected.float(), rtol=0, atol=1e-5 * words)


def test_variation_of_a_real_prefill(prefill):
    """On every third token of the video, with all text behind it, over the layers that uv takes."""
    pruner, prefix = UVPruner(depth=prefill.depth), prefill.prefix
    visual, text = prefix.visual.index[::3], prefix.text_rows_after_video
    assert pruner.layer == prefill.depth // 2 and len(text) > 3
    states = [prefill.taps.states[layer] for layer in range(pruner.layer + 1)]
    got = similarity_variation(states[-1], states[0], visual, text)
    expected = literal(states, visual.tolist(), text.tolist())
    assert expected.std() > 1e-2
    torch.testing.assert_close(got, expected.float(), rtol=0, atol=1e-5 * len(text))


def test_keeps_the_largest_variation(prefill):
    pruner, prefix = UVPruner(layer=3, depth=prefill.depth), prefill.prefix
    states, text = prefill.taps.states, prefix.text_rows_after_video
    scores = similarity_variation(states[3], states[0], prefix.visual.index, text)
    for alpha in (0.0, 0.5, 0.9, 0.99):
        assert pruner(prefill.signals, alpha).tolist() == best(scores, prefix.visual, alpha)


def test_half_precision_is_summed_in_float32():
    states = torch.randn(60, 32, generator=torch.Generator().manual_seed(0)).bfloat16()
    got = text_similarity(states, torch.arange(40), torch.arange(40, 60))
    expected = [sum(cos(states[i], states[j]) for j in range(40, 60)) for i in range(40)]
    torch.testing.assert_close(got, torch.tensor(expected).float(), rtol=0, atol=1e-4)


def test_scale_does_not_matter_and_a_zero_vector_is_like_nothing():
    states = torch.randn(9, 4, generator=torch.Generator().manual_seed(1))
    states[2] = 0
    visual, text = torch.arange(6), torch.arange(6, 9)
    got = text_similarity(states, visual, text)
    assert got[2] == 0 and got.isfinite().all()
    torch.testing.assert_close(text_similarity(states * torch.arange(1, 10)[:, None], visual, text), got)


def test_text_before_the_video_does_not_count():
    visual = visual_tokens(2, 2, 2, newline=False)
    shallow, deep = (torch.randn(15, 5, generator=torch.Generator().manual_seed(seed)) for seed in (1, 2))
    text = torch.arange(12, 15)

    def kept():
        return UVPruner(1)(Signals(visual, text=text, hidden={0: shallow, 1: deep}), 0.5).tolist()

    before = kept()
    shallow[:4], deep[:4] = deep[4:8], -7.0
    assert kept() == before


@pytest.mark.parametrize(
    ("layer", "depth", "taken"),
    [
        (None, 80, 20),
        (None, 28, 20),  # the paper's 7B targets
        (None, 24, 20),
        (None, 23, 11),
        (None, 12, 6),
        (None, 1, 1),
        (None, None, 20),
        (3, 12, 3),
        (12, 12, 12),  # what is asked for is not capped
        (20, 21, 20),
        (27, 28, 27),
        (30, None, 30),
    ],
)
def test_the_layer_is_the_papers_where_the_target_has_it(layer, depth, taken):
    assert UVPruner(layer, depth).needs == {"hidden@0", f"hidden@{taken}"}
    assert UVSimilarityPruner(layer, depth).needs == {f"hidden@{taken}"}
    if layer != depth and depth != 1:  # no block has the last layer's states for its input
        assert UVAttentionPruner(layer, depth).needs == {"attention@0", f"attention@{taken}"}


def test_a_layer_that_the_target_does_not_have():
    for pruner, most in ((UVPruner, 12), (UVSimilarityPruner, 12), (UVAttentionPruner, 11)):
        with pytest.raises(ProfileError, match=rf"prune\.layer: 13 is beyond .* 12 blocks \(take at most {most}\)"):
            pruner(13, 12)
    assert UVAttentionPruner(None, 1).needs == {"attention@0"}


def test_a_missing_layer_is_named():
    with pytest.raises(ValueError, match="hidden@20"):
        UVPruner()(Signals(visual_tokens(1, 2, 2), text=torch.tensor([9])), 0.5)
