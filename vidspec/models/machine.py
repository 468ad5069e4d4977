"""Facts about this machine that the choice of models depends on. No torch on Linux without a GPU."""

from __future__ import annotations

import os
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

#: Files that exist on Linux with a GPU that torch may support.
GPU_FILES = ("/proc/driver/nvidia", "/dev/nvidiactl", "/dev/dxg", "/dev/kfd")


def model_cache() -> Path:
    """Return the hub's cache folder, which need not exist."""
    home = Path(os.environ.get("HF_HOME") or Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "huggingface")
    return Path(os.environ.get("HF_HUB_CACHE") or home / "hub").expanduser()


def device_memory() -> int | None:
    """Return free bytes of the default device, the first GPU or main memory; None if unknown."""
    from vidspec import memory

    if has_gpu():
        import torch

        from vidspec.engine.device import default_device_type, free_memory

        if (kind := default_device_type()) in ("cuda", "xpu"):
            return free_memory(torch.device(kind, 0))
    return memory.available_memory()


def has_gpu() -> bool:
    """Return True if torch may run models on a GPU; on Linux without one torch is not imported."""
    if sys.platform == "linux" and not (any(Path(one).exists() for one in GPU_FILES) or "+xpu" in _torch_version()):
        return False
    from vidspec.engine.device import default_device_type

    return default_device_type() != "cpu"


def _torch_version() -> str:
    try:
        return version("torch")
    except PackageNotFoundError:
        return ""
