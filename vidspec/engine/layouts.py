"""The layout of a weight, by its dtype, size, device and use; linear layers in such layouts."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Literal, TypeAlias, cast

import torch
from torch import nn

from vidspec import memory
from vidspec.engine.layout_times import LARGE, Packing, WeightShape, choose_float_layout, second_copy_bytes
from vidspec.engine.matrix import (
    FloatLayout,
    Matrix,
    MatrixWithPackedCopy,
    PlainMatrix,
    Precision,
    float_matrix,
    join_weights,
    release_weights,
)
from vidspec.engine.quantised import has_fast_int8, quantise_weight
from vidspec.engine.stored_codes import StoredCodes

#: Format of weights: codes of so many bits; the dtype they were loaded in (None); or ``auto``, for a draft's weights:
#: eight bits if that makes passes cheaper.
WeightFormat: TypeAlias = Precision | Literal["auto"] | None


def choose_packing(
    shapes: Iterable[WeightShape], dtype: torch.dtype, wanted: bool | Literal["auto"], besides: int = 0
) -> Packing:
    """Return the packed layouts that a model's weights on a CPU may have.

    Args:
        shapes: of its weights.
        dtype: of the weights.
        wanted: False for none; ``"auto"`` for second copies only if they take at most half of the free memory (unknown
            counts as enough).
        besides: bytes that will be taken before.
    """
    if not wanted:
        return "none"
    free = memory.available_memory() if wanted == "auto" else None
    return "copies" if free is None or 2 * second_copy_bytes(shapes, dtype) + besides <= free else "once"


def choose_layout(
    shape: tuple[int, int],
    dtype: torch.dtype,
    device: str,
    wanted: WeightFormat = None,
    *,
    packing: Packing = "none",
    shared: bool = False,
) -> FloatLayout | Precision:
    """Return the layout of a weight.

    Args:
        shape: (out, in) of the weight.
        dtype: dtype it was loaded in.
        device: ``cpu``, ``cuda``, ...
        wanted: codes instead of that dtype.
        packing: packed layouts that are allowed on a CPU, see :func:`choose_packing`.
        shared: True if another module uses the weight too; it then stays as it is.
    """
    if wanted == "auto":
        large = device == "cpu" and shape[0] * shape[1] >= LARGE
        wanted = "int8" if large and dtype is not torch.float16 and has_fast_int8() else None
    if wanted is not None:
        return wanted
    return "plain" if device != "cpu" else choose_float_layout(shape, dtype, packing, shared=shared)


def build_matrix(
    layers: Sequence[nn.Linear], wanted: WeightFormat = None, *, packing: Packing = "none", shared: bool = False
) -> Matrix:
    """Join the weights of layers into one matrix in their layout, see :func:`choose_layout`.

    Args:
        layers: plain linear layers with the same input width, dtype and device; all with a bias or none. Unless the
            weight is shared their parameters become views of the matrix, or are emptied if it holds packed weights or
            codes only. A layer with an empty weight has :class:`~vidspec.engine.stored_codes.StoredCodes` of a
            checkpoint as its ``codes``, which stay.
    """
    if (stored := _stored_matrix(layers)) is not None:
        return stored
    with torch.no_grad():
        weight, bias = join_weights(layers)
        shape = (weight.shape[0], weight.shape[1])
        kind = choose_layout(shape, weight.dtype, weight.device.type, wanted, packing=packing, shared=shared)
        if kind == "int8" or kind == "int4":
            matrix: Matrix = quantise_weight(weight, bias, kind)
        else:
            matrix = float_matrix(weight, bias, kind, shared=shared, joined=len(layers) > 1)
    if isinstance(matrix, PlainMatrix | MatrixWithPackedCopy):
        _view_weights(layers, matrix)
    elif not shared:
        release_weights(layers)
    return matrix


def weight_matrices(
    weights: Sequence[tuple[torch.Tensor, torch.Tensor | None]], packed: bool | Literal["auto"]
) -> list[Matrix]:
    """Return weights (out, in) and biases that belong to no layers as matrices in their layout."""
    shapes = [((weight.shape[0], weight.shape[1]), False) for weight, _ in weights]
    like = weights[0][0]
    packing: Packing = choose_packing(shapes, like.dtype, packed) if like.device.type == "cpu" else "none"
    matrices: list[Matrix] = []
    for (weight, bias), (shape, _) in zip(weights, shapes, strict=True):
        layout = choose_layout(shape, like.dtype, like.device.type, packing=packing)
        matrices.append(float_matrix(weight, bias, cast(FloatLayout, layout)))
    return matrices


def _view_weights(layers: Sequence[nn.Linear], matrix: PlainMatrix | MatrixWithPackedCopy) -> None:
    """Make the layers' parameters views of a matrix, so that nothing is stored twice."""
    start = 0
    for layer in layers:
        end = start + layer.out_features
        layer.weight.data = matrix.weight[start:end]
        if matrix.bias is not None:
            layer.bias.data = matrix.bias[start:end]
        start = end


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


class MatrixLinear(nn.Module):
    """Replaces a linear layer of a stock module.

    Args:
        matrix: its weight and bias.
        layer: the layer, whose parameters, emptied or not, stay.
    """

    def __init__(self, matrix: Matrix, layer: nn.Linear | None = None) -> None:
        super().__init__()
        self.matrix = matrix
        self.out_features, self.in_features = matrix.shape
        if layer is not None:
            self.weight, self.bias = layer.weight, layer.bias

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """Map (..., in) to (..., out)."""
        return self.matrix(rows.flatten(0, -2)).view(*rows.shape[:-1], -1)


class _StoredLinear(MatrixLinear):
    """Linear layer over a checkpoint's codes; a copy of the model for drafting shares them."""


def plain_linears(module: nn.Module, but: Iterable[nn.Module] = ()) -> Iterator[tuple[nn.Module, str, nn.Linear]]:
    """Yield parent, name and layer of the plain linear layers inside a module whose weight nothing else uses.

    Args:
        module: the module.
        but: modules inside it that are left out.
    """
    left_out = {part for one in but for part in one.modules()}
    parts = [part for part in module.modules() if part not in left_out]
    uses = Counter(id(weight) for part in module.modules() for weight in part.parameters(recurse=False))
    for parent in parts:
        for name, child in parent.named_children():
            plain = type(child) is nn.Linear and "forward" not in vars(child) and "codes" not in vars(child)
            if plain and child not in left_out and uses[id(child.weight)] == 1:
                yield parent, name, cast(nn.Linear, child)


def lay_out_linears(module: nn.Module, packing: Packing, but: Iterable[nn.Module] = ()) -> None:
    """Store the weights of :func:`plain_linears` on a CPU in their layout."""
    replaced: dict[nn.Linear, MatrixLinear] = {}
    for parent, name, layer in list(plain_linears(module, but)):
        if layer.weight.device.type != "cpu" or not layer.weight.is_floating_point():
            continue
        if layer not in replaced:
            matrix = build_matrix([layer], packing=packing)
            if type(matrix) is PlainMatrix:  # as fast in the layer itself
                continue
            replaced[layer] = MatrixLinear(matrix, layer)
        setattr(parent, name, replaced[layer])


def lay_out_all(module: nn.Module, packed: bool | Literal["auto"], but: Iterable[nn.Module] = ()) -> None:
    """Store the weights of :func:`plain_linears` on a CPU in the layouts of :func:`choose_packing`."""
    but = list(but)
    layers = [layer for _, _, layer in plain_linears(module, but) if layer.weight.device.type == "cpu"]
    if layers:
        shapes = [((layer.out_features, layer.in_features), False) for layer in layers]
        lay_out_linears(module, choose_packing(shapes, layers[0].weight.dtype, packed), but)


def unquantisable_reason(modules: Iterable[nn.Module]) -> str | None:
    """Return why the linear layers of blocks cannot be quantised; None if they can."""
    parts = [part for module in modules for part in module.modules()]
    if any("forward" in vars(part) for part in parts):
        return "its layers are split over devices"
    free = any(type(part) in (nn.Linear, _StoredLinear) or _is_float(part) for part in parts)
    return None if free else "its linear layers are quantised or adapted"


def _is_float(module: nn.Module) -> bool:
    return isinstance(module, MatrixLinear) and module.matrix.precision is None


def quantised_copy(module: nn.Module, precision: Precision) -> nn.Module:
    """Return a copy of a module with plain linear layers quantised; other parameters and buffers are shared."""
    if type(module) is nn.Linear:
        return MatrixLinear(quantise_weight(*join_weights([module]), precision))
    if isinstance(module, MatrixLinear) and _is_float(module):
        like, matrix = module.weight, module.matrix
        return MatrixLinear(quantise_weight(matrix.dense(like.dtype, like.device), matrix.bias, precision))
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


def describe_layouts(matrices: Iterable[Matrix]) -> str:
    """Return the layouts of matrices with their shapes, such as ``transposed 512x256 768x256, packed 9728x896``."""
    shapes: dict[str, dict[str, None]] = {}
    for matrix in matrices:
        shapes.setdefault(matrix.layout, {})[f"{matrix.shape[0]}x{matrix.shape[1]}"] = None
    return ", ".join(f"{layout} {' '.join(found)}" for layout, found in sorted(shapes.items()))


def stored_bytes(matrices: Iterable[Matrix], *, copies: bool = True) -> int:
    """Return the bytes that matrices hold packed or as codes, in addition to a model's parameters.

    Args:
        matrices: each once.
        copies: False to leave out second copies of a weight.
    """
    return sum(matrix.nbytes for matrix in matrices if copies or not matrix.second)


def matrix_linears(modules: Iterable[nn.Module]) -> list[Matrix]:
    """Return the matrices of layers inside modules, each once."""
    parts = (part for module in modules for part in module.modules())
    return [*dict.fromkeys(part.matrix for part in parts if isinstance(part, MatrixLinear))]
