"""Device-specific functions: copies from the host, waiting for queued work, free memory, threads."""

from __future__ import annotations

import ctypes
import os
import platform
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import torch

from vidspec import memory
from vidspec.engine.overlap import run_overlapped
from vidspec.errors import DeviceError

#: Share of free memory for the keys and values of all sequences; a pass needs some too.
_SHARE = 0.9
#: Vectors of x86 processors by flag, the widest first.
_VECTORS = {"avx512f": "AVX-512", "avx2": "AVX2"}
#: Words of errors without a class of their own: torch's allocator of main memory, and CUDA's libraries.
_OUT_OF_MEMORY = ("DefaultCPUAllocator", "STATUS_ALLOC_FAILED", "CUDA error: out of memory")
#: Most bytes that are copied to CUDA from memory that is not pinned.
_SMALL = 2**15
_THREAD = threading.local()


@cache
def processor() -> str:
    """Return the processor's name; see :func:`describe_processor`."""
    cpuinfo = Path("/proc/cpuinfo")
    caches = sorted(Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size"))
    return describe_processor(
        cpuinfo.read_text(encoding="utf-8") if cpuinfo.is_file() else "",
        caches[-1].read_text(encoding="utf-8").strip() if caches else "",
    )


def describe_processor(cpuinfo: str, cache_size: str) -> str:
    """Return a processor's name with family, model, vector extension and last cache, as virtual machines name a brand.

    Args:
        cpuinfo: Linux's ``/proc/cpuinfo``; empty elsewhere.
        cache_size: such as ``32768K``; empty if it is not known.
    """
    facts: dict[str, str] = {}
    for name, _, value in (line.partition(":") for line in cpuinfo.splitlines()):
        facts.setdefault(name.strip(), value.strip())
    parts = [facts.get("model name") or platform.processor() or platform.machine()]
    if "cpu family" in facts:
        parts.append(f"family {facts['cpu family']} model {facts.get('model')}")
    flags = facts.get("flags", "").split()
    parts += [word for flag, word in _VECTORS.items() if flag in flags][:1]
    if cache_size.endswith("K"):
        parts.append(f"{int(cache_size[:-1]) // 1024} MiB of cache")
    return ", ".join(parts)


@cache
def _pause_openmp() -> Callable[[int], int] | None:
    maps = Path("/proc/self/maps")
    loaded = {line.split()[-1] for line in maps.read_text().splitlines()} if maps.is_file() else set[str]()
    for path in loaded:
        if Path(path).name.startswith("libgomp"):
            return getattr(ctypes.CDLL(path), "omp_pause_resource_all", None)
    return None


def end_idle_threads() -> None:
    """End the OpenMP threads that wait for the calling thread's next parallel operation.

    GNU OpenMP lets each thread keep its own. Where the process has more of them than cores, they sleep between any two
    operations, which costs a pass a tenth to a quarter of its time.
    """
    if (pause := _pause_openmp()) is not None:
        pause(1)  # omp_pause_soft: they are made again when needed


def default_device_type() -> str:
    """Return the device type that ``auto`` means: the first of CUDA (ROCm included), XPU and MPS, else the CPU."""
    kinds: dict[str, Callable[[], bool]] = {
        "cuda": torch.cuda.is_available,
        "xpu": torch.xpu.is_available,
        "mps": torch.backends.mps.is_available,
    }
    return next((kind for kind, available in kinds.items() if available()), "cpu")


@cache
def replay_refusal(device: torch.device) -> str | None:
    """Return why passes are not replayed on a ROCm GPU, tested with a small graph; None with CUDA."""
    if torch.version.hip is None:
        return None
    try:
        with torch.cuda.device(device):
            source, graph = torch.zeros(8, device=device), torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                result = source + 1
            source.fill_(2)
            graph.replay()
            torch.cuda.synchronize(device)
            same = bool((result == 3).all())
    except RuntimeError as error:
        return f"ROCm captures no pass here: {str(error).splitlines()[0] if str(error) else type(error).__name__}"
    return None if same else "ROCm replays a captured pass with other results"


class CoreSharing:
    """Reduces torch's cores in the calling thread while a context of this object is open.

    Contexts of several clips may overlap in any order; one thread enters and exits them all.

    Args:
        left: threads to use meanwhile, given the current number.
    """

    def __init__(self, left: Callable[[int], int]) -> None:
        self._left, self._inside, self._before = left, 0, 1

    @contextmanager
    def __call__(self) -> Iterator[None]:
        if not self._inside:
            self._before = torch.get_num_threads()
            torch.set_num_threads(self._left(self._before))
        self._inside += 1
        try:
            yield
        finally:
            self._inside -= 1
            if not self._inside:
                torch.set_num_threads(self._before)


def use_one_core() -> None:
    """Limit torch in this thread to one core; another thread's passes have the others."""
    if not hasattr(_THREAD, "limited"):
        _THREAD.limited = True
        torch.set_num_threads(1)  # of this thread; OpenMP counts by calling thread


def synchroniser(*devices: torch.device) -> Callable[[], None]:
    """Return a function that waits for all work that the calling thread's streams have queued on these devices.

    It does not wait for work that other threads queue on their own streams. A CPU never queues work.
    """
    queues = [device for device in dict.fromkeys(devices) if device.type in ("cuda", "xpu", "mps")]

    def wait() -> None:
        for device in queues:
            if device.type == "cuda":
                torch.cuda.current_stream(device).synchronize()
            elif device.type == "xpu":
                torch.xpu.current_stream(device).synchronize()
            else:
                torch.mps.synchronize()

    return wait


def to_device(host: torch.Tensor, device: torch.device, out: torch.Tensor | None = None) -> torch.Tensor:
    """Copy a tensor of the host to a device; to CUDA without waiting for the copy.

    Large tensors are pinned first; of small ones the driver makes a copy, which takes half as long as pinning.

    Args:
        host: the tensor; nothing may write to it again.
        device: where to.
        out: receives the copy, such as a buffer that captured passes read.
    """
    on_cuda = device.type == "cuda"
    source = host.pin_memory() if on_cuda and host.device.type == "cpu" and host.nbytes > _SMALL else host
    if out is not None:
        return out.copy_(source, non_blocking=on_cuda)
    return source.to(device, non_blocking=on_cuda)


def read_back(tensor: torch.Tensor) -> list[Any]:
    """Return a tensor's numbers, after the work of an open ``overlap`` and a wait for the device."""
    run_overlapped()
    return tensor.tolist()


def free_memory(device: torch.device) -> int | None:
    """Return the bytes that can still be allocated on ``device``; None if unknown."""
    if device.type == "xpu":
        return int(torch.xpu.mem_get_info(device)[0])
    if device.type != "cuda":
        return memory.available_memory()
    held = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)  # cached by torch, not in use
    return int(torch.cuda.mem_get_info(device)[0]) + held


def driver_problem() -> str | None:
    """Return why torch, built for GPUs, uses none of those that the driver's tool lists; None if nothing is wrong."""
    if torch.version.cuda is None or torch.cuda.is_available() or (tool := shutil.which("nvidia-smi")) is None:
        return None
    if os.environ.get("CUDA_VISIBLE_DEVICES") in ("", "-1"):  # hidden on purpose
        return None
    command = [tool, "--query-gpu=name,driver_version", "--format=csv,noheader"]
    try:
        ran = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    if ran.returncode or not ran.stdout.strip():
        return None
    name, _, driver = ran.stdout.splitlines()[0].partition(", ")
    return f"torch {torch.__version__} (CUDA {torch.version.cuda}) cannot use the {name} with driver {driver}"


def slab_budget(layers: Mapping[torch.device, int]) -> int | None:
    """Return the bytes that all layers' keys and values may take, by the free memory of GPUs; None without one.

    Args:
        layers: number of layers on each device.
    """
    depth = sum(layers.values())
    on_gpus = {device: count for device, count in layers.items() if device.type in ("cuda", "xpu")}
    budgets = [(free_memory(device) or 0) * depth // count for device, count in on_gpus.items()]
    return int(_SHARE * min(budgets)) if budgets else None


@contextmanager
def memory_for(what: str, hint: str) -> Iterator[None]:
    """Turn running out of memory into a one-line error.

    Args:
        what: consumer of the memory, such as ``NAME: its fused blocks``.
        hint: remedy for the user.

    Raises:
        DeviceError: out of memory.
    """
    try:
        yield
    except RecursionError:  # a RuntimeError too
        raise
    except (torch.OutOfMemoryError, MemoryError, RuntimeError) as error:
        if type(error) is RuntimeError and not any(words in str(error) for words in _OUT_OF_MEMORY):
            raise
        raise DeviceError(f"{what}: memory does not suffice", hint=hint, kind="memory") from error
