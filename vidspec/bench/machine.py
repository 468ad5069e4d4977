"""Facts about the machine and the libraries, printed with every measurement."""

from __future__ import annotations

import os
import platform
from pathlib import Path

import torch

from vidspec._version import __version__

__all__ = ["machine", "processor"]


def machine(device: torch.device) -> dict[str, object]:
    """Return facts about the machine and the libraries."""
    import transformers

    return {
        "vidspec": __version__,
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "python": platform.python_version(),
        "processor": processor(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else str(device),
    }


def processor() -> str:
    """Return the processor's name."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text(encoding="utf-8").splitlines() if cpuinfo.is_file() else []
    names = (line.partition(":")[2].strip() for line in lines if "model name" in line)
    return next(names, platform.processor() or platform.machine())
