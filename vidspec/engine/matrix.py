"""The weight of one or several linear layers as one matrix, in the layout that suits the row counts of decoding.

In float32 on a CPU ``F.linear`` repacks a weight at every call with two rows or more. Two ways around it, by the size
of the weight; one thread of an AVX-512 CPU, microseconds of ``F.linear`` / (in, out) / packed by oneDNN:

=============  ====================  ====================  ====================  ====================
out x in       1 row                 2                     6                     11
=============  ====================  ====================  ====================  ====================
256 x 512      21 / 20 / 35          21 / 22 / 34          28 / 24 / 34          41 / 31 / 77
1024 x 256     39 / 38 / 52          39 / 42 / 52          58 / 45 / 53          138 / 84 / 82
1024 x 1024    205 / 151 / 189       178 / 170 / 218       302 / 173 / 199       749 / 291 / 252
4096 x 1024    647 / 632 / 672       646 / 754 / 705       1402 / 2162 / 765     3394 / 2796 / 1401
18944 x 3584   16983 / 16469 / 19762 18259 / 26892 / 20905 39595 / 40034 / 21004 75719 / 50019 / 26199
=============  ====================  ====================  ====================  ====================

So small weights are stored as (in, out), the only copy; large ones stay as they are and get a packed copy for passes of
two rows or more. In bfloat16 the packed weight is faster at one row too, and is the only copy. The layout and the copy
that a call uses follow from a rule, not from a measurement: the same pass always rounds alike.
"""

from __future__ import annotations

import platform
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Literal

import torch
from torch import nn
from torch.nn import functional as F

from vidspec import memory

__all__ = [
    "LARGE",
    "STEP",
    "X86",
    "Matrix",
    "MatrixWithPackedCopy",
    "PackedMatrix",
    "PlainMatrix",
    "Precision",
    "choose_packing",
    "join_weights",
    "release_weights",
    "row_blocks",
]

#: Inputs that a kernel of quantised weights reads at a time; the number of inputs is a multiple.
STEP = 128
#: Precision of quantised weights.
Precision = Literal["int8", "int4"]
#: Smallest weight, in numbers, for which a packed copy pays; smaller ones are stored as (in, out).
LARGE = 2**20
#: oneDNN takes longer for two or three rows than for this many; they are padded.
_QUICK = 4
#: Machines of the table above; others pack only on request.
X86 = ("x86_64", "amd64")


class Matrix(ABC):
    """One matrix for linear layers that read the same rows: their outputs are concatenated.

    Attributes:
        shape: (out, in).
        bias: (out,), or None.
        nbytes: bytes held in addition to the layers' parameters.
        second: True if those are a second copy.
        precision: of quantised weights; None for others.
    """

    shape: tuple[int, int]
    bias: torch.Tensor | None
    nbytes: int = 0
    second: bool = False
    precision: Precision | None = None

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
    """Weight in the layers' dtype; their parameters become views of it, so nothing is stored twice.

    Small float32 weights on a CPU are stored as (in, out).

    Args:
        layers: plain linear layers with the same input width, dtype and device; all with a bias or none.
        shared: True if another module uses the weight too; it then stays as it is.
    """

    def __init__(self, layers: Sequence[nn.Linear], *, shared: bool = False) -> None:
        with torch.no_grad():
            weight, self.bias = join_weights(layers)
            on_cpu = weight.device.type == "cpu" and weight.dtype is torch.float32
            if on_cpu and weight.numel() < LARGE and not shared:
                weight = weight.t().contiguous().t()
            start = 0
            for layer in layers:
                end = start + layer.out_features
                layer.weight.data = weight[start:end]
                if self.bias is not None:
                    layer.bias.data = self.bias[start:end]
                start = end
            self.weight, self.shape = weight, (weight.shape[0], weight.shape[1])
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


class MatrixWithPackedCopy(PlainMatrix):
    """Weight with a second copy, packed by oneDNN, for passes of two rows or more: large float32 weights on a CPU."""

    second = True

    def __init__(self, layers: Sequence[nn.Linear], *, shared: bool = False) -> None:
        super().__init__(layers, shared=shared)
        self._packed, self.nbytes = torch.ops.mkldnn._reorder_linear_weight(self.weight), self.weight.nbytes

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        return _packed_product(rows, self._packed, self.bias) if rows.shape[0] > 1 else super().__call__(rows)

    def add(self, residual: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        return Matrix.add(self, residual, rows) if rows.shape[0] > 1 else super().add(residual, rows)

    def add_(self, residual: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        return self.add(residual, rows)


class PackedMatrix(Matrix):
    """Weight packed by oneDNN, the only copy: the layers' parameters are emptied. Large bfloat16 weights on a CPU.

    Args:
        layers: see :class:`PlainMatrix`.
    """

    def __init__(self, layers: Sequence[nn.Linear]) -> None:
        with torch.no_grad():
            weight, self.bias = join_weights(layers)
            self.shape, self.nbytes = (weight.shape[0], weight.shape[1]), weight.nbytes
            self._packed = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous())
            release_weights(layers)

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        return _packed_product(rows, self._packed, self.bias)


def join_weights(layers: Sequence[nn.Linear]) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Return the concatenated weight (out, in) and bias (out,) of layers; a single layer's own tensors."""
    if len(layers) == 1:
        return layers[0].weight.data, None if layers[0].bias is None else layers[0].bias.data
    weight = torch.cat([layer.weight.data for layer in layers])
    return weight, None if layers[0].bias is None else torch.cat([layer.bias.data for layer in layers])


def row_blocks(shape: Sequence[int], numbers: int) -> Iterator[slice]:
    """Return blocks of the rows of a weight (out, in): about so many numbers, a multiple of 64 rows."""
    rows = max(numbers // shape[1] // 64, 1) * 64
    return (slice(start, min(start + rows, shape[0])) for start in range(0, shape[0], rows))


def release_weights(layers: Sequence[nn.Linear]) -> None:
    """Release the weights of layers that a matrix holds in another layout; the layers no longer work."""
    for layer in layers:
        layer.weight.data = layer.weight.new_empty(0)


def _packed_product(rows: torch.Tensor, packed: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    count = len(rows)
    filled = rows.contiguous() if count == 1 or count >= _QUICK else F.pad(rows, (0, 0, 0, _QUICK - count))
    out: torch.Tensor = torch.ops.mkldnn._linear_pointwise(filled, packed, bias, "none", [], "")
    return out[:count]


def choose_packing(copies: int, wanted: bool | Literal["auto"], dtype: torch.dtype = torch.float32) -> bool:
    """Return True if large weights on a CPU are packed.

    Args:
        copies: bytes of the second copies.
        wanted: ``"auto"``: on an x86 CPU if the copies take at most half of the free memory (unknown counts as
            enough); ``True``: wherever this build of torch can.
        dtype: dtype of the weights: float32, or bfloat16 on a CPU that computes in it.
    """
    operators = torch.ops.mkldnn
    if not wanted or not torch.backends.mkldnn.is_available() or not hasattr(operators, "_reorder_linear_weight"):
        return False
    if dtype is not torch.float32 and not (dtype is torch.bfloat16 and operators._is_mkldnn_bf16_supported()):
        return False
    if wanted == "auto":
        free = memory.available_memory()
        return platform.machine().lower() in X86 and (free is None or 2 * copies <= free)
    return True
