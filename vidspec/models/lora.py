"""Merge a LoRA saved by PEFT (``adapter_config.json``, ``adapter_model.safetensors``) into a loaded model."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from pathlib import Path

from torch import nn

from vidspec.errors import ModelError
from vidspec.models.base import StockModel
from vidspec.models.hub import is_local, retries_offline
from vidspec.models.weight_files import StoredTensor, check_plain, stored_tensors, weight_file

#: Module prefixes of earlier versions of ``transformers``, and the current ones.
_MOVED = (
    ("language_model.lm_head", "lm_head"),
    ("language_model.model.", "model.language_model."),
    ("model.layers.", "model.language_model.layers."),
    ("visual.", "model.visual."),
    ("vision_tower.", "model.vision_tower."),
    ("multi_modal_projector.", "model.multi_modal_projector."),
    ("thinker.", ""),
)
_KEY = re.compile(r"^base_model\.model\.(?P<layer>.+)\.(?P<part>lora_A|lora_B)\.weight$")


def merge_lora(adapter: str, name: str, model: StockModel) -> None:
    """Add a LoRA to the weights of the layers that it was trained for.

    Args:
        adapter: its hub id or folder.
        name: name of the model.
        model: a stock model.

    Raises:
        ModelError: it cannot be read, is not a LoRA of linear layers, or was trained for another model.
    """
    config, tensors = _read_adapter(adapter)
    modules = dict(model.named_modules())
    for layer, parts in _group_by_layer(adapter, config, tensors).items():
        linear = next((modules[place] for place in _module_names(layer) if place in modules), None)
        up, down = parts["lora_B"][...].float(), parts["lora_A"][...].float()
        shape = (up.shape[0], down.shape[1])
        if type(linear) is not nn.Linear or linear.weight.shape != shape or not linear.weight.is_floating_point():
            mismatch = "has no such layer" if linear is None else "has another kind or size of layer there"
            raise ModelError(
                f"{adapter}: was trained for another model than {name}: of {layer} {' x '.join(map(str, shape))}, "
                f"and the model {mismatch}",
                hint=f"its base is {config.get('base_model_name_or_path') or 'not named in its config'}",
            )
        weight = linear.weight.data
        change = (up @ down).mul_(_scale(config, layer, len(down))).to(weight.device)
        linear.weight.data = (weight.float() + change).to(weight.dtype)  # the old one may be mapped from a file


@retries_offline
def _read_adapter(adapter: str) -> tuple[dict[str, object], Mapping[str, StoredTensor]]:
    """Read the config and the tensors of an adapter."""
    source = str(Path(adapter).expanduser()) if is_local(adapter) else adapter
    try:
        config = json.loads(weight_file(source, "adapter_config.json").read_text(encoding="utf-8"))
        tensors = stored_tensors(source, whole="adapter_model.safetensors")
        check_plain(adapter, tensors)
    except ModelError:
        raise
    except Exception as error:  # from the hub, or broken JSON or safetensors
        why = " ".join(str(error).split())
        raise ModelError(
            f"{adapter}: is not an adapter that vidspec can read: {why}",
            hint="name a folder with adapter_config.json and adapter_model.safetensors, as PEFT saves a LoRA",
            kind="unreadable",
        ) from error
    return config, tensors


def _group_by_layer(
    adapter: str, config: Mapping[str, object], tensors: Mapping[str, StoredTensor]
) -> dict[str, dict[str, StoredTensor]]:
    """Group both matrices by layer."""
    layers: dict[str, dict[str, StoredTensor]] = {}
    unsupported = [key for key in ("use_dora", "fan_in_fan_out", "lora_bias") if config.get(key)]
    for key, tensor in tensors.items():
        if (match := _KEY.match(key)) is None:
            unsupported.append(key)
        else:
            layers.setdefault(match["layer"], {})[match["part"]] = tensor
    unsupported += [f"{layer}.lora_A alone" for layer, parts in layers.items() if len(parts) < 2]
    if config.get("peft_type") != "LORA" or unsupported or not layers:
        problem = unsupported[0] if unsupported else f"peft_type {config.get('peft_type')}"
        raise ModelError(
            f"{adapter}: is not a LoRA of linear layers alone ({problem})",
            hint="merge it into its base model with peft, and name the result",
            kind="unreadable",
        )
    return layers


def _module_names(layer: str) -> list[str]:
    """Return the names that a layer may have in the model."""
    return [layer, *(new + layer.removeprefix(old) for old, new in _MOVED if layer.startswith(old))]


def _scale(config: Mapping[str, object], layer: str, rank: int) -> float:
    """Return alpha / rank, or alpha / sqrt(rank) in rsLoRA; the first matching ``alpha_pattern`` sets the alpha."""
    patterns = config.get("alpha_pattern") or {}
    assert isinstance(patterns, dict)
    alphas = (alpha for pattern, alpha in patterns.items() if re.match(rf"(?:.*\.)?(?:{pattern})$", layer))
    alpha = next(alphas, config.get("lora_alpha") or rank)
    assert isinstance(alpha, int | float)
    return alpha / (math.sqrt(rank) if config.get("use_rslora") else rank)
