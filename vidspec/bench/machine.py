"""Facts about the machine and the libraries, printed with every measurement."""

from __future__ import annotations

import os
import platform

import torch

from vidspec._version import __version__
from vidspec.engine.device import processor


def machine(device: torch.device) -> dict[str, object]:
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
