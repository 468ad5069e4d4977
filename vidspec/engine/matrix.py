"""The weight of one or several linear layers as one matrix, laid out for the rows that decoding multiplies with it.

In float32 on a CPU ``F.linear`` lays a weight out anew at every call of two rows or more. Two ways around it, by the
size of the weight; one thread of an AVX-512 CPU, microseconds of ``F.linear`` / (in, out) / packed by oneDNN:

=============  ====================  ====================  ====================  ====================
out x in       1 row                 2                     6                     11
=============  ====================  ====================  ====================  ====================
256 x 512      21 / 20 / 35          21 / 22 / 34          28 / 24 / 34          41 / 31 / 77
1024 x 256     39 / 38 / 52          39 / 42 / 52          58 / 45 / 53          138 / 84 / 82
1024 x 1024    205 / 151 / 189       178 / 170 / 218       302 / 173 / 199       749 / 291 / 252
4096 x 1024    647 / 632 / 672       646 / 754 / 705       1402 / 2162 / 765     3394 / 2796 / 1401
18944 x 3584   16983 / 16469 / 19762 18259 / 26892 / 20905 39595 / 40034 / 21004 75719 / 50019 / 26199
=============  ====================  ====================  ====================  ====================

So small weights are stored as (in, out), the only copy there is; large ones stay as they are and get a packed copy,
which passes of two rows and more use. Which of both a call takes is a rule, not a measurement: the same pass always
rounds alike.
"""

from __future__ import annotations

import platform
from collections.abc import Sequence
from typing import Literal

import torch
from torch import nn
from torch.nn import functional as F

from vidspec import memory

__all__ = ["LARGE", "Matrix", "packing"]

#: Numbers in a weight from which on a packed copy pays, and below which it is stored as (in, out).
LARGE = 2**20
#: oneDNN takes longer for two or three rows than for so many; they are filled up.
_QUICK = 4
#: Machines that the table above speaks for; others pack when told to.
_MEASURED = ("x86_64", "amd64")


class Matrix:
    """One matrix for linear layers that read the same rows: their outputs side by side.

    The layers' parameters become views of it, so that nothing is held twice and the layers still work.

    Args:
        layers: plain linear layers of one input width, dtype and device; all with a bias or none.
        packed: whether to keep a packed copy of a large weight.
        shared: whether another module has the weight too, which then stays as it is.
    """

    def __init__(
        self,
        layers: Sequence[nn.Linear],
        *,
        packed: bool = False,
        shared: bool = False,
    ) -> None:
        with torch.no_grad():
            weight = torch.cat([layer.weight for layer in layers]) if len(layers) > 1 else layers[0].weight.data
            on_cpu = weight.device.type == "cpu" and weight.dtype is torch.float32
            if on_cpu and weight.numel() < LARGE and not shared:
                weight = weight.t().contiguous().t()
            self.bias = None
            if layers[0].bias is not None:
                self.bias = torch.cat([layer.bias for layer in layers]) if len(layers) > 1 else layers[0].bias.data
            start = 0
            for layer in layers:
                end = start + layer.out_features
                layer.weight.data = weight[start:end]
                if self.bias is not None:
                    layer.bias.data = self.bias[start:end]
                start = end
            self.weight = weight
            self.flipped = weight.t()  # (in, out)
            wanted = packed and on_cpu and weight.is_contiguous() and weight.numel() >= LARGE
            self._packed = torch.ops.mkldnn._reorder_linear_weight(weight) if wanted else None

    @property
    def packed_bytes(self) -> int:
        """Bytes of the packed copy."""
        return 0 if self._packed is None else self.weight.nbytes

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        """(R, in) to (R, out)."""
        if self._packed is not None and rows.shape[0] > 1:
            return self._by_packed(rows)
        if self.bias is None:
            return torch.mm(rows, self.flipped)
        return torch.addmm(self.bias, rows, self.flipped)

    def add(self, residual: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        """``residual`` (R, out) plus the product."""
        if self._packed is not None and rows.shape[0] > 1:
            return self._by_packed(rows).add_(residual)
        if self.bias is not None:
            residual = residual + self.bias
        return torch.addmm(residual, rows, self.flipped)

    def _by_packed(self, rows: torch.Tensor) -> torch.Tensor:
        count = len(rows)
        filled = rows.contiguous() if count >= _QUICK else F.pad(rows, (0, 0, 0, _QUICK - count))
        out: torch.Tensor = torch.ops.mkldnn._linear_pointwise(filled, self._packed, self.bias, "none", [], "")
        return out[:count]


def packing(copies: int, wanted: bool | Literal["auto"]) -> bool:
    """Whether large weights get packed copies.

    Args:
        copies: bytes that they would take.
        wanted: ``"auto"`` on an x86 CPU where the copies take at most half the memory that is free (one that cannot be
            told counts as enough); ``True`` wherever this build of torch can.
    """
    operators = torch.ops.mkldnn
    if not wanted or not torch.backends.mkldnn.is_available() or not hasattr(operators, "_reorder_linear_weight"):
        return False
    if wanted == "auto":
        free = memory.available()
        return platform.machine().lower() in _MEASURED and (free is None or 2 * copies <= free)
    return True
