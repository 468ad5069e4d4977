"""Where these tests run: on an NVIDIA GPU, or in a smoke run (``python -m research.gpu tests --smoke``) on the CPU."""

from __future__ import annotations

import os

import pytest
import torch

from research.gpu.marked import SMOKE as VARIABLE

SMOKE = VARIABLE in os.environ
DEVICE = torch.device("cpu" if SMOKE else "cuda:0")
#: Triton's interpreter knows no bfloat16.
DTYPES = [torch.float32, torch.float16] if SMOKE else [torch.float32, torch.float16, torch.bfloat16]
cuda_only = pytest.mark.skipif(SMOKE, reason="it is about the driver, the streams or the memory of a GPU")
