"""Runner of the tests that need a GPU, by value, with one line each and a time limit."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from research.gpu.results import Results, read

ROOT = Path(__file__).resolve().parents[2]
#: Those of the kernels run on a CPU too, where Triton's interpreter runs them; so a smoke run leaves them out.
KERNELS = ("tests/engine/test_kernel.py", "tests/engine/test_block_kernels.py")
#: In this order: passes, products, Markov heads, pixels, towers, and whole clips.
FILES = (
    "tests/gpu/test_replayed.py",
    "tests/gpu/test_few_rows.py",
    "tests/gpu/test_markov.py",
    "tests/gpu/test_pixels.py",
    "tests/gpu/test_towers.py",
    "tests/gpu/test_nvdec.py",
    "tests/gpu/test_cuda.py",
)


#: The environment variable by which these tests run small on a CPU.
SMOKE = "VIDSPEC_GPU_SMOKE"


class _Recorder:
    """pytest plugin that records each test's result."""

    def __init__(self, results: Results) -> None:
        self._results = results
        self._passed_before = {row["test"] for row in read(results.path) if row.get("outcome") == "passed"}
        self.failed = self.passed = 0
        self.interrupted = False

    def pytest_keyboard_interrupt(self, excinfo: pytest.ExceptionInfo[BaseException]) -> None:
        self.interrupted = not isinstance(excinfo.value, pytest.Session.Interrupted)  # which ends a run without time

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Run one test of each function first, in bfloat16 if it can; those that passed in an earlier run last."""
        first: dict[tuple[object, ...], pytest.Item] = {}
        for item in sorted(items, key=lambda item: "bfloat16" not in item.name):
            first.setdefault((item.path, getattr(item, "originalname", item.name)), item)
        first_ids = {item.nodeid for item in first.values()}
        items.sort(key=lambda item: 2 if item.nodeid in self._passed_before else item.nodeid not in first_ids)

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
        why |= dict(report.user_properties)
        self._results.add("test", test=report.nodeid, outcome=report.outcome, seconds=report.duration, **why)


def run_tests(results: Results, *, smoke: bool = False) -> bool:
    """Run the tests; return True if some passed and none failed. Ctrl-C raises KeyboardInterrupt.

    Args:
        results: gets a line for each test.
        smoke: run them on a CPU, as far as they mean something there.
    """
    recorder = _Recorder(results)
    if smoke:
        os.environ[SMOKE] = "1"
    files = [str(ROOT / name) for name in (FILES if smoke else KERNELS + FILES)]
    pytest.main(["-q", "-p", "no:cacheprovider", f"--rootdir={ROOT}", *files], plugins=[recorder])
    if recorder.interrupted:
        raise KeyboardInterrupt
    return recorder.passed > 0 and not recorder.failed
