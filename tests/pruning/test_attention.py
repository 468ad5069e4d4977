"""The attention signal and its pruner on trained weights, against the library's own eager attention."""

from types import SimpleNamespace

import pytest
import torch
from transformers import AutoModelForImageTextToText

from tests.pruning.given import best
from vidspec.models import loading
from vidspec.pruning.base import attention_ranks
from vidspec.pruning.pruners.attention import AttentionPruner


@pytest.fixture(scope="module")
def eager(prefill):
    """(layers, heads, L, L) attention weights that the stock model returns for the same prompt."""
    folder = loading.embedded_folder("embedded", "target")
    stock = AutoModelForImageTextToText.from_pretrained(folder, dtype="float32", attn_implementation="eager")
    with torch.inference_mode():
        out = stock(**prefill.inputs, output_attentions=True, use_cache=False)
    return torch.stack(out.attentions)[:, 0]


def literal(weights, rows, visual):
    """SpecVLM Eq. 4-5, one weight at a time: the mean over layers, heads and text rows."""
    layers, heads = weights.shape[:2]
    numbers = weights.double().numpy()
    return torch.tensor(
        [
            sum(numbers[layer, head, row, at] for layer in range(layers) for head in range(heads) for row in rows)
            / (layers * heads * len(rows))
            for at in visual
        ]
    )


def test_ranks_say_what_any_budget_would_keep(prefill):
    """A page shows other budgets by them alone."""
    taps = SimpleNamespace(attention=True, keys="all", attention_scores=prefill.signals.attention, block_scores={})
    ((name, ranks),) = attention_ranks(taps)
    count = len(prefill.prefix.visual)
    assert name == "attention" and (min(ranks), max(ranks), len(ranks)) == (0, 255, count)
    order = prefill.signals.attention.argsort().tolist()
    assert [ranks[token] for token in order] == sorted(ranks) == [255 * at // (count - 1) for at in range(count)]
    taps = SimpleNamespace(attention=False, keys="all", block_scores={3: torch.tensor([0.5, 0.1, 0.2])})
    assert attention_ranks(taps) == (("attention@3", bytes((255, 0, 127))),) and attention_ranks(None) == ()


def test_scores_equal_the_eager_weights(prefill, eager):
    rows, visual = prefill.prefix.text_rows_after_video.tolist(), prefill.prefix.visual.index.tolist()
    assert eager.shape[0] == prefill.depth and len(rows) > 3
    expected = literal(eager, rows, visual)
    torch.testing.assert_close(prefill.signals.attention, expected.float(), rtol=1e-3, atol=1e-7)
    assert expected.max() > 5 * expected.median()  # attention is peaked: tokens taken for each other would be seen


def test_scores_of_each_block_equal_the_eager_weights(prefill, eager):
    rows, visual = prefill.prefix.text_rows_after_video, prefill.prefix.visual.index
    for block, got in prefill.taps.block_scores.items():
        expected = eager[block][:, rows][:, :, visual].mean((0, 1))
        torch.testing.assert_close(got, expected, rtol=1e-3, atol=1e-6)


def test_keeps_the_tokens_the_eager_weights_rate_highest(prefill, eager):
    visual = prefill.prefix.visual
    expected = literal(eager, prefill.prefix.text_rows_after_video.tolist(), visual.index.tolist())
    for alpha in (0.5, 0.9):
        kept = set(AttentionPruner()(prefill.signals, alpha).tolist())
        wanted = set(best(expected, visual, alpha))
        # Where the two rate a pair of tokens equal but for rounding, either may stay.
        margin = {float(expected[i]) for i in kept ^ wanted}
        assert not margin or max(margin) - min(margin) < 1e-7
