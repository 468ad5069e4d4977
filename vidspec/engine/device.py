"""What is particular to a device: how to wait for the work that is queued on it, and the memory it has left."""

from __future__ import annotations

from collections.abc import Callable

import torch

from vidspec import memory

__all__ = ["free_memory", "synchroniser"]


def synchroniser(device: torch.device) -> Callable[[], None]:
    """What waits until everything queued on ``device`` is done; on a CPU nothing is ever queued."""
    if device.type == "cuda":
        return lambda: torch.cuda.synchronize(device)
    return torch.mps.synchronize if device.type == "mps" else lambda: None


def free_memory(device: torch.device) -> int | None:
    """Bytes that can still be allocated on ``device``; None where nobody says."""
    return int(torch.cuda.mem_get_info(device)[0]) if device.type == "cuda" else memory.available()
