from types import SimpleNamespace

import pytest
import torch
from transformers.models.qwen2.modeling_qwen2 import eager_attention_forward

from vidspec.engine.attention import attention, causal_mask

CLOSE = {"rtol": 0, "atol": 1e-5}


def case(groups, rows, length, kv_heads=2, width=8, seed=0):
    rng = torch.Generator().manual_seed(seed)
    query = torch.randn(1, kv_heads * groups, rows, width, generator=rng)
    key, value = (torch.randn(1, kv_heads, length, width, generator=rng) for _ in range(2))
    return query, key, value, SimpleNamespace(num_key_value_groups=groups, training=False)


def eager(query, key, value, module, mask, scaling=None):
    scaling = query.shape[-1] ** -0.5 if scaling is None else scaling
    return eager_attention_forward(module, query, key, value, mask, scaling=scaling)[0]


def lower(rows, length):
    """Additive mask of the last ``rows`` of ``length`` tokens, entry by entry."""
    mask = torch.zeros(1, 1, rows, length)
    for row in range(rows):
        for column in range(length):
            if column > length - rows + row:
                mask[0, 0, row, column] = float("-inf")
    return mask


@pytest.mark.parametrize("groups", [1, 2, 4])
@pytest.mark.parametrize("scaling", [None, 0.5])
def test_one_row(groups, scaling):
    *tensors, module = case(groups, 1, 11)
    out, weights = attention(module, *tensors, None, scaling)
    assert weights is None and out.shape == (1, 1, 2 * groups, 8) and out.is_contiguous()
    torch.testing.assert_close(out, eager(*tensors, module, None, scaling), **CLOSE)


@pytest.mark.parametrize("groups", [1, 2, 4])
@pytest.mark.parametrize("scaling", [None, 0.5])
@pytest.mark.parametrize("rows", [2, 5, 17])
def test_whole_prompt_is_causal(groups, scaling, rows):
    *tensors, module = case(groups, rows, rows)
    out, _ = attention(module, *tensors, None, scaling)
    torch.testing.assert_close(out, eager(*tensors, module, lower(rows, rows), scaling), **CLOSE)


@pytest.mark.parametrize("groups", [1, 2, 4])
@pytest.mark.parametrize("rows, length", [(5, 11), (1, 11), (2, 3), (5, 5)])
def test_masked_rows(groups, rows, length):
    *tensors, module = case(groups, rows, length)
    out, _ = attention(module, *tensors, lower(rows, length))
    assert out.shape == (1, rows, 2 * groups, 8)
    torch.testing.assert_close(out, eager(*tensors, module, lower(rows, length)), **CLOSE)


@pytest.mark.parametrize("groups", [1, 2, 4])
def test_any_additive_mask(groups):
    """Every row another mask, with weights other than 0 and -inf: rows of a group must not be mixed up."""
    *tensors, module = case(groups, 6, 13)
    mask = torch.randn(1, 1, 6, 13, generator=torch.Generator().manual_seed(1))
    mask[mask > 0.7] = float("-inf")
    mask[..., 0] = 0
    out, _ = attention(module, *tensors, mask)
    torch.testing.assert_close(out, eager(*tensors, module, mask), **CLOSE)


@pytest.mark.parametrize("groups", [1, 2, 4])
def test_boolean_mask(groups):
    *tensors, module = case(groups, 5, 11)
    seen = lower(5, 11) == 0
    out, _ = attention(module, *tensors, seen)
    torch.testing.assert_close(out, eager(*tensors, module, lower(5, 11)), **CLOSE)


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("rows, length", [(5, 11), (2, 3)])
def test_rows_over_a_cache_need_a_mask(groups, rows, length):
    *tensors, module = case(groups, rows, length)
    with pytest.raises(ValueError, match=f"{rows} rows over {length} cached keys need a mask"):
        attention(module, *tensors, None)


def test_inputs_are_not_changed():
    *tensors, module = case(2, 5, 5)
    before = [tensor.clone() for tensor in tensors]
    attention(module, *tensors, None)
    attention(module, *tensors, lower(5, 5))
    assert all(torch.equal(one, two) for one, two in zip(before, tensors, strict=True))


def test_keys_in_a_larger_buffer():
    """Keys and values come as views of the cache's buffers."""
    query, key, value, module = case(2, 3, 9)
    wide = [torch.full((1, 2, 20, 8), float("nan")) for _ in range(2)]
    wide[0][:, :, :9], wide[1][:, :, :9] = key, value
    out, _ = attention(module, query, wide[0][:, :, :9], wide[1][:, :, :9], lower(3, 9))
    torch.testing.assert_close(out, eager(query, key, value, module, lower(3, 9)), **CLOSE)


@pytest.mark.parametrize("rows, length", [(2, 3), (5, 11), (3, 4)])
def test_causal_mask(rows, length):
    mask = causal_mask(rows, length, torch.float32, torch.device("cpu"))
    assert torch.equal(mask, lower(rows, length))
    half = causal_mask(rows, length, torch.bfloat16, torch.device("cpu"))
    assert half.dtype == torch.bfloat16 and torch.equal(half.float(), mask)


@pytest.mark.parametrize("rows, length", [(1, 1), (1, 9), (4, 4)])
def test_causal_mask_is_not_needed(rows, length):
    assert causal_mask(rows, length, torch.float32, torch.device("cpu")) is None
