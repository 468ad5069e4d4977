"""Attention of the engine against a reference that is written out with one mask over all keys."""

import pytest
import torch

from tests.engine.largest import LargestTensor
from vidspec.engine.attention import AttentionWindow, attend, merged_attention

D = 16


def qkv(rows, length, heads, kv_heads, seed=0, dtype=torch.float32):
    rng = torch.Generator().manual_seed(seed)
    query = torch.randn(rows, heads, D, generator=rng)
    key, value = (torch.randn(1, kv_heads, length, D, generator=rng) for _ in range(2))
    return query.to(dtype), key.to(dtype), value.to(dtype)


def reference(query, key, value, visible, scaling):
    """(rows, heads * d) by the formula; ``visible`` (rows, length)."""
    groups = query.shape[1] // key.shape[1]
    out = []
    for head in range(query.shape[1]):
        k, v = key[0, head // groups].double(), value[0, head // groups].double()
        scores = (query[:, head].double() @ k.T * scaling).masked_fill(~visible, float("-inf"))
        out.append(scores.softmax(-1) @ v)
    return torch.cat(out, dim=-1).float()


def causal(rows, length):
    return torch.ones(rows, length, dtype=torch.bool).tril(length - rows)


def tree(parents, rows, length):
    sees = torch.eye(len(parents), dtype=torch.bool)
    for node, parent in enumerate(parents):
        if parent >= 0:
            sees[node] |= sees[parent]
    visible = torch.ones(rows, length, dtype=torch.bool)
    visible[:, length - len(parents) :] = sees[len(parents) - rows :]
    return sees[len(parents) - rows :], visible


SHAPES = [(1, 1, 1), (1, 40, 2), (1, 1, 4), (7, 7, 2), (5, 40, 2), (5, 40, 4), (90, 300, 2), (90, 90, 1)]


@pytest.mark.parametrize("rows, length, kv_heads", SHAPES)
def test_rows_that_follow_each_other(rows, length, kv_heads):
    query, key, value = qkv(rows, length, 4, kv_heads)
    expected = reference(query, key, value, causal(rows, length), 0.2)
    torch.testing.assert_close(attend(query, key, value, 0.2), expected, rtol=0, atol=2e-6)


PARENTS = [-1, -1, 0, 0, 1, 3]


@pytest.mark.parametrize("rows", [1, 3, 6])
@pytest.mark.parametrize("before", [0, 1, 30])
def test_nodes_of_a_tree(rows, before):
    length = before + len(PARENTS)
    query, key, value = qkv(rows, length, 6, 2)
    sees, visible = tree(PARENTS, rows, length)
    expected = reference(query, key, value, visible, 0.2)
    torch.testing.assert_close(attend(query, key, value, 0.2, sees=sees), expected, rtol=0, atol=2e-6)


@pytest.mark.parametrize("dtype, close", [(torch.float32, 2e-6), (torch.bfloat16, 3e-2)])
@pytest.mark.parametrize("own, kind", [(5, "window"), (80, "chunk"), (6, "tree")])
def test_merging_by_log_sum_exp_equals_one_mask(own, kind, dtype, close):
    rows = 4 if kind == "tree" else own
    query, key, value = qkv(rows, own + 50, 4, 2, dtype=dtype)
    sees, visible = tree(PARENTS, rows, own + 50) if kind == "tree" else (None, causal(rows, own + 50))
    packed = query.view(rows, 2, 2, D).permute(1, 2, 0, 3).reshape(1, 2, 2 * rows, D)
    out = (
        merged_attention(packed, key, value, 0.2, own, sees, rows)
        .view(2, 2, rows, D)
        .permute(2, 0, 1, 3)
        .reshape(rows, -1)
    )
    expected = reference(query, key, value, visible, 0.2)
    torch.testing.assert_close(out.float(), expected, rtol=0, atol=close)
    other = merged_attention(packed, key * 3, value * 2, 0.2, own, sees, rows).view(2, 2, rows, D).permute(2, 0, 1, 3)
    assert (other.reshape(rows, -1).float() - expected).abs().max() > 5 * close  # keys matter


def test_scores_far_apart_do_not_overflow():
    query, key, value = qkv(3, 40, 2, 2)
    key[:, :, :20] *= 400
    packed = query.transpose(0, 1)[None]
    out = merged_attention(packed, key, value, 0.2, 3, None, 3)[0].transpose(0, 1).reshape(3, -1)
    torch.testing.assert_close(out, reference(query, key, value, causal(3, 40), 0.2), rtol=0, atol=1e-4)


@pytest.mark.parametrize("rows, length", [(1, 30), (4, 30), (30, 30), (100, 180)])
@pytest.mark.parametrize("size", [3, 7, 200])
def test_sliding_windows(rows, length, size):
    query, key, value = qkv(rows, length, 4, 2)
    places = torch.arange(length - rows, length)
    visible = causal(rows, length) & (torch.arange(length) > places[:, None] - size)
    got = attend(query, key, value, 0.2, window=AttentionWindow(size, places, places))
    torch.testing.assert_close(got, reference(query, key, value, visible, 0.2), rtol=0, atol=2e-6)


@pytest.mark.parametrize("rows", [2, 6])
def test_a_tree_in_a_sliding_window(rows):
    """Places of nodes are those on their path, not in the cache."""
    length, size = 26, 4
    query, key, value = qkv(rows, length, 4, 2)
    sees, visible = tree(PARENTS, rows, length)
    own = torch.tensor([20, 20, 21, 21, 21, 22])
    at = torch.cat([torch.arange(20), own])
    visible &= own[6 - rows :, None] - at < size
    got = attend(query, key, value, 0.2, sees=sees, window=AttentionWindow(size, own[6 - rows :], own))
    torch.testing.assert_close(got, reference(query, key, value, visible, 0.2), rtol=0, atol=2e-6)


@pytest.mark.parametrize("rows, length", [(2000, 2000), (500, 2000)])
def test_a_prompt_never_makes_n_by_n_numbers(rows, length):
    query, key, value = qkv(rows, length, 4, 2)
    with LargestTensor() as largest:
        attend(query, key, value, 0.2)
    assert largest.numel <= 4 * length * D
