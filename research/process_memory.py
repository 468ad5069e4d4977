"""Peak memory of a process."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass, field
from pathlib import Path

import torch

__all__ = ["PeakMemory", "peak_bytes", "resident"]


def peak_bytes() -> int | None:
    """Return the peak bytes torch allocated on a GPU since the previous call; None without a GPU."""
    if not torch.cuda.is_available():
        return None
    peak = torch.cuda.max_memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    return peak


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
