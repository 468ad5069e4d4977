"""Stand-ins for the Triton kernels where there is no GPU."""

from __future__ import annotations

import torch


def attention(query, keys, values, places, scaling):
    """As ``split_attention``, by one mask over the slab's whole capacity; lengths stay tensors."""
    rows, heads, width = query.shape
    common, _, start, _, bits, _ = places
    entry = torch.arange(keys.shape[1], device=keys.device) - start[:, None]
    own = entry - common[:, None]
    bit = (bits[:, None] >> own.clamp(0, 63)) & 1
    visible = ((entry >= 0) & ((own < 0) | ((own < 64) & (bit == 1))))[:, None]
    every_key, every_value = (held.float().repeat_interleave(heads // len(keys), 0) for held in (keys, values))
    scores = torch.einsum("rhd,hed->rhe", query.float(), every_key) * scaling
    chances = scores.masked_fill(~visible, float("-inf")).softmax(-1)
    # What a row does not see may be NaN, which a chance of 0 does not take away.
    shown = every_value.masked_fill(~visible.any(0)[..., None], 0.0)
    return torch.einsum("rhe,hed->rhd", chances, shown).to(query.dtype).reshape(rows, heads * width)
