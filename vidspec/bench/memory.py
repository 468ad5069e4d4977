"""Peak memory of a process, split into weights, KV cache and the rest."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch

__all__ = ["MemoryUse", "PeakMemory", "resident"]


@dataclass(frozen=True)
class MemoryUse:
    """Memory of one process in bytes.

    Attributes:
        workers: ``target``, ``draft``, or both.
        weights, kv: of each model, summed over its tensors.
        peak: the process's peak while the clip was captioned; None if it cannot be read.
        what: ``device`` memory that torch allocated, or ``resident`` memory of the process.
        base: resident memory without any model: the interpreter and its libraries; 0 on a device.
    """

    workers: tuple[str, ...]
    weights: Mapping[str, int]
    kv: Mapping[str, int]
    peak: int | None
    what: str
    base: int = 0

    @property
    def activations(self) -> int | None:
        """The peak less weights, KV and base: activations, frames, and free memory of the allocator.

        Not below 0: weights mapped from a file and never read are not resident.
        """
        if self.peak is None:
            return None
        return max(0, self.peak - sum(self.weights.values()) - sum(self.kv.values()) - self.base)


@dataclass
class PeakMemory:
    """The peak between :meth:`reset` and :meth:`read`: of a CUDA device in this process, otherwise of resident memory.

    Resident memory is read from ``/proc``; there is none outside Linux. If the system does not allow resetting the
    peak, it is the peak since the process started.

    Args:
        device: the device that the process computes on.
        pid: process id; this process if None.
    """

    device: torch.device
    pid: int | None = None
    _folder: Path = field(init=False)

    def __post_init__(self) -> None:
        self._folder = Path("/proc") / str(os.getpid() if self.pid is None else self.pid)

    @property
    def what(self) -> str:
        """Kind of memory measured."""
        return "device" if self.device.type == "cuda" else "resident"

    def reset(self) -> None:
        """Reset the peak."""
        if self.device.type == "cuda":
            if self.pid is None:
                torch.cuda.reset_peak_memory_stats(self.device)
            return
        with contextlib.suppress(OSError):
            (self._folder / "clear_refs").write_text("5")

    def read(self) -> int | None:
        """Return the peak in bytes; None if it cannot be read, as device memory of another process."""
        if self.device.type == "cuda":
            return torch.cuda.max_memory_allocated(self.device) if self.pid is None else None
        return _status(self._folder, "VmHWM")


def resident(pid: int | None = None) -> int | None:
    """Return the current resident bytes of a process, this one if None; None without ``/proc``."""
    return _status(Path("/proc") / str(os.getpid() if pid is None else pid), "VmRSS")


def _status(folder: Path, name: str) -> int | None:
    try:
        lines = (folder / "status").read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    found = [line.split()[1] for line in lines if line.startswith(f"{name}:")]
    return int(found[0]) * 1024 if found else None
