"""flash-attn's kernel for prompts on a GPU, if the package is installed (the extra ``flash-attn``)."""

from __future__ import annotations

from functools import cache
from importlib.metadata import version
from typing import Protocol

import torch

#: First version that masks fewer queries than keys as here and supports torch 2.6 and later.
_VERSION = (2, 8)


class Varlen(Protocol):
    """The part of ``flash_attn_varlen_func`` in use; a causal mask is aligned with the last query and key."""

    def __call__(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        cu_seqlens_q: torch.Tensor,
        cu_seqlens_k: torch.Tensor,
        max_seqlen_q: int,
        max_seqlen_k: int,
        *,
        softmax_scale: float,
        causal: bool,
        window_size: tuple[int, int],
    ) -> torch.Tensor: ...


@cache
def load_flash_attention() -> Varlen | None:
    """Return the kernel; None if the package is missing, too old, or built for another torch."""
    try:
        if tuple(map(int, version("flash-attn").split(".")[:2])) < _VERSION:
            return None
        from flash_attn import flash_attn_varlen_func
    except (ImportError, OSError, ValueError):
        return None
    return flash_attn_varlen_func  # type: ignore[no-any-return]


def is_supported(query: torch.Tensor) -> bool:
    """Return True if the flash kernels of torch and the package take it: CUDA from 8.0, half precision, d <= 256."""
    half = query.is_cuda and query.dtype is not torch.float32 and query.shape[-1] <= 256
    return half and torch.cuda.get_device_capability(query.device) >= (8, 0)


def causal_attention(
    kernel: Varlen, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scaling: float, size: int | None
) -> torch.Tensor:
    """Return causal attention of the last n entries of a sequence to all of it, or to ``size`` places; copies no keys.

    Args:
        kernel: from :func:`load_flash_attention`.
        query: (n, heads, d).
        key, value: (1, kv_heads, length, d).
        scaling: factor of the scores.
        size: places that a row sees, its own included; None for all.

    Returns:
        (n, heads, d).
    """
    rows, length = len(query), key.shape[2]
    return kernel(
        query,
        key[0].transpose(0, 1),
        value[0].transpose(0, 1),
        torch.arange(0, rows + 1, rows, dtype=torch.int32, device=query.device),
        torch.arange(0, length + 1, length, dtype=torch.int32, device=query.device),
        rows,
        length,
        softmax_scale=scaling,
        causal=True,
        window_size=(-1, -1) if size is None else (size - 1, 0),
    )
