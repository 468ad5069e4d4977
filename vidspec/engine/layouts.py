"""The layout of a weight, by its dtype, size, device and use; linear layers in such layouts."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from typing import Literal, TypeAlias, cast

import torch
from torch import nn

from vidspec.engine.matrix import (
    LARGE,
    Matrix,
    MatrixWithPackedCopy,
    PackedMatrix,
    PlainMatrix,
    join_weights,
    release_weights,
)
from vidspec.engine.quantised import Precision, has_fast_int8, quantise_weight
from vidspec.engine.stored_codes import StoredCodes

__all__ = [
    "QuantisedLinear",
    "WeightFormat",
    "build_matrix",
    "choose_layout",
    "quantise_linears",
    "quantised_copy",
    "quantised_linears",
    "unquantisable_reason",
]

#: Format of weights: codes of so many bits; the dtype they were loaded in (None); or ``auto``, for a draft's weights:
#: eight bits if that makes passes cheaper.
WeightFormat: TypeAlias = Precision | Literal["auto"] | None
Layout = Literal["plain", "packed copy", "packed", "int8", "int4"]


def choose_layout(
    numbers: int,
    dtype: torch.dtype,
    device: str,
    wanted: WeightFormat = None,
    *,
    packed: bool = False,
    shared: bool = False,
) -> Layout:
    """Return the layout of a weight.

    Args:
        numbers: size of the weight.
        dtype: dtype it was loaded in.
        device: ``cpu``, ``cuda``, ...
        wanted: codes instead of that dtype.
        packed: True to pack large weights on a CPU, see :func:`~vidspec.engine.matrix.choose_packing`.
        shared: True if another module uses the weight too; it then stays as it is.
    """
    large = device == "cpu" and numbers >= LARGE
    if wanted == "auto":
        wanted = "int8" if large and dtype is not torch.float16 and has_fast_int8() else None
    if wanted is not None:
        return wanted
    if large and packed and dtype is torch.float32:
        return "packed copy"
    return "packed" if large and packed and dtype is torch.bfloat16 and not shared else "plain"


def build_matrix(
    layers: Sequence[nn.Linear], wanted: WeightFormat = None, *, packed: bool = False, shared: bool = False
) -> Matrix:
    """Join the weights of layers into one matrix in their layout, see :func:`choose_layout`.

    Args:
        layers: plain linear layers with the same input width, dtype and device; all with a bias or none. If the layout
            changes and the weight is not shared, their parameters are emptied. A layer with an empty weight has
            :class:`~vidspec.engine.stored_codes.StoredCodes` of a checkpoint as its ``codes``, which stay.
    """
    if (stored := _stored_matrix(layers)) is not None:
        return stored
    numbers, weight = sum(layer.weight.numel() for layer in layers), layers[0].weight
    kind = choose_layout(numbers, weight.dtype, weight.device.type, wanted, packed=packed, shared=shared)
    if kind == "plain":
        return PlainMatrix(layers, shared=shared)
    if kind == "packed copy":
        return MatrixWithPackedCopy(layers, shared=shared)
    if kind == "packed":
        return PackedMatrix(layers)
    matrix = quantise_weight(*join_weights(layers), kind)
    if not shared:
        release_weights(layers)
    return matrix


def _stored_matrix(layers: Sequence[nn.Linear]) -> Matrix | None:
    """Return the matrix of layers that all hold codes with equally many groups; else give them plain weights."""
    popped = [vars(layer).pop("codes", None) for layer in layers]
    codes = [stored for stored in popped if isinstance(stored, StoredCodes)]
    if len(codes) == len(layers) and len({(stored.packed.dtype, stored.scales.shape[1]) for stored in codes}) == 1:
        return StoredCodes.join(codes, join_weights(layers)[1], layers[0].weight.device)
    for layer, stored in zip(layers, popped, strict=True):
        if stored is not None:
            layer.weight.data = stored.dense.to(layer.weight)
    return None


class QuantisedLinear(nn.Module):
    """Replaces a linear layer of a stock module.

    Args:
        matrix: its weight and bias.
    """

    def __init__(self, matrix: Matrix) -> None:
        super().__init__()
        self.matrix = matrix
        self.out_features, self.in_features = matrix.shape

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """Map (..., in) to (..., out)."""
        return self.matrix(rows.flatten(0, -2)).view(*rows.shape[:-1], -1)


class _StoredLinear(QuantisedLinear):
    """Linear layer over a checkpoint's codes; a copy of the model for drafting shares them."""


def unquantisable_reason(modules: Iterable[nn.Module]) -> str | None:
    """Return why the linear layers of blocks cannot be quantised; None if they can."""
    parts = [part for module in modules for part in module.modules()]
    if any("forward" in vars(part) for part in parts):
        return "its layers are split over devices"
    free = any(type(part) in (nn.Linear, _StoredLinear) for part in parts)
    return None if free else "its linear layers are quantised or adapted"


def quantised_copy(module: nn.Module, precision: Precision) -> nn.Module:
    """Return a copy of a module with plain linear layers quantised; other parameters and buffers are shared."""
    if type(module) is nn.Linear:
        return QuantisedLinear(quantise_weight(*join_weights([module]), precision))
    other = copy.copy(module)
    other._modules = {
        name: None if child is None else quantised_copy(child, precision) for name, child in module._modules.items()
    }
    return other


def quantise_linears(module: nn.Module, precision: Precision | None) -> None:
    """Quantise the plain linear layers inside a module and release their weights; None: only layers with codes."""
    for parent in list(module.modules()):
        for name, child in parent.named_children():
            if "codes" in vars(child):
                setattr(parent, name, _StoredLinear(build_matrix([cast(nn.Linear, child)])))
            elif precision is not None and type(child) is nn.Linear:
                setattr(parent, name, quantised_copy(child, precision))


def quantised_linears(modules: Iterable[nn.Module]) -> int:
    """Return the bytes of the weights of quantised layers inside modules."""
    parts = (part for module in modules for part in module.modules())
    return sum(part.matrix.nbytes for part in parts if isinstance(part, QuantisedLinear))
