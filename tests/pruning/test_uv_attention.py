import pytest
import torch

from tests.pruning.given import best, visual_tokens
from vidspec.pruning.base import Signals
from vidspec.pruning.pruners.uv_attention import UVAttentionPruner


def test_keeps_what_gains_most_attention(prefill):
    """Eq. 3 with attention, not telescoped."""
    pruner, visual, blocks = UVAttentionPruner(depth=prefill.depth), prefill.prefix.visual, prefill.taps.block_scores
    last = prefill.depth // 2
    assert pruner.needs == {"attention@0", f"attention@{last}"}
    scores = [
        sum(float(blocks[layer][i].double() - blocks[layer - 1][i].double()) for layer in range(1, last + 1))
        for i in range(len(visual))
    ]
    for alpha in (0.5, 0.9):
        assert pruner(prefill.signals, alpha).tolist() == best(scores, visual, alpha)


def test_blocks_average_to_the_attention_over_all(prefill):
    blocks = prefill.taps.block_scores
    assert sorted(blocks) == list(range(prefill.depth))
    assert len({tuple(scores.tolist()) for scores in blocks.values()}) == prefill.depth
    torch.testing.assert_close(torch.stack(list(blocks.values())).mean(0), prefill.taps.attention_scores)


@pytest.mark.parametrize(
    ("layer", "depth", "taken"), [(None, 80, 20), (None, 28, 20), (None, 12, 6), (3, 12, 3), (11, 12, 11), (None, 1, 0)]
)
def test_the_block_is_the_papers_where_the_target_has_it(layer, depth, taken):
    assert UVAttentionPruner(layer, depth).needs == {"attention@0", f"attention@{taken}"}


def test_a_missing_block_is_named():
    with pytest.raises(ValueError, match="attention@20"):
        UVAttentionPruner()(Signals(visual_tokens(1, 2, 2)), 0.5)
