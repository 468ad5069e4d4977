"""Grouped-query attention over the KV cache without repeating keys and values, with a place for taps to look.

Registered with ``transformers`` under the name ``vidspec``; the models' own code calls it.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.nn import functional as F
from torch.utils.weak import WeakTensorKeyDictionary
from transformers import AttentionInterface
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, sdpa_mask

from vidspec.engine.taps import Taps

__all__ = ["NAME", "attention", "causal_mask", "tree_mask"]

NAME = "vidspec"

#: Masks repeated for the heads of a group: made by the first layer of a pass, read by the others, gone with the mask.
_repeated: WeakTensorKeyDictionary = WeakTensorKeyDictionary()


def attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    taps: Taps | None = None,
    **_: object,
) -> tuple[torch.Tensor, None]:
    """Attention of n rows to all cached keys.

    Args:
        module: the calling attention module.
        query: (batch, heads, n, d).
        key, value: (batch, kv_heads, length, d); each serves heads / kv_heads query heads.
        attention_mask: (batch, 1, n, length) additive or boolean; None means that rows see all keys if n is 1, and
            causal attention from an empty cache otherwise. A mask must not be changed in place once it was passed.
        scaling: of the scores; 1 / sqrt(d) if None.
        taps: observers, passed through the model's keyword arguments.

    Returns:
        (batch, n, heads, d), and None for the weights.
    """
    batch, heads, rows, width = query.shape
    kv_heads = key.shape[1]
    groups = heads // kv_heads
    scale = width**-0.5 if scaling is None else scaling
    if taps is not None:
        taps.observe(query, key, scale)
    causal = attention_mask is None and rows > 1
    if causal and rows != key.shape[2]:
        raise ValueError(f"{rows} rows over {key.shape[2]} cached keys need a mask")
    if groups == 1:
        out = F.scaled_dot_product_attention(query, key, value, attention_mask, is_causal=causal, scale=scale)
    elif causal and query.is_cuda:
        out = F.scaled_dot_product_attention(query, key, value, is_causal=True, scale=scale, enable_gqa=True)
    elif causal:
        # The CPU kernels repeat keys for grouped queries: call them once for each member of the groups instead.
        grouped = query.view(batch, kv_heads, groups, rows, width)
        out = torch.empty_like(grouped)
        for member in range(groups):
            out[:, :, member] = F.scaled_dot_product_attention(
                grouped[:, :, member], key, value, is_causal=True, scale=scale
            )
        out = out.view(batch, heads, rows, width)
    else:
        # The heads of a group become further rows over the same keys.
        packed = query.reshape(batch, kv_heads, groups * rows, width)
        mask = None if attention_mask is None else _for_groups(attention_mask, groups)
        out = F.scaled_dot_product_attention(packed, key, value, mask, scale=scale)
        out = out.reshape(batch, heads, rows, width)
    return out.transpose(1, 2).contiguous(), None


def _for_groups(mask: torch.Tensor, groups: int) -> torch.Tensor:
    found: torch.Tensor | None = _repeated.get(mask)
    if found is None or found.shape[2] != groups * mask.shape[2]:
        found = _repeated[mask] = mask.repeat(1, 1, groups, 1)
    return found


def causal_mask(rows: int, length: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor | None:
    """Additive mask (1, 1, rows, length) for ``rows`` new tokens at the end of ``length`` keys; None if not needed."""
    if rows == 1 or rows == length:
        return None
    mask = torch.zeros(1, 1, rows, length, dtype=dtype, device=device)
    mask[..., length - rows :] = torch.full((rows, rows), float("-inf"), dtype=dtype, device=device).triu_(1)
    return mask


def tree_mask(
    parents: Sequence[int], base: int, dtype: torch.dtype, device: torch.device, *, first: int = 0
) -> torch.Tensor:
    """Additive mask under which each node of a tree sees the committed entries, its ancestors and itself.

    Args:
        parents: per node of the tree, in cache order, the index of its parent; -1 for those that follow the committed
            entries. Parents come before their children.
        base: committed entries, which come before the nodes in the cache.
        first: the pass is over the nodes from this one on; those before it are in the cache already.

    Returns:
        (1, 1, n - first, base + n) of ``dtype``, for n nodes.
    """
    n = len(parents)
    sees = torch.eye(n, dtype=torch.bool)
    for node, parent in enumerate(parents):
        if not -1 <= parent < node:
            raise ValueError(f"node {node} of a tree cannot follow node {parent}")
        if parent >= 0:
            sees[node] |= sees[parent]
    mask = torch.zeros(1, 1, n - first, base + n, dtype=dtype)
    mask[0, 0, :, base:].masked_fill_(~sees[first:], float("-inf"))
    return mask.to(device)


AttentionInterface.register(NAME, attention)
ALL_MASK_ATTENTION_FUNCTIONS.register(NAME, sdpa_mask)
