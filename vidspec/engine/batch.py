"""Several prompts in one model, continued by the same tokens: one pass a step for all of them.

The prompts may differ in length. Row i of the batch cache holds its own prompt from entry 0 on, then a gap up to the
length of the longest, which no pass ever sees, then the tokens that all rows share; so one index says for all rows
where the next entry goes, and rollback moves it. Each row keeps the rotary positions it would have alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional as F

from vidspec.engine.attention import causal_mask
from vidspec.engine.forward import State
from vidspec.engine.kv_cache import KVCache
from vidspec.models.base import VideoLanguageModel

__all__ = ["BatchEngine", "BatchState", "stack"]


@dataclass
class BatchState:
    """m sequences in one model that differ in their prompts only.

    Attributes:
        cache: keys and values of each layer (m, kv_heads, capacity, d); its length counts gaps too.
        offsets: (m,) what to add to an entry's index, behind the prompts, for its rotary position in each row.
        mask: (m, 1, 1, capacity) additive: -inf in the gaps, else 0.
    """

    cache: KVCache
    offsets: torch.Tensor
    mask: torch.Tensor

    @property
    def length(self) -> int:
        return self.cache.length


@torch.inference_mode()
def stack(states: Sequence[State], room: int) -> BatchState:
    """One state of prompts that were read one by one; their caches are copied.

    Args:
        states: m of them, with nothing but their prompts in them.
        room: further entries the cache must be able to take: max_new_tokens and one window.
    """
    lengths = [state.length for state in states]
    longest = max(lengths)
    layers: list[list[Any]] = [list(state.cache.layers) for state in states]
    cache = KVCache(len(layers[0]), longest + room)
    for depth in range(len(layers[0])):
        # Gaps must hold numbers: a masked entry counts 0 times its value.
        keys, values = (
            torch.cat(
                [
                    F.pad(buffer[:, :, :length], (0, 0, 0, longest - length))
                    for buffer, length in zip(buffers, lengths, strict=True)
                ]
            )
            for buffers in ([row[depth].keys for row in layers], [row[depth].values for row in layers])
        )
        cache.update(keys, values, depth)
    device = states[0].logits.device
    index = torch.arange(cache.capacity, device=device)
    ends = torch.tensor(lengths, device=device)[:, None]
    gap = (index >= ends) & (index < longest)
    mask = torch.zeros(gap.shape, dtype=layers[0][0].keys.dtype, device=device).masked_fill_(gap, float("-inf"))
    following = torch.tensor([state.offset + state.length for state in states], device=device)
    return BatchState(cache, following - longest, mask[:, None, None])


class BatchEngine:
    """Runs a model's language part over a batch; stateless but for the model.

    Args:
        model: an adapter; its ``vocabulary`` slices the logits.
    """

    def __init__(self, model: VideoLanguageModel) -> None:
        self.model = model

    @torch.inference_mode()
    def forward(self, state: BatchState, token_ids: Sequence[int]) -> torch.Tensor:
        """Append the same tokens to all rows.

        Args:
            state: m sequences; the cache grows by len(token_ids) entries.
            token_ids: n tokens.

        Returns:
            (m, n, vocabulary) logits; row by row what each sequence would give alone, but for rounding.
        """
        model, rows, n, length = self.model, len(state.offsets), len(token_ids), state.length
        ids = torch.tensor(list(token_ids), dtype=torch.long, device=model.device).expand(rows, n)
        places = torch.arange(length, length + n, device=model.device)
        positions = places + state.offsets.to(model.device)[:, None]
        mask = state.mask[..., : length + n].to(model.device)
        causal = causal_mask(n, length + n, mask.dtype, mask.device)
        if causal is not None:
            mask = mask + causal
        return model.logits(model.run(model.embed(ids), model.text_positions(positions), state.cache, mask))
