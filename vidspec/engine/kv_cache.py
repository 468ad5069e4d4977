"""A preallocated KV cache with rollback by a counter and compaction to an accepted path; all rows are equally long."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from transformers.cache_utils import Cache, CacheLayerMixin

if TYPE_CHECKING:
    from vidspec.models.base import VideoLanguageModel

__all__ = ["KVCache", "kv_bytes"]


class _Layer(CacheLayerMixin):
    """Keys and values of one layer in buffers of fixed capacity; only the first ``length`` entries mean anything."""

    is_sliding = False
    keys: torch.Tensor  # both allocated by the first update
    values: torch.Tensor

    def __init__(self, capacity: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.capacity = capacity
        self.length = 0

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        batch, heads, _, width = key_states.shape
        self.dtype, self.device = key_states.dtype, key_states.device
        self.keys = key_states.new_empty(batch, heads, self.capacity, width)
        self.values = value_states.new_empty(batch, heads, self.capacity, value_states.shape[-1])
        self.is_initialized = True

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: object, **kwargs: object
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        end = self.length + key_states.shape[-2]
        if end > self.capacity:
            raise IndexError(f"KV cache of {self.capacity} entries cannot take {end}")
        self.keys[:, :, self.length : end] = key_states
        self.values[:, :, self.length : end] = value_states
        self.length = end
        return self.keys[:, :, :end], self.values[:, :, :end]

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.length + query_length, 0

    def get_seq_length(self) -> int:
        return self.length

    def get_max_length(self) -> int:
        return self.capacity

    def reset(self) -> None:
        self.length = 0

    def crop(self, tokens_to_remove: int) -> None:
        self.length += tokens_to_remove if tokens_to_remove < 0 else 0


class KVCache(Cache):
    """The keys and values of one sequence in one model.

    Rollback moves a counter: rejected entries stay in the buffer, are never read again and are overwritten by the next
    tokens. Buffers are allocated by the first forward pass, in its dtype and on its device.

    Args:
        layers: number of decoder layers.
        capacity: entries per layer; prompt + max_new_tokens + one window is enough.
    """

    def __init__(self, layers: int, capacity: int) -> None:
        self._buffers = [_Layer(capacity) for _ in range(layers)]
        super().__init__(layers=list(self._buffers))
        self.capacity = capacity

    @property
    def length(self) -> int:
        """Entries in use."""
        return self._buffers[0].length

    def rollback(self, length: int) -> None:
        """Forget every entry from ``length`` on.

        Raises:
            ValueError: ``length`` is negative or beyond what is cached.
        """
        if not 0 <= length <= self.length:
            raise ValueError(f"cannot roll back a cache of {self.length} entries to {length}")
        for layer in self._buffers:
            layer.length = length

    @torch.inference_mode()  # the engine's passes made the buffers in it: elsewhere they may not be changed
    def gather(self, start: int, kept: Sequence[int] | torch.Tensor) -> None:
        """Keep, of the entries from ``start`` on, only those at ``start + kept[i]``, in that order.

        Args:
            start: entries before it stay as they are.
            kept: K increasing offsets from ``start``, each below ``length - start``.

        Raises:
            ValueError: ``start`` or an offset is beyond what is cached.
        """
        offsets = torch.as_tensor(kept, dtype=torch.long)
        if not 0 <= start <= self.length:
            raise ValueError(f"cannot gather from {start} on in a cache of {self.length} entries")
        if len(offsets) and (int(offsets.min()) < 0 or int(offsets.max()) >= self.length - start):
            raise ValueError(f"offsets beyond the {self.length - start} entries from {start} on")
        end = start + len(offsets)
        for layer in self._buffers:
            index = (start + offsets).to(layer.keys.device)
            layer.keys[:, :, start:end] = layer.keys[:, :, index]
            layer.values[:, :, start:end] = layer.values[:, :, index]
            layer.length = end

    @torch.inference_mode()
    def select(self, rows: torch.Tensor, capacity: int) -> KVCache:
        """A new cache with copies of some entries, the same for all layers and heads.

        Args:
            rows: (K,) entries, in the order the new cache has them.
            capacity: of the new cache, at least K.
        """
        return self.select_heads([rows.expand(1, -1)] * len(self._buffers), capacity)

    @torch.inference_mode()
    def select_heads(self, rows: Sequence[torch.Tensor], capacity: int) -> KVCache:
        """A new cache with copies of entries chosen for each head.

        Args:
            rows: per layer (kv_heads, K) entries, or (1, K) for all heads alike; K is the same for all layers.
            capacity: of the new cache, at least K.

        Raises:
            ValueError: an entry is beyond what is cached, or K beyond the capacity.
        """
        chosen = KVCache(len(self._buffers), capacity)
        for old, new, index in zip(self._buffers, chosen._buffers, rows, strict=True):
            if index.shape[-1] > capacity or int(index.max()) >= old.length:
                raise ValueError(f"cannot select {index.shape[-1]} of {old.length} entries into {capacity}")
            at = index.to(old.keys.device)[None, :, :, None]
            keys = old.keys[:, :, : old.length].take_along_dim(at, dim=2)
            values = old.values[:, :, : old.length].take_along_dim(at, dim=2)
            new.update(keys, values)
        return chosen

    def nbytes(self) -> int:
        """Bytes of all buffers."""
        return sum(layer.keys.nbytes + layer.values.nbytes for layer in self._buffers if layer.is_initialized)


def kv_bytes(model: VideoLanguageModel) -> int:
    """Bytes that one entry of the KV cache takes over all layers."""
    config: Any = model.language.config  # type: ignore[attr-defined]
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return 2 * int(model.layers) * int(heads) * int(width) * model.dtype.itemsize
