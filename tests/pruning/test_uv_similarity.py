import torch

from tests.pruning.given import best, cos
from vidspec.pruning.pruners.uv_similarity import UVSimilarityPruner
from vidspec.pruning.scores import text_similarity


def test_keeps_what_is_closest_to_the_text_at_the_layer(prefill):
    pruner, prefix = UVSimilarityPruner(depth=prefill.depth), prefill.prefix
    assert pruner.needs == {f"hidden@{prefill.depth // 2}"}
    states, text = prefill.taps.states[prefill.depth // 2], prefix.text_rows_after_video
    expected = torch.tensor([sum(cos(states[i], states[j]) for j in text) for i in prefix.visual.index])
    got = text_similarity(states, prefix.visual.index, text)
    torch.testing.assert_close(got, expected.float(), rtol=0, atol=1e-5 * len(text))
    for alpha in (0.5, 0.9):
        assert pruner(prefill.signals, alpha).tolist() == best(got, prefix.visual, alpha)


def test_differs_from_another_layer(prefill):
    one, other = (
        UVSimilarityPruner(layer, prefill.depth)(prefill.signals, 0.8).tolist() for layer in (1, prefill.depth)
    )
    assert one != other
