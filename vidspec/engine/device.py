"""What is particular to a device: how to wait for the work that is queued on it."""

from __future__ import annotations

from collections.abc import Callable

import torch

__all__ = ["synchroniser"]


def synchroniser(device: torch.device) -> Callable[[], None]:
    """What waits until everything queued on ``device`` is done; on a CPU nothing is ever queued."""
    if device.type == "cuda":
        return lambda: torch.cuda.synchronize(device)
    return torch.mps.synchronize if device.type == "mps" else lambda: None
