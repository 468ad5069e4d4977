"""Where and how a model runs: device, dtype and decoder, chosen by what this machine has."""

from __future__ import annotations

import platform
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Literal

import torch

from vidspec import memory
from vidspec.engine.device import default_device_type, driver_problem
from vidspec.engine.layouts import WeightFormat
from vidspec.engine.matrix import X86
from vidspec.errors import DeviceError

__all__ = ["Placement", "cpu_dtype", "fit_placement", "resolve_placement"]

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True)
class Placement:
    """Where and how a model runs.

    Attributes:
        device: of the whole model; of one of CUDA with its number, so that two names of one device are equal.
        dtype: of weights, KV cache and logits; where weights are quantised, of what is computed with them.
        decoder: what runs the language model's blocks, see :func:`~vidspec.engine.decoders.decoder_of`.
        device_map: how accelerate splits the model instead: a strategy (``auto``, ``balanced``, ``balanced_low_0``,
            ``sequential``), or the device of each module, ``cpu`` and ``disk`` among them.
        quantization: ``8bit`` or ``4bit``, by bitsandbytes.
        packed: whether large weights are packed, see :func:`~vidspec.engine.matrix.choose_packing`.
        weights: codes in the place of the language model's weights, see :func:`~vidspec.engine.layouts.choose_layout`.
        adapter: hub id or folder of a LoRA that is merged into the model.
        vision: dtype of what sees and hears; None if it is ``dtype``, too.
        fitted: whether ``dtype`` gives way to the one that fits this machine, see :func:`cpu_dtype`.
    """

    device: torch.device
    dtype: torch.dtype
    decoder: Literal["auto", "fused", "stock"] = "auto"
    device_map: str | Mapping[str, int | str] | None = None
    quantization: str | None = None
    packed: bool | Literal["auto"] = False
    weights: WeightFormat = None
    adapter: str | None = None
    vision: torch.dtype | None = None
    fitted: bool = False

    @property
    def settled(self) -> bool:
        """Whether :func:`fit_placement` changes nothing."""
        split = self.device_map or self.quantization
        half = (self.device.type, self.dtype) == ("cpu", torch.bfloat16) and not split
        return not (self.fitted or half)

    @property
    def keeps_codes(self) -> bool:
        """Whether a quantised checkpoint's codes may stay: its weights are neither changed nor split over devices."""
        return self.weights in (None, "auto") and not (self.device_map or self.quantization or self.adapter)


def resolve_placement(
    device: str = "auto",
    dtype: str = "auto",
    decoder: Literal["auto", "fused", "stock"] = "auto",
    device_map: str | Mapping[str, int | str] | None = None,
    quantization: str | None = None,
    packed: bool | Literal["auto"] = "auto",
    weights: WeightFormat = None,
) -> Placement:
    """Resolve ``auto`` on this machine, see :func:`~vidspec.engine.device.default_device_type`.

    The dtype is bfloat16 on a GPU, float16 on one that computes no bfloat16 (compute capability below 8.0, macOS before
    14); on a CPU float32, which :func:`~vidspec.models.loading.load_model` changes by :func:`cpu_dtype`.

    Raises:
        DeviceError: a device that is not there, or a GPU whose driver this build of torch cannot use.
    """
    if device == "auto":
        if (problem := driver_problem()) is not None:
            raise DeviceError(problem, hint="update the driver, install a torch built for it, or --device cpu")
        device = default_device_type()
    try:
        place = torch.device(device)
    except RuntimeError as error:
        raise DeviceError(
            f"device {device}: no such kind of device", hint="use auto, cpu, cuda, cuda:1, xpu, mps, ..."
        ) from error
    if place.type == "cuda":
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if (place.index or 0) >= count:
            raise DeviceError(
                f"device {device}: this machine has {count} CUDA devices", hint="vidspec doctor lists the devices"
            )
        if place.index is None:
            # Without a context nobody has chosen another, and asking would make one.
            place = torch.device("cuda", torch.cuda.current_device() if torch.cuda.is_initialized() else 0)
    others: dict[str, Callable[[], bool]] = {"mps": torch.backends.mps.is_available, "xpu": torch.xpu.is_available}
    if place.type in others and not others[place.type]():
        raise DeviceError(f"device {device} is not available here", hint="vidspec doctor lists the devices")
    if place.type == "xpu":
        if (place.index or 0) >= torch.xpu.device_count():
            raise DeviceError(f"device {device}: is not there", hint="vidspec doctor lists the devices")
        place = torch.device("xpu", place.index or 0)
    chosen = _DTYPES.get(dtype) or (_half(place) if place.type in ("cuda", *others) else torch.float32)
    kept = packed if place.type == "cpu" and chosen is not torch.float16 else False
    fitted = place.type == "cpu" and dtype not in _DTYPES
    return Placement(place, chosen, decoder, device_map, quantization, kept, weights, fitted=fitted)


def cpu_dtype(numbers: int, free: int | None, fast: bool) -> torch.dtype:
    """The dtype of a model on a CPU: float32, of which a bfloat16 model's near-ties are none, where it fits well.

    Args:
        numbers: of its parameters.
        free: bytes of main memory; None if they cannot be told.
        fast: whether the CPU computes in bfloat16.

    Returns:
        float32 if it takes, with packed copies of all weights, no more than three quarters of the memory, or on a CPU
        without bfloat16 without the copies; else bfloat16.
    """
    taken = numbers * 4 * (2 if fast else 1)
    return torch.float32 if free is None or 4 * taken <= 3 * free else torch.bfloat16


def fit_placement(where: Placement, numbers: int, seeing: int = 0) -> Placement:
    """``where`` with the dtypes that fit a model, unless they were told.

    A bfloat16 model's vision tower is float32 on an x86 CPU without AMX, where it is faster so, if the model takes no
    more than three quarters of the memory with it.

    Args:
        where: device and dtype.
        numbers: of the model's weights, without those that stay codes.
        seeing: those of what sees and hears.
    """
    free = memory.available_memory()
    if where.fitted:
        fast = bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
        where = replace(where, dtype=cpu_dtype(numbers, free, fast), fitted=False)
    if not where.settled and (free is None or 8 * (numbers + seeing) <= 3 * free) and has_slow_half_precision():
        return replace(where, vision=torch.float32)
    return where


def has_slow_half_precision() -> bool:
    """Whether this CPU is slower in bfloat16 than in float32 where it computes with many rows."""
    return platform.machine().lower() in X86 and not torch.cpu._is_amx_tile_supported()


def _half(place: torch.device) -> torch.dtype:
    """The half precision that a GPU computes."""
    whole = place.type == "xpu"
    if place.type == "cuda":
        whole = torch.cuda.get_device_capability(place) >= (8, 0)
    elif place.type == "mps":
        whole = torch.backends.mps.is_macos_or_newer(14, 0)
    return torch.bfloat16 if whole else torch.float16
