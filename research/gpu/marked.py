"""Runner of the tests that need a GPU, quick ones first, with one line each and a time limit."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from research.gpu.results import Results

__all__ = ["FILES", "KERNELS", "SMOKE", "run_tests"]

ROOT = Path(__file__).resolve().parents[2]
#: Those of the kernels run on a CPU too, where Triton's interpreter runs them; so a smoke run leaves them out.
KERNELS = "tests/engine/test_kernel.py"
#: In this order: passes, pixels, and whole clips.
FILES = (
    "tests/gpu/test_replayed.py",
    "tests/gpu/test_pixels.py",
    "tests/gpu/test_nvdec.py",
    "tests/gpu/test_cuda.py",
)


#: The environment variable by which these tests run small on a CPU.
SMOKE = "VIDSPEC_GPU_SMOKE"


class _Recorder:
    """pytest plugin that records each test's result."""

    def __init__(self, results: Results) -> None:
        self._results = results
        self.failed = self.passed = 0

    def pytest_runtest_protocol(self, item: pytest.Item) -> bool | None:
        if self._results.seconds_left > 0:
            return None  # pytest goes on
        left = len(item.session.items) - item.session.items.index(item)
        self._results.leave_out(f"{left} tests from {item.nodeid} on", "no time left")
        item.session.shouldstop = "no time left"
        return True

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when != "call" and report.passed:
            return
        self.failed, self.passed = self.failed + report.failed, self.passed + report.passed
        why: dict[str, object] = {}
        if report.failed:
            why = {"why": report.longreprtext[-2000:]}
        elif report.skipped:
            why = {"why": str(report.longrepr[-1]) if isinstance(report.longrepr, tuple) else ""}
        self._results.add("test", test=report.nodeid, outcome=report.outcome, seconds=report.duration, **why)


def run_tests(results: Results, *, smoke: bool = False) -> bool:
    """Run the tests; return True if some passed and none failed.

    Args:
        results: gets a line for each test.
        smoke: run them on a CPU, as far as they mean something there.
    """
    recorder = _Recorder(results)
    if smoke:
        os.environ[SMOKE] = "1"
    files = [str(ROOT / name) for name in ((KERNELS,) * (not smoke) + FILES)]
    pytest.main(["-q", "-p", "no:cacheprovider", f"--rootdir={ROOT}", *files], plugins=[recorder])
    return recorder.passed > 0 and not recorder.failed
