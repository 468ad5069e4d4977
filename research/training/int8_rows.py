"""Matrices of small files as int8 with a scale for each row, in the layout of compressed-tensors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

#: ``quantization_config`` of such files.
INT8_ROWS: dict[str, Any] = {
    "quant_method": "compressed-tensors",
    "format": "int-quantized",
    "config_groups": {
        "group_0": {
            "targets": ["Linear"],
            "weights": {"num_bits": 8, "type": "int", "strategy": "channel", "symmetric": True},
        }
    },
    "ignore": ["lm_head"],
}


def int8_rows(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return tensors as stored: matrices as int8 and ``NAME_scale`` (rows, 1), others in float16."""
    stored = dict[str, torch.Tensor]()
    for name, tensor in tensors.items():
        if tensor.dim() == 2:
            scale = (tensor.abs().amax(1, keepdim=True).float() / 127).clamp(min=1e-7).half()
            stored[name] = (tensor / scale.float()).round().clamp(-127, 127).to(torch.int8).contiguous()
            stored[f"{name}_scale"] = scale
        else:
            stored[name] = tensor.half().contiguous()
    return stored
