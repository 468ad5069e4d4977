"""The weight of one or several linear layers as one matrix, in one of the layouts that products read.

Which layout is the fastest differs between CPUs; :mod:`vidspec.engine.layout_times` measures it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Literal, TypeAlias

import torch
from torch import nn
from torch.nn import functional as F

from vidspec.engine.huge_pages import copy_to_huge_pages, empty_in_huge_pages, move_to_huge_pages

#: Inputs that a kernel of quantised weights reads at a time; the number of inputs is a multiple.
STEP = 128
#: Precision of quantised weights.
Precision = Literal["int8", "int4"]
#: Layout of a weight that is not quantised: (out, in); the same, with the outputs of up to :data:`FEW` rows split;
#: stored as (in, out); packed by oneDNN; or one of the others for a single row and a packed copy for more, or split for
#: few rows and a packed copy for more.
FloatLayout: TypeAlias = Literal[
    "plain", "split", "transposed", "packed", "plain+packed", "split1+packed", "split+packed", "transposed+packed"
]
#: oneDNN takes longer for two or three rows than for this many; they are padded.
_QUICK = 4
#: Most rows of a product with a split weight.
FEW = 4
#: Parts of a split weight: at least so many, or so many for each thread; and the fewest outputs of one.
_PARTS, _PARTS_PER_THREAD, _PART = 8, 4, 32
#: Names of x86-64 by ``platform.machine``.
X86 = ("x86_64", "amd64")


class Matrix(ABC):
    """One matrix for linear layers that read the same rows: their outputs are concatenated.

    Attributes:
        shape: (out, in).
        bias: (out,), or None.
        nbytes: bytes held in addition to the layers' parameters.
        second: True if those are a second copy.
        precision: of quantised weights; None for others.
        layout: :data:`FloatLayout`, or the precision.
    """

    shape: tuple[int, int]
    bias: torch.Tensor | None
    nbytes: int = 0
    second: bool = False
    precision: Precision | None = None
    layout: str = "codes"

    @abstractmethod
    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        """Map (R, in) to (R, out), in the dtype of the rows; quantised matrices compute each row independently."""

    def add(self, residual: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        """Return ``residual`` (R, out) plus the product."""
        return self(rows).add_(residual)

    def add_(self, residual: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        """Return :meth:`add`, possibly in the memory of ``residual``."""
        return self.add(residual, rows)

    def dense(self, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        """Return the weight (out, in) as numbers: products with unit vectors, a block at a time."""
        weight = torch.empty(self.shape, dtype=dtype, device=device)
        for start in range(0, self.shape[1], 1024):
            end = min(start + 1024, self.shape[1])
            units = torch.zeros(end - start, self.shape[1], dtype=dtype, device=device)
            units[:, start:end].fill_diagonal_(1)
            weight[:, start:end] = (self(units) if self.bias is None else self(units) - self.bias).t()
        return weight


class PlainMatrix(Matrix):
    """Weight in the layers' dtype, whose parameters can be views of it.

    Args:
        weight: (out, in), contiguous or stored as (in, out).
        bias: (out,), or None.
    """

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        self.weight, self.bias, self.shape = weight, bias, (weight.shape[0], weight.shape[1])
        self.layout = "plain" if weight.is_contiguous() else "transposed"
        self.transposed = weight.t()  # (in, out)

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        if self.bias is None:
            return torch.mm(rows, self.transposed)
        return torch.addmm(self.bias, rows, self.transposed)

    def add(self, residual: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        if self.bias is not None:
            residual = residual + self.bias
        return torch.addmm(residual, rows, self.transposed)

    def add_(self, residual: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        if self.bias is not None:
            residual.add_(self.bias)
        return residual.addmm_(rows, self.transposed)

    def dense(self, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        return self.weight.to(device, dtype)


class SplitMatrix(PlainMatrix):
    """Weight (out, in) whose product with few rows is a batch of products, each for a part of the outputs.

    MKL computes a product with one row in one thread on some CPUs, and a batch in all of them.

    Args:
        weight, bias: see :class:`PlainMatrix`; the weight is contiguous, and :func:`can_split` holds.
    """

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        super().__init__(weight, bias)
        self.layout, self._count, self._width = "split", _part_count(self.shape[0]), self.shape[1]
        self._parts = weight.view(self._count, -1, self._width)
        self._bias_parts = None if bias is None else bias.view(self._count, -1, 1)

    def _inputs(self, rows: torch.Tensor, count: int) -> torch.Tensor:
        """Return (parts, in, R), the rows as columns for each part: MKL is slow with one column stored as a row."""
        step, each = rows.stride()
        return rows.as_strided((self._count, self._width, count), (0, each, self._width if count == 1 else step))

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        count = rows.shape[0]
        if not 0 < count <= FEW:
            return super().__call__(rows)
        inputs = self._inputs(rows, count)
        if self._bias_parts is None:
            columns = torch.bmm(self._parts, inputs)
        else:
            columns = torch.baddbmm(self._bias_parts, self._parts, inputs)
        return columns.view(1, -1) if count == 1 else columns.view(-1, count).t().contiguous()

    def add(self, residual: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        count = rows.shape[0]
        if count == 1 and self.bias is None:
            sums = residual.view(self._count, -1, 1)
            return torch.baddbmm(sums, self._parts, self._inputs(rows, 1)).view(1, -1)
        return self(rows).add_(residual) if 0 < count <= FEW else super().add(residual, rows)

    def add_(self, residual: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        return self.add(residual, rows) if 0 < rows.shape[0] <= FEW else super().add_(residual, rows)


class MatrixWithPackedCopy(Matrix):
    """Weight for passes of few rows, with a second copy, packed by oneDNN, for passes of many.

    Args:
        first: the weight for passes of few rows.
        most: their most rows.
    """

    second = True

    def __init__(self, first: PlainMatrix, most: int) -> None:
        self.first, self.shape, self._most = first, first.shape, most
        self.layout = f"{first.layout}{'1' if most == 1 and first.layout == 'split' else ''}+packed"
        self.weight, self.bias = first.weight, first.bias
        self._copy = PackedMatrix(first.weight, first.bias)
        self.nbytes = self._copy.nbytes

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        return self._copy(rows) if rows.shape[0] > self._most else self.first(rows)

    def add(self, residual: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        return self._copy.add(residual, rows) if rows.shape[0] > self._most else self.first.add(residual, rows)

    def add_(self, residual: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        return self._copy.add_(residual, rows) if rows.shape[0] > self._most else self.first.add_(residual, rows)

    def dense(self, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        return self.first.dense(dtype, device)


class PackedMatrix(Matrix):
    """Weight packed by oneDNN, for all passes.

    Args:
        weight: (out, in), which can be released unless ``second``.
        bias: (out,), or None.
        second: True if the weight stays, since another module uses it too.
    """

    layout = "packed"

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None, *, second: bool = False) -> None:
        self.bias, self.shape, self.second = bias, (weight.shape[0], weight.shape[1]), second
        self._packed, self.nbytes = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous()), weight.nbytes
        move_to_huge_pages(torch.ops.mkldnn.data_ptr(self._packed), self.nbytes)

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        count = rows.shape[0]
        filled = rows.contiguous() if count == 1 or count >= _QUICK else F.pad(rows, (0, 0, 0, _QUICK - count))
        out: torch.Tensor = torch.ops.mkldnn._linear_pointwise(filled, self._packed, self.bias, "none", [], "")
        return out if filled.shape[0] == count else out[:count]

    def add(self, residual: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        if 1 < rows.shape[0] < _QUICK:
            return super().add(residual, rows)
        product = torch.ops.mkldnn._linear_pointwise.binary
        return product(rows.contiguous(), residual.contiguous(), self._packed, self.bias, "add")  # type: ignore[no-any-return]

    def dense(self, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        return self._packed.to_dense().to(device, dtype)  # type: ignore[no-any-return]


def can_pack(dtype: torch.dtype) -> bool:
    """Return True if this build of torch packs such weights: float32, or bfloat16 on a CPU that computes in it."""
    operators = torch.ops.mkldnn
    if not torch.backends.mkldnn.is_available() or not hasattr(operators, "_reorder_linear_weight"):
        return False
    return dtype is torch.float32 or (dtype is torch.bfloat16 and bool(operators._is_mkldnn_bf16_supported()))


def can_split(outputs: int, dtype: torch.dtype) -> bool:
    """Return True if a weight with this many outputs can be split: in float32, with MKL."""
    return dtype is torch.float32 and torch.backends.mkl.is_available() and _part_count(outputs) > 1


def _part_count(outputs: int) -> int:
    """Return the number of parts of a split weight, a power of two."""
    count = _PARTS
    while count < _PARTS_PER_THREAD * torch.get_num_threads():
        count *= 2
    while outputs % count or (count > 1 and outputs // count < _PART):
        count //= 2
    return count


def float_matrix(
    weight: torch.Tensor, bias: torch.Tensor | None, layout: FloatLayout, *, shared: bool = False, joined: bool = False
) -> PlainMatrix | PackedMatrix | MatrixWithPackedCopy:
    """Return a weight (out, in) as a matrix in a layout.

    Args:
        weight, bias: see :class:`PlainMatrix`.
        layout: of the weight.
        shared: True if another module uses the weight too.
        joined: True for a weight of :func:`join_weights` of several layers, which is not copied again.
    """
    if layout == "packed":
        return PackedMatrix(weight, bias, second=shared)
    if layout.startswith("transposed"):
        weight = copy_to_huge_pages(weight.t()).t()
    elif weight.device.type == "cpu" and not (shared or joined):
        weight = copy_to_huge_pages(weight)
    first = SplitMatrix(weight, bias) if layout.startswith("split") else PlainMatrix(weight, bias)
    if not layout.endswith("packed"):
        return first
    return MatrixWithPackedCopy(first, FEW if layout == "split+packed" else 1)


def join_weights(layers: Sequence[nn.Linear]) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Return the concatenated weight (out, in) and bias (out,) of layers; a single layer's own tensors."""
    if len(layers) == 1:
        return layers[0].weight.data, None if layers[0].bias is None else layers[0].bias.data
    parts = [layer.weight.data for layer in layers]
    if parts[0].device.type == "cpu" and parts[0].dim() == 2:  # weights held elsewhere are empty
        shape = (sum(len(part) for part in parts), parts[0].shape[1])
        weight = torch.cat(parts, out=empty_in_huge_pages(shape, parts[0].dtype))
    else:
        weight = torch.cat(parts)
    return weight, None if layers[0].bias is None else torch.cat([layer.bias.data for layer in layers])


def row_blocks(shape: Sequence[int], numbers: int) -> Iterator[slice]:
    """Return blocks of the rows of a weight (out, in): about so many numbers, a multiple of 64 rows."""
    rows = max(numbers // shape[1] // 64, 1) * 64
    return (slice(start, min(start + rows, shape[0])) for start in range(0, shape[0], rows))


def release_weights(layers: Sequence[nn.Linear]) -> None:
    """Release the weights of layers that a matrix holds in another layout; the layers no longer work."""
    for layer in layers:
        layer.weight.data = layer.weight.new_empty(0)
