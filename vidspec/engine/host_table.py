"""Host data of a pass in one pinned buffer, copied to the device at once."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import ArrayLike

from vidspec.engine.device import to_device

_WORD = np.dtype(np.int64)


class HostTable:
    """Arrays of any dtype that travel together: added before :meth:`send`, read as tensors of the device after it."""

    def __init__(self) -> None:
        self._arrays: list[np.ndarray] = []
        self._parts: tuple[torch.Tensor, ...] = ()

    @property
    def is_sent(self) -> bool:
        """True if it is on the device."""
        return bool(self._parts)

    def add(self, numbers: ArrayLike, dtype: type[np.generic] = np.int64) -> int:
        """Add an array and return its index."""
        self._arrays.append(np.ascontiguousarray(numbers, dtype))
        return len(self._arrays) - 1

    def send(self, device: torch.device) -> None:
        """Copy all arrays to a device, from memory that the host does not write to again."""
        words = [_as_words(array) for array in self._arrays]
        sent = to_device(torch.from_numpy(np.concatenate(words)), device)
        self._parts = torch.split_with_sizes(sent, list(map(len, words)))

    def host(self, index: int) -> np.ndarray:
        """Return an array on the host."""
        return self._arrays[index]

    def __getitem__(self, index: int) -> torch.Tensor:
        """Return an array on the device."""
        array, part = self._arrays[index], self._parts[index]
        if array.dtype != _WORD:
            part = part.view(torch.from_numpy(array[:0]).dtype)[: array.size]
        return part if array.ndim == 1 else part.view(array.shape)


def _as_words(array: np.ndarray) -> np.ndarray:
    """Return the bytes of an array as whole words."""
    flat = array.reshape(-1)
    if flat.nbytes % _WORD.itemsize:
        flat = np.concatenate([flat, np.zeros(-flat.size % _WORD.itemsize, flat.dtype)])
    return flat.view(_WORD)
