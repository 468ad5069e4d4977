"""What holds for all tests: no time limits on examples (machines differ), and what is done without a GPU."""

from __future__ import annotations

import os
import shutil

import pytest
from hypothesis import settings

settings.register_profile("vidspec", deadline=None)
settings.load_profile("vidspec")

if shutil.which("nvidia-smi") is None:
    os.environ["TRITON_INTERPRET"] = "1"  # read when Triton is imported, by whomever


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    marked = [item for item in items if item.get_closest_marker("gpu")]
    if not marked:
        return
    import torch

    if not torch.cuda.is_available():
        for item in marked:
            item.add_marker(pytest.mark.skip(reason="needs an NVIDIA GPU, and torch finds none"))
