"""Placement of a model: device, dtype and decoder, resolved for this machine."""

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

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True)
class Placement:
    """Device, dtype and decoder of a model.

    Attributes:
        device: device of the whole model; a CUDA device always has an index, so that equal devices compare equal.
        dtype: of weights, KV cache and logits; of the computation if weights are quantised.
        decoder: decoder of the language model, see :func:`~vidspec.engine.decoders.decoder_of`.
        device_map: splits the model by accelerate instead: a strategy (``auto``, ``balanced``, ``balanced_low_0``,
            ``sequential``), or a device per module, including ``cpu`` and ``disk``.
        quantization: ``8bit`` or ``4bit``, by bitsandbytes.
        packed: pack weights, see :func:`~vidspec.engine.layouts.choose_packing`.
        weights: quantise the language model's weights, see :func:`~vidspec.engine.layouts.choose_layout`.
        adapter: hub id or folder of a LoRA that is merged into the model.
        vision: dtype of vision and audio towers; None for ``dtype``.
        fitted: ``dtype`` is provisional, replaced by the one that fits this machine, see :func:`cpu_dtype`.
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
        """True if :func:`fit_placement` changes nothing."""
        split = self.device_map or self.quantization
        half = (self.device.type, self.dtype) == ("cpu", torch.bfloat16) or _overflows(self)
        return not (self.fitted or (half and not split))

    @property
    def keeps_codes(self) -> bool:
        """True if a quantised checkpoint may keep its codes: weights are neither changed nor split over devices."""
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

    The dtype is bfloat16 on a GPU, float16 on one without bfloat16 (compute capability below 8.0, macOS before 14);
    float32 on a CPU, where :func:`~vidspec.models.loading.load_model` adjusts it by :func:`cpu_dtype`.

    Raises:
        DeviceError: the device is missing, or this build of torch cannot use the GPU's driver.
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
            # Without a CUDA context no other device was set, and asking would create one.
            place = torch.device("cuda", torch.cuda.current_device() if torch.cuda.is_initialized() else 0)
    others: dict[str, Callable[[], bool]] = {"mps": torch.backends.mps.is_available, "xpu": torch.xpu.is_available}
    if place.type in others and not others[place.type]():
        raise DeviceError(f"device {device} is not available here", hint="vidspec doctor lists the devices")
    if place.type == "xpu":
        if (place.index or 0) >= torch.xpu.device_count():
            raise DeviceError(f"device {device}: is not there", hint="vidspec doctor lists the devices")
        place = torch.device("xpu", place.index or 0)
    chosen = _DTYPES.get(dtype) or (_half_dtype(place) if place.type in ("cuda", *others) else torch.float32)
    packable = packed if place.type == "cpu" and chosen is not torch.float16 else False
    fitted = place.type == "cpu" and dtype not in _DTYPES
    return Placement(place, chosen, decoder, device_map, quantization, packable, weights, fitted=fitted)


def cpu_dtype(numbers: int, free: int | None, fast: bool) -> torch.dtype:
    """Return the dtype of a model on a CPU: float32 if it fits well, since it resolves the near-ties of bfloat16.

    Args:
        numbers: parameter count.
        free: free main memory in bytes; None if unknown.
        fast: the CPU computes in bfloat16.

    Returns:
        float32 if it takes at most three quarters of the memory, counting packed copies of all weights only on a CPU
        with bfloat16; else bfloat16.
    """
    taken = numbers * 4 * (2 if fast else 1)
    return torch.float32 if free is None or 4 * taken <= 3 * free else torch.bfloat16


def fit_placement(where: Placement, numbers: int, seeing: int = 0) -> Placement:
    """Return ``where`` with the dtypes that fit a model; explicit dtypes stay.

    The vision tower of a bfloat16 model is float32 on an x86 CPU without AMX, where it is faster, if the model then
    takes at most three quarters of the memory; and that of a float16 model on a GPU without bfloat16, since numbers in
    Qwen2.5-VL's last projection exceed float16.

    Args:
        where: device and dtype.
        numbers: parameter count, without weights kept as codes.
        seeing: parameter count of vision and audio towers.
    """
    if not where.settled and _overflows(where):
        return replace(where, vision=torch.float32)
    free = memory.available_memory()
    if where.fitted:
        fast = bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
        where = replace(where, dtype=cpu_dtype(numbers, free, fast), fitted=False)
    if not where.settled and (free is None or 8 * (numbers + seeing) <= 3 * free) and has_slow_half_precision():
        return replace(where, vision=torch.float32)
    return where


def _overflows(where: Placement) -> bool:
    """Return True for float16 on an NVIDIA GPU that has no bfloat16."""
    half = (where.device.type, where.dtype) == ("cuda", torch.float16)
    return half and torch.cuda.get_device_capability(where.device) < (8, 0)


def has_slow_half_precision() -> bool:
    """Return True if this CPU is slower in bfloat16 than in float32 on many rows."""
    return platform.machine().lower() in X86 and not torch.cpu._is_amx_tile_supported()


def _half_dtype(place: torch.device) -> torch.dtype:
    """Return the half-precision dtype of a GPU."""
    has_bfloat16 = place.type == "xpu"
    if place.type == "cuda":
        has_bfloat16 = torch.cuda.get_device_capability(place) >= (8, 0)
    elif place.type == "mps":
        has_bfloat16 = torch.backends.mps.is_macos_or_newer(14, 0)
    return torch.bfloat16 if has_bfloat16 else torch.float16
