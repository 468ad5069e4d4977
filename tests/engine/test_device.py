"""GPUs that cannot be used as wanted, on stand-ins for the driver's tool and torch's answers."""

import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch

from vidspec.engine.device import (
    default_device_type,
    describe_processor,
    driver_problem,
    free_memory,
    replay_refusal,
    slab_budget,
    synchroniser,
)
from vidspec.errors import DeviceError
from vidspec.models.placement import resolve_placement


@pytest.fixture
def driver(tmp_path, monkeypatch):
    """A machine with a GPU that torch, built for CUDA, does not find."""
    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\necho 'NVIDIA L4, 470.82'\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    return tool


def test_a_driver_that_torch_cannot_use_is_named(driver):
    problem = driver_problem()
    assert problem is not None and "CUDA 13.0" in problem and "NVIDIA L4 with driver 470.82" in problem
    with pytest.raises(DeviceError, match=r"driver 470\.82") as caught:
        resolve_placement()
    assert "--device cpu" in (caught.value.hint or "")
    assert resolve_placement("cpu").device.type == "cpu"


@pytest.mark.parametrize("change", ["no GPU", "hidden", "built for CPUs", "it works"])
def test_otherwise_nothing_is_wrong(driver, monkeypatch, change):
    if change == "no GPU":
        driver.write_text("#!/bin/sh\nexit 9\n")
    elif change == "hidden":
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    elif change == "built for CPUs":
        monkeypatch.setattr(torch.version, "cuda", None)
    else:
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert driver_problem() is None


@pytest.mark.parametrize(("capability", "dtype"), [((7, 5), torch.float16), ((8, 0), torch.bfloat16)])
def test_the_dtype_of_a_gpu_is_one_that_it_computes(monkeypatch, capability, dtype):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    assert resolve_placement("cuda").dtype is dtype and resolve_placement().dtype is dtype
    assert resolve_placement("cuda", "float32").dtype is torch.float32


def test_the_clock_waits_for_every_device_once(monkeypatch):
    first, second, cpu = torch.device("cuda:0"), torch.device("cuda:1"), torch.device("cpu")
    waited = []
    streams = lambda device: SimpleNamespace(synchronize=lambda: waited.append(device))  # noqa: E731
    monkeypatch.setattr(torch.cuda, "current_stream", streams)
    for devices, expected in (
        ((first,), [first]),
        ((first, second), [first, second]),
        ((first, first), [first]),
        ((cpu, second), [second]),
        ((cpu,), []),
    ):
        synchroniser(*devices)()
        assert waited == expected
        waited.clear()


@pytest.fixture
def machine(monkeypatch):
    """Makes torch see these kinds of devices and no others."""

    def make(*kinds, count=1):
        monkeypatch.setattr(torch.version, "cuda", None)
        monkeypatch.setattr(torch.cuda, "is_available", lambda: "cuda" in kinds)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
        monkeypatch.setattr(torch.xpu, "is_available", lambda: "xpu" in kinds)
        monkeypatch.setattr(torch.xpu, "device_count", lambda: count)
        monkeypatch.setattr(torch.backends.mps, "is_available", lambda: "mps" in kinds)
        monkeypatch.setattr(torch.backends.mps, "is_macos_or_newer", lambda *version: True)

    return make


@pytest.mark.parametrize(
    ("kinds", "chosen", "dtype"),
    [
        (("cuda", "xpu", "mps"), "cuda:0", torch.bfloat16),
        (("xpu", "mps"), "xpu:0", torch.bfloat16),
        (("mps",), "mps", torch.bfloat16),
        ((), "cpu", torch.float32),
    ],
)
def test_auto_takes_the_first_kind_there_is(machine, kinds, chosen, dtype):
    machine(*kinds)
    assert default_device_type() == chosen.partition(":")[0]
    assert (str(resolve_placement().device), resolve_placement().dtype) == (chosen, dtype)
    for kind in kinds:  # what is named wins
        assert resolve_placement(kind).device.type == kind
    assert (resolve_placement("cpu").device.type, resolve_placement("cpu").dtype) == ("cpu", torch.float32)


def test_half_precision_of_apple(machine, monkeypatch):
    machine("mps")
    monkeypatch.setattr(torch.backends.mps, "is_macos_or_newer", lambda major, minor: major < 14)
    assert resolve_placement().dtype is torch.float16 and resolve_placement("mps", "float32").dtype is torch.float32


@pytest.mark.parametrize("name", ["xpu", "xpu:1", "mps"])
def test_devices_that_are_not_there(machine, name):
    machine(*(["xpu"] if name == "xpu:1" else []))
    with pytest.raises(DeviceError, match=f"device {name}") as caught:
        resolve_placement(name)
    assert "\n" not in str(caught.value)


def test_work_and_memory_of_an_xpu(monkeypatch):
    waited = []
    stream = SimpleNamespace(synchronize=lambda: waited.append("xpu"))
    monkeypatch.setattr(torch.xpu, "current_stream", lambda device: stream)
    monkeypatch.setattr(torch.xpu, "mem_get_info", lambda device: (7 << 30, 8 << 30))
    place = torch.device("xpu", 0)
    synchroniser(place, torch.device("cpu"))()
    assert waited == ["xpu"] and free_memory(place) == 7 << 30
    assert slab_budget({place: 4}) == int(0.9 * (7 << 30))


def test_graphs_under_rocm_take_a_trial(monkeypatch):
    """The trial fails on this machine, that has no such GPU; with CUDA there is none."""
    place = torch.device("cuda", 0)
    assert replay_refusal(place) is None
    replay_refusal.cache_clear()
    monkeypatch.setattr(torch.version, "hip", "6.4")
    monkeypatch.setattr(torch.cuda, "device", lambda device: (_ for _ in ()).throw(RuntimeError("no capture\nhere")))
    assert replay_refusal(place) == "ROCm captures no pass here: no capture"
    replay_refusal.cache_clear()


@pytest.mark.full
def test_idle_threads_of_a_caller_are_ended():
    """In a process of its own, which has no others of OpenMP."""
    program = """
import os, time, torch
from vidspec.engine.device import end_idle_threads
torch.set_num_threads(2)
left, right = torch.ones(400, 400), torch.ones(400, 400)
count = lambda: len(os.listdir("/proc/self/task"))
end_idle_threads()
before = count()
(left @ right).sum(), torch.add(left, right)
during = count()
end_idle_threads()
until = time.monotonic() + 60
while count() > before and time.monotonic() < until:  # those that have been told to end take a moment
    time.sleep(0.01)
print(before, during, count(), float((left @ right).sum()))
"""
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    before, during, after, total = map(float, ran.stdout.split())
    assert during > before == after and total == 400.0**3


@pytest.mark.parametrize(
    ("cpuinfo", "cache_size", "expected"),
    [
        (
            "model name\t: AMD EPYC\ncpu family\t: 25\nmodel\t\t: 1\nflags\t\t: fpu avx avx2\nmodel\t\t: 2\n",
            "32768K",
            "AMD EPYC, family 25 model 1, AVX2, 32 MiB of cache",
        ),
        (
            "model name : Intel(R) Xeon(R)\ncpu family : 6\nmodel : 143\nflags : avx2 avx512f\n",
            "",
            "Intel(R) Xeon(R), family 6 model 143, AVX-512",
        ),
        ("model name : BCM2835\n", "", "BCM2835"),
    ],
)
def test_a_processor_is_told_from_others_of_its_brand(cpuinfo, cache_size, expected):
    assert describe_processor(cpuinfo, cache_size) == expected
