"""The Triton kernels of a block's elementwise operations, on GPUs that run them."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from functools import cache
from typing import NamedTuple

import torch
from torch.nn import functional as F

from vidspec.engine.rotary import HeadNorms, RotaryTables

#: Lowest compute capability of our kernels.
CAPABILITY = (8, 0)


class BlockKernels(NamedTuple):
    """Kernels in place of several operations of a block, see :mod:`vidspec.engine.kernel_elementwise`."""

    norm: Callable[[torch.Tensor, torch.Tensor, float], torch.Tensor]
    add_norm: Callable[[torch.Tensor, torch.Tensor, torch.Tensor, float], tuple[torch.Tensor, torch.Tensor]]
    rotate: Callable[
        [torch.Tensor, int, RotaryTables, HeadNorms | None, tuple[torch.Tensor, torch.Tensor] | None], None
    ]
    silu_product: Callable[[torch.Tensor], torch.Tensor]


@cache
def load_block_kernels(device: torch.device) -> BlockKernels | None:
    """Return the kernels if a device runs them."""
    if not runs_triton(device):
        return None
    from vidspec.engine.kernel_elementwise import add_norm, norm, rotate, silu_product

    return BlockKernels(norm, add_norm, rotate, silu_product)


def rms_norm(rows: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """Return the root-mean-square norm over the last axis (..., n), times a weight (n,); by our kernel if it runs."""
    in_kernel = rows.device.type == "cuda" and not torch.is_grad_enabled()  # it has no gradient
    kernels = load_block_kernels(rows.device) if in_kernel else None
    if kernels is None:
        return F.rms_norm(rows, weight.shape, weight, eps)
    return kernels.norm(rows.reshape(-1, len(weight)), weight, eps).view(rows.shape)


def runs_triton(device: torch.device) -> bool:
    """Return True if Triton's kernels run on a device: an NVIDIA GPU from 8.0 on, by a trial of one kernel."""
    if device.type != "cuda" or torch.version.hip is not None or torch.cuda.get_device_capability(device) < CAPABILITY:
        return False
    return triton_problem(device) is None


def triton_absence() -> str | None:
    """Return the remedy if Triton is not installed; on Windows, where torch brings none, it is another package."""
    if importlib.util.find_spec("triton") is not None:
        return None
    return f"triton is not installed: pip install {'triton-windows' if sys.platform == 'win32' else 'triton'}"


@cache
def triton_problem(device: torch.device) -> str | None:
    """Return why Triton runs no kernel on a GPU, with the remedy; None if a trial succeeds."""
    if (absence := triton_absence()) is not None:
        return absence
    try:
        from vidspec.engine.kernel_elementwise import silu_product

        silu_product(torch.zeros(1, 32, dtype=torch.float16, device=device))
    except Exception as error:  # whatever Triton, its compiler or its driver raise
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        return f"triton runs no kernel ({reason}): install a C compiler (gcc) and Python's headers (python3-dev)"
    return None
