"""GPUs that cannot be used as wanted, on stand-ins for the driver's tool and torch's answers."""

import pytest
import torch

from vidspec.engine.device import driver_problem, synchroniser
from vidspec.errors import DeviceError
from vidspec.models.loading import placement


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
        placement()
    assert "--device cpu" in (caught.value.hint or "")
    assert placement("cpu").device.type == "cpu"


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
    assert placement("cuda").dtype is dtype and placement().dtype is dtype
    assert placement("cuda", "float32").dtype is torch.float32


def test_the_clock_waits_for_every_device_once(monkeypatch):
    first, second, cpu = torch.device("cuda:0"), torch.device("cuda:1"), torch.device("cpu")
    waited = []
    monkeypatch.setattr(torch.cuda, "synchronize", waited.append)
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
