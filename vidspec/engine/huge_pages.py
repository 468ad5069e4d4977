"""Memory in huge pages for what a pass on a CPU reads: weights, keys and values.

A processor finds pages of 4 KB by a table that it reads too, and does not read ahead across them: passes of few rows
over large weights are a tenth to a third slower than with pages of 2 MB. Linux gives those to memory that asks for them
before its first use, or moves it. (``THP_MEM_ALLOC_ENABLE`` would make all of torch's memory ask; activations then get
new pages for each operation, which takes many times as long as the operation.)
"""

from __future__ import annotations

import ctypes
import math
import mmap
import threading
from collections.abc import Callable, Sequence
from functools import cache

import torch

#: Bytes of a huge page, and of the memory that small tensors share.
_PAGE, _SHARED = 2**21, 2**25
#: Tensors start at multiples of this, as torch's own do.
_ALIGNED = 64
#: Advice of madvise(2) that moves pages at once (Linux 6.1), which Python does not name.
_COLLAPSE = 25


class _Arena(threading.local):
    """The memory of small tensors, one after the other; it is released with the last of them."""

    free: torch.Tensor = torch.empty(0, dtype=torch.uint8)


_arena = _Arena()


def empty_in_huge_pages(shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """Return an uninitialised tensor on the CPU, in huge pages where the system has them."""
    size = math.prod(shape) * dtype.itemsize
    if not size or not hasattr(mmap, "MADV_HUGEPAGE"):
        return torch.empty(tuple(shape), dtype=dtype)
    if size >= _PAGE:
        return _mapped(size).view(dtype).view(tuple(shape))
    if _arena.free.shape[0] < size:
        _arena.free = _mapped(_SHARED)
    taken, _arena.free = _arena.free[:size], _arena.free[-(-size // _ALIGNED) * _ALIGNED :]
    return taken.view(dtype).view(tuple(shape))


def share_new_memory() -> None:
    """Let small tensors that follow share other memory than those before, which is released with these."""
    _arena.free = _Arena.free


def _mapped(size: int) -> torch.Tensor:
    """Return new memory that starts with a huge page; what is never written takes none."""
    try:
        memory = mmap.mmap(-1, size + _PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        memory.madvise(mmap.MADV_HUGEPAGE)
    except OSError:  # no memory: torch says how much; or no huge pages
        return torch.empty(size, dtype=torch.uint8)
    whole = torch.frombuffer(memory, dtype=torch.uint8)
    first = -whole.data_ptr() % _PAGE
    return whole[first : first + size]


def copy_to_huge_pages(weight: torch.Tensor) -> torch.Tensor:
    """Return a contiguous copy of a weight on the CPU; the weight, contiguous, where the system has no huge pages."""
    if not hasattr(mmap, "MADV_HUGEPAGE"):
        return weight.contiguous()
    return empty_in_huge_pages(weight.shape, weight.dtype).copy_(weight)


def move_to_huge_pages(address: int, size: int) -> None:
    """Move memory in use to huge pages where the system can; less than one page stays where it is."""
    if size < _PAGE or (advise := _madvise()) is None:
        return
    first, end = -(-address // mmap.PAGESIZE) * mmap.PAGESIZE, (address + size) // mmap.PAGESIZE * mmap.PAGESIZE
    advise(first, end - first, mmap.MADV_HUGEPAGE)
    advise(first, end - first, _COLLAPSE)


@cache
def _madvise() -> Callable[[int, int, int], int] | None:
    """Return madvise(2); None where there are no huge pages."""
    if not hasattr(mmap, "MADV_HUGEPAGE"):
        return None
    advise = ctypes.CDLL(None).madvise
    advise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    return advise
