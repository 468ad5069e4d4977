"""Which layout a weight gets, by its dtype, size and device and by what it is for; and layers that are laid out so."""

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
from vidspec.engine.quantised import Precision, StoredCodes, has_fast_int8, quantise_weight

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

#: Of weights: codes of so many bits; the dtype they were loaded in (None); or ``auto``, of a draft's: eight bits where
#: that makes passes cheaper.
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
    """The layout of a weight.

    Args:
        numbers: in it.
        dtype: that it was loaded in.
        device: ``cpu``, ``cuda``, ...
        wanted: codes instead of that dtype.
        packed: whether large weights on a CPU are packed, see :func:`~vidspec.engine.matrix.choose_packing`.
        shared: whether another module has the weight too, which then stays as it is.
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
    """Layers' weights side by side in the layout that is theirs; see :func:`choose_layout`.

    Args:
        layers: plain linear layers of one input width, dtype and device; all with a bias or none. Where the layout is
            another than theirs, and the weight not shared, their parameters are emptied. A layer whose weight is
            empty has :class:`~vidspec.engine.quantise_weight.StoredCodes` of a checkpoint as its ``codes``, which stay.
    """
    if (stored := _stored(layers)) is not None:
        return stored
    numbers, weight = sum(layer.weight.numel() for layer in layers), layers[0].weight
    kind = choose_layout(numbers, weight.dtype, weight.device.type, wanted, packed=packed, shared=shared)
    if kind == "plain":
        return PlainMatrix(layers, shared=shared)
    if kind == "packed copy":
        return MatrixWithPackedCopy(layers, shared=shared)
    if kind == "packed":
        return PackedMatrix(layers)
    made = quantise_weight(*join_weights(layers), kind)
    if not shared:
        release_weights(layers)
    return made


def _stored(layers: Sequence[nn.Linear]) -> Matrix | None:
    """The matrix of layers that all keep codes, with as many groups; else they get plain weights."""
    found = [vars(layer).pop("codes", None) for layer in layers]
    codes = [one for one in found if isinstance(one, StoredCodes)]
    if len(codes) == len(layers) and len({(one.packed.dtype, one.scales.shape[1]) for one in codes}) == 1:
        return StoredCodes.joined(codes, join_weights(layers)[1], layers[0].weight.device)
    for layer, one in zip(layers, found, strict=True):
        if one is not None:
            layer.weight.data = one.dense.to(layer.weight)
    return None


class QuantisedLinear(nn.Module):
    """In place of a linear layer of a stock module.

    Args:
        matrix: its weight and bias.
    """

    def __init__(self, matrix: Matrix) -> None:
        super().__init__()
        self.matrix = matrix
        self.out_features, self.in_features = matrix.shape

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """(..., in) to (..., out)."""
        return self.matrix(rows.flatten(0, -2)).view(*rows.shape[:-1], -1)


class _StoredLinear(QuantisedLinear):
    """Of codes that a checkpoint has; a copy of the model for drafting has the same."""


def unquantisable_reason(modules: Iterable[nn.Module]) -> str | None:
    """Why the linear layers of blocks cannot be quantised; None if they can."""
    every = [part for module in modules for part in module.modules()]
    if any("forward" in vars(part) for part in every):
        return "its layers are split over devices"
    free = any(type(part) in (nn.Linear, _StoredLinear) for part in every)
    return None if free else "its linear layers are quantised or adapted"


def quantised_copy(module: nn.Module, precision: Precision) -> nn.Module:
    """A copy of a module with plain linear layers quantised; all else, parameters and buffers, is the module's own."""
    if type(module) is nn.Linear:
        return QuantisedLinear(quantise_weight(*join_weights([module]), precision))
    other = copy.copy(module)
    other._modules = {
        name: None if child is None else quantised_copy(child, precision) for name, child in module._modules.items()
    }
    return other


def quantise_linears(module: nn.Module, precision: Precision | None) -> None:
    """Quantise the plain linear layers inside a module, whose weights are let go of; None those with codes alone."""
    for parent in list(module.modules()):
        for name, child in parent.named_children():
            if "codes" in vars(child):
                setattr(parent, name, _StoredLinear(build_matrix([cast(nn.Linear, child)])))
            elif precision is not None and type(child) is nn.Linear:
                setattr(parent, name, quantised_copy(child, precision))


def quantised_linears(modules: Iterable[nn.Module]) -> int:
    """Bytes of the weights of quantised layers inside modules."""
    every = (part for module in modules for part in module.modules())
    return sum(part.matrix.nbytes for part in every if isinstance(part, QuantisedLinear))
