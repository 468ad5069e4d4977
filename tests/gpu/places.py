"""Devices of these tests: an NVIDIA GPU, or in a smoke run (``python -m research.gpu tests --smoke``) on the CPU."""

from __future__ import annotations

import os

import pytest
import torch

from research.gpu.marked import SMOKE as VARIABLE
from vidspec.engine.block_kernels import CAPABILITY

SMOKE = VARIABLE in os.environ
DEVICE = torch.device("cpu" if SMOKE else "cuda:0")
#: Older GPUs have no bfloat16 and replay no passes.
RECENT = torch.cuda.is_available() and torch.cuda.get_device_capability(0) >= CAPABILITY
#: The dtype of large models first. Triton's interpreter knows no bfloat16.
DTYPES = [torch.bfloat16, torch.float16, torch.float32] if RECENT and not SMOKE else [torch.float16, torch.float32]
cuda_only = pytest.mark.skipif(SMOKE, reason="it is about the driver, the streams or the memory of a GPU")
needs_replay = pytest.mark.skipif(not (SMOKE or RECENT), reason="passes are replayed from compute capability 8.0 on")
