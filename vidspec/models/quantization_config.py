"""Settings of quantised checkpoints: ``quantization_config`` of a ``config.json``, and ModelOpt's own file."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any, TypedDict, cast

from vidspec.errors import ModelError
from vidspec.models.base import StockConfig

#: Settings file of NVIDIA's ModelOpt, whose older checkpoints have no ``quantization_config``.
MODELOPT_FILE = "hf_quant_config.json"


#: Supported formats of compressed-tensors.
_FORMATS = (
    *("pack-quantized", "int-quantized", "float-quantized", "naive-quantized", "mixed-precision", "dense"),
    *("nvfp4-pack-quantized", "mxfp4-pack-quantized"),
)
#: Supported packings of auto-round, and the method whose tensors they use.
PACKINGS = {"auto_round:auto_gptq": "gptq", "auto_round:auto_awq": "awq"}
#: Supported algorithms of ModelOpt: one scale per tensor, per output, or per block of 128 x 128; FP4 in groups.
_ALGORITHMS = ("FP8", "FP8_PER_CHANNEL_PER_TOKEN", "FP8_PB_WO", "NVFP4", "MXFP4", "W4A8_MXFP4_FP8")
#: Supported methods.
_METHODS = ("gptq", "awq", "auto-round", "compressed-tensors", "fp8", "modelopt", "bitsandbytes")


class _WeightArgs(TypedDict, total=False):
    """Quantisation arguments of a group's weights, as in compressed-tensors."""

    num_bits: int
    type: str
    group_size: int | None
    block_structure: list[int] | None
    symmetric: bool
    actorder: str | None


class QuantizationGroup(TypedDict, total=False):
    weights: _WeightArgs | None


class QuantizationConfig(TypedDict, total=False):
    """``quantization_config`` of a ``config.json``; each method uses some of the keys."""

    quant_method: str
    bits: int
    group_size: int
    version: str
    checkpoint_format: str
    format: str
    config_groups: dict[str, QuantizationGroup]
    weight_block_size: list[int] | None
    load_in_4bit: bool
    desc_act: bool
    sym: bool
    packing_format: str
    quant_algo: str


def quantization_config(config: StockConfig) -> QuantizationConfig | None:
    """Return ``quantization_config`` of a model's or its language model's config; None if it is not quantised."""
    for part in (config, getattr(config, "text_config", None)):
        settings = getattr(part, "quantization_config", None)
        if settings is not None:
            return cast(QuantizationConfig, settings if isinstance(settings, dict) else settings.to_dict())
    return None


def modelopt_settings(file: Mapping[str, Any]) -> QuantizationConfig | None:
    """Return the settings in ModelOpt's file; None if it quantised only the KV cache."""
    settings = file.get("quantization")
    if not isinstance(settings, dict) or not settings.get("quant_algo"):
        return None
    return cast(QuantizationConfig, {**settings, "quant_method": "modelopt"})


def without_quantization(config: StockConfig) -> StockConfig:
    """Return a copy of the config without ``quantization_config``."""
    config = copy.deepcopy(config)
    for part in filter(None, (config, getattr(config, "text_config", None))):
        if hasattr(part, "quantization_config"):
            del part.quantization_config
    return config


def check_method(name: str, settings: QuantizationConfig) -> None:
    """Refuse a checkpoint of an unsupported method.

    Raises:
        ModelError: names the method.
    """
    method = description = str(settings.get("quant_method"))
    version, format_ = settings.get("version", "gemm"), settings.get("format", "dense")
    packing = settings.get("packing_format") or "of its own"
    if method == "awq" and version != "gemm":
        description = f"awq in version {version}"
    elif method == "compressed-tensors" and format_ not in _FORMATS:
        description = f"compressed-tensors in format {format_}"
    elif method == "modelopt" and _algorithm(settings) not in _ALGORITHMS:
        description = f"modelopt in {_algorithm(settings)}"
    elif method == "auto-round" and packing not in PACKINGS:
        description = f"auto-round in packing {packing}"
    elif method in _METHODS:
        return
    raise ModelError(
        f"{name}: is quantised by {description}, which is not read",
        hint="take the model it was made from, or one by AWQ, GPTQ, compressed-tensors, bitsandbytes or in FP8",
        kind="unreadable",
    )


def code_format(settings: QuantizationConfig) -> tuple[int, int] | None:
    """Return the bits and the group size (0 for a whole row); None for codes that are not integers or are reordered."""
    method, args = settings.get("quant_method"), _weight_args(settings)
    if method == "modelopt":
        return None
    bits, group = args.get("num_bits", 0), max(args.get("group_size") or 0, 0)
    if method == "bitsandbytes":
        return None if settings.get("load_in_4bit") else (8, 0)
    if method == "fp8" or args.get("type") == "float" or settings.get("desc_act") or args.get("actorder") == "group":
        return None
    even = settings.get("sym", True) and args.get("symmetric", True)
    return None if bits == 8 and not even else (bits, group)


def _weight_args(settings: QuantizationConfig) -> _WeightArgs:
    """Return the weight arguments of the first group."""
    for group in settings.get("config_groups", {}).values():
        return group.get("weights") or {}
    return {"num_bits": settings.get("bits", 0), "group_size": settings.get("group_size")}


def _algorithm(settings: QuantizationConfig) -> str:
    """Return ModelOpt's algorithm, which some versions write in lower case."""
    return str(settings.get("quant_algo")).upper()


def block_shape(settings: QuantizationConfig) -> list[int] | None:
    if _algorithm(settings) == "FP8_PB_WO":
        return [128, 128]
    return settings.get("weight_block_size") or _weight_args(settings).get("block_structure")
