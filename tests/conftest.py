"""Settings of all tests: no time limits on examples (machines differ) and fewer of them in ``make test``, threads of
processes that run tests beside each other, Ctrl-C, what is done without a GPU, and draft processes that start at once.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest
import typer.main

from tests import checkpoints, tiers

if TYPE_CHECKING:
    from vidspec.captioner import Captioner
    from vidspec.runs.reader import ClipReader


def pytest_configure(config: pytest.Config) -> None:
    tiers.Tier.quick = "not full" in config.option.markexpr
    with suppress(ImportError):  # the tests for GPUs run where it is not installed
        from hypothesis import HealthCheck, settings

        slow = [HealthCheck.too_slow]  # the machine may be, for a moment
        settings.register_profile(
            "vidspec", deadline=None, max_examples=tiers.examples(100), suppress_health_check=slow
        )
        settings.load_profile("vidspec")


typer.main.get_command = cache(typer.main.get_command)  # half the time of a command that a test runs in its process

if "PYTEST_XDIST_WORKER" in os.environ:  # read when torch is imported, here and in the processes of tests
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # where a test asks for more, the others go on meanwhile

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as a shell does to what it runs in the background
    signal.signal(signal.SIGINT, signal.default_int_handler)

if shutil.which("nvidia-smi") is None:
    os.environ["TRITON_INTERPRET"] = "1"  # read when Triton is imported, by whomever


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if left := set(tiers.take_samples(items)):
        config.hook.pytest_deselected(items=[*left])
        items[:] = [item for item in items if item not in left]
    tiers.sort_long_first(items)
    marked = [item for item in items if item.get_closest_marker("gpu")]
    if not marked or "VIDSPEC_GPU_SMOKE" in os.environ:  # of which those run that mean something on a CPU
        return
    import torch

    if not torch.cuda.is_available():
        for item in marked:
            item.add_marker(pytest.mark.skip(reason="needs an NVIDIA GPU, and torch finds none"))


def pytest_collection_finish() -> None:
    gc.freeze()  # what is imported by now stays: tests that collect garbage need not look through it


@pytest.fixture(scope="session", autouse=True)
def shared_checkpoints(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Small checkpoints lie in one folder for all processes of pytest-xdist."""
    root = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        root = root.parent
    checkpoints.Cache.folder = root / "checkpoints"
    checkpoints.Cache.folder.mkdir(exist_ok=True)


@pytest.fixture(scope="module")
def small_captioner() -> Iterator[Captioner]:
    """A captioner of a random pair: vanilla-sd, four frames and 24 tokens of a clip."""
    from vidspec.captioner import Captioner

    settings = {
        "models.target": str(checkpoints.checkpoint("readable")),
        "models.draft": str(checkpoints.checkpoint("readable", noise=0.05)),
        "models.device": "cpu",
        "models.dtype": "float32",
        "video.frames": 4,
        "generate.max_new_tokens": 24,
    }
    with Captioner.from_profile("vanilla-sd", overrides=settings) as captioner:
        yield captioner


@pytest.fixture
def fake_models(monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands in this process, and their replicas, caption by a captioner without models."""
    from tests.fake_captioner import FakeCaptioner
    from vidspec.runs.executors.base import CaptionerFactory

    module = ModuleType("vidspec.captioner")
    module.Captioner = FakeCaptioner  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "vidspec.captioner", module)
    monkeypatch.setattr(CaptionerFactory.__init__, "__defaults__", ("tests.fake_captioner:FakeCaptioner",))


@pytest.fixture
def reader() -> Iterator[ClipReader]:
    from vidspec.runs.reader import ClipReader

    reader = ClipReader()
    yield reader
    reader.close()


@pytest.fixture(scope="module")
def clips_read_once() -> Iterator[None]:
    """The tests of a file share the frames of clips, which are checked for each captioner."""
    from vidspec import video

    frames = cache(video.read)

    def read(path: str, *, check: Any = None, **options: Any) -> video.Clip:
        clip = frames(path, **options)
        if check is not None:
            check(*clip.frames.shape[:3])
        return clip

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(video, "read", read)
        yield


#: Imports on which a draft process spends its first seconds.
IMPORTED = (
    "vidspec.decoding.workers.draft",
    "vidspec.models.families.llava_onevision",
    "transformers.models.llava_onevision.modeling_llava_onevision",
    "transformers.models.qwen2_5_vl.modeling_qwen2_5_vl",
    "transformers.models.qwen3_vl.modeling_qwen3_vl",
)


@pytest.fixture(scope="module")
def forked_drafts() -> Iterator[None]:
    """Draft processes are forks of one that has imported everything; in all else they are what spawned ones are."""
    from vidspec import process

    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(IMPORTED))

    def start(function: Any, *args: object, name: str, threads: int | None = None) -> process.Child:
        mine, theirs = context.Pipe()
        forked = context.Process(target=run_forked, args=(theirs, function, args, threads), name=name, daemon=True)
        forked.start()
        theirs.close()
        return process.Child(ForkedDraft(forked), process.Channel(mine))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("vidspec.decoding.workers.process.spawn", start)
        yield


def run_forked(connection: Any, *work: Any) -> None:
    from vidspec import process

    os.setsid()
    os._exit(process._run(process.Channel(connection), work))


class ForkedDraft:
    """A process of the fork server with the methods of ``subprocess.Popen``."""

    def __init__(self, process: Any) -> None:
        self.process, self.pid, self.kill = process, process.pid, process.kill

    def poll(self) -> int | None:
        return self.process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        self.process.join(timeout)
        if self.process.exitcode is None:
            raise subprocess.TimeoutExpired("fork", timeout or 0.0)
        return self.process.exitcode
