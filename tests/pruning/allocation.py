"""Memory that a computation takes beside its inputs: torch's at once, and that of numpy and Python."""

from __future__ import annotations

import tracemalloc
import weakref

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class Allocations(TorchDispatchMode):
    """Watches what is allocated while it is entered.

    Attributes:
        bytes: held now by storages that were made meanwhile; a view holds nothing, a freed tensor no longer anything.
        peak: the most that was held at once, in bytes.
        largest: the largest single storage.
    """

    def __init__(self) -> None:
        super().__init__()
        self.bytes = self.peak = self.largest = 0
        self._known = weakref.WeakSet()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        given = {tensor.untyped_storage() for tensor in tree_leaves((args, kwargs)) if isinstance(tensor, torch.Tensor)}
        out = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(out):
            if isinstance(tensor, torch.Tensor):
                self._count(tensor.untyped_storage(), given)
        return out

    def _count(self, storage, given):
        if storage in self._known or storage in given:
            return
        self._known.add(storage)
        size = storage.nbytes()
        self.bytes += size
        self.peak, self.largest = max(self.peak, self.bytes), max(self.largest, size)
        weakref.finalize(storage, self._free, size)

    def _free(self, size):
        self.bytes -= size

    def __enter__(self):
        tracemalloc.start()
        return super().__enter__()

    def __exit__(self, *raised):
        super().__exit__(*raised)
        self.peak += tracemalloc.get_traced_memory()[1]  # numpy's arrays, and lists of numbers
        tracemalloc.stop()
