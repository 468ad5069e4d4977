"""KV caches whose layers hold different numbers of entries, or let later layers read a chosen part of theirs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn

import torch

from vidspec.engine.kv_cache import KVCache, _Layer

__all__ = ["ChosenEntries", "LossyCache"]


class ChosenEntries:
    """Which entries of the prompt the later layers read; shared by all of them.

    Args:
        prompt: entries of the prompt; those of the text that follows are always read.

    Attributes:
        rows: (K,) sorted entries of the prompt; None for all.
        version: counts the choices.
    """

    def __init__(self, prompt: int) -> None:
        self.prompt = prompt
        self.rows: torch.Tensor | None = None
        self.version = 0

    def choose(self, rows: torch.Tensor) -> None:
        """From the next update on, layers give back only these."""
        self.rows = rows
        self.version += 1


class _ChosenLayer(_Layer):
    """A layer that keeps everything and packs what is read into buffers of its own, anew with each choice."""

    def __init__(self, capacity: int, chosen: ChosenEntries) -> None:
        super().__init__(capacity)
        self._chosen, self._version = chosen, 0
        self._packed: tuple[torch.Tensor, torch.Tensor] | None = None

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: object, **kwargs: object
    ) -> tuple[torch.Tensor, torch.Tensor]:
        everything = super().update(key_states, value_states, *args, **kwargs)
        rows, prompt = self._chosen.rows, self._chosen.prompt
        if rows is None:
            return everything
        end = len(rows) + self.length - prompt
        if self._packed is None or self._version != self._chosen.version:
            self._version, begin = self._chosen.version, 0
            rows = rows.to(self.keys.device)
            following = torch.arange(prompt, self.length, device=rows.device)
            source = torch.cat([rows, following])
            size = len(rows) + self.capacity - prompt
            shapes = [(*one.shape[:2], size, one.shape[-1]) for one in (self.keys, self.values)]
            self._packed = self.keys.new_empty(shapes[0]), self.values.new_empty(shapes[1])
        else:
            begin = end - key_states.shape[-2]
            source = torch.arange(self.length - key_states.shape[-2], self.length, device=self.keys.device)
        for packed, full in zip(self._packed, (self.keys, self.values), strict=True):
            packed[:, :, begin:end] = full.index_select(2, source)
        return self._packed[0][:, :, :end], self._packed[1][:, :, :end]


class LossyCache(KVCache):
    """The keys and values of one sequence whose layers have read different rows of the prompt.

    Its ``length`` is that of the first layer. Layers are given their room by :meth:`reserve`.

    Args:
        layers: number of decoder layers.
        chosen: what the layers from ``whole`` on read; they read everything if None.
        whole: layers that read everything whatever is chosen.
    """

    def __init__(self, layers: int, chosen: ChosenEntries | None = None, whole: int = 0) -> None:
        super().__init__(layers, 0)
        if chosen is not None:
            self._buffers[whole:] = [_ChosenLayer(0, chosen) for _ in range(whole, layers)]
            self.layers = list(self._buffers)

    def reserve(self, layer: int, capacity: int) -> None:
        """How many entries a layer must be able to take; before its first update."""
        self._buffers[layer].capacity = capacity
        self.capacity = max(self.capacity, capacity)

    @property
    def lengths(self) -> tuple[int, ...]:
        """Entries in use in each layer."""
        return tuple(layer.length for layer in self._buffers)

    def rollback(self, length: int) -> None:
        """Forget, in every layer, as many of the last entries as the first has from ``length`` on.

        Raises:
            ValueError: that is more than a layer has.
        """
        forgotten = self.length - length
        if not 0 <= forgotten <= min(self.lengths):
            raise ValueError(f"cannot roll back a cache of {self.length} entries to {length}")
        for layer in self._buffers:
            layer.length -= forgotten

    def gather(self, start: int, kept: Sequence[int] | torch.Tensor) -> NoReturn:
        """Plain decoding has no paths to keep."""
        raise NotImplementedError("a lossy cache holds no tree")

    def select_heads(self, rows: Sequence[torch.Tensor], capacity: int) -> NoReturn:
        """No drafter reads from this cache."""
        raise NotImplementedError("layers of a lossy cache have different entries")
