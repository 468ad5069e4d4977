"""The processor of the installed library, where there is a torchvision."""

import importlib.util
import os
import subprocess
import sys

import numpy as np
import pytest


def record_now(script, made):
    """Run ``script``, which records a fixture, in a process of its own; return what it wrote to ``made``."""
    beside = os.environ.get("VIDSPEC_TEST_TORCHVISION")
    if not beside and importlib.util.find_spec("torchvision") is None:
        pytest.skip(
            "torchvision is not installed and VIDSPEC_TEST_TORCHVISION names no folder with it; "
            "only the recorded fixture was compared"
        )
    paths = [beside] if beside else []
    paths += [os.environ["PYTHONPATH"]] if "PYTHONPATH" in os.environ else []
    subprocess.run(
        [sys.executable, script, str(made)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        check=True,
        timeout=300,
    )
    return np.load(made)
