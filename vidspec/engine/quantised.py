"""Weights as integers of eight or four bits, on torch's own operators.

A weight is ``(code - zero) * scale``, with a scale for each output (:class:`Int8`) or for each group of inputs of each
output (:class:`Int4`). Rows are quantised each by itself, or not at all: a row's result does not depend on the rows
beside it in the pass, which are other clips'. Codes of a checkpoint (:class:`Codes`) give on a CPU what their weight
gives in float32: no rows, scales or zeros are rounded.
"""

from __future__ import annotations

import platform
from collections.abc import Sequence
from functools import cache
from typing import Literal, NamedTuple

import torch
from torch.nn import functional as F

from vidspec.engine.matrix import X86, Matrix

__all__ = ["Codes", "Int4", "Int8", "Kernel", "Precision", "kernel", "quantised", "sums_eight_bits"]

#: Of weights.
Precision = Literal["int8", "int4"]
#: How a product with integer codes is computed: by oneDNN's int8 product, cuBLAS's, torch's one of float32 rows and
#: int8 codes, its int4 one for this kind of device, or with the weight made dense at every call.
Kernel = Literal["onednn", "int_mm", "int8", "int4", "dense"]
#: Inputs that share a scale in a weight of four bits: the first that divides them.
_GROUPS = (64, 32)
#: Rows that cuBLAS's int8 product wants at least.
_ROWS = 32


def kernel(
    bits: Literal[8, 4], shape: tuple[int, int], device: str, capability: tuple[int, int] = (0, 0), group: int = 0
) -> Kernel:
    """The kernel for a weight (out, in) on a kind of device.

    Args:
        bits: of a code.
        shape: (out, in).
        device: ``cpu``, ``cuda``, ...
        capability: compute capability of a GPU.
        group: inputs that share a scale in a weight of four bits.
    """
    out, inner = shape
    if bits == 8 and device == "cpu":
        return "onednn" if _onednn() else "dense"
    if bits == 8:
        return "int_mm" if device == "cuda" and capability >= (7, 5) and out % 8 == inner % 8 == 0 else "dense"
    grouped = group in (32, 64, 128, 256) and inner % group == 0 and out % 16 == 0
    known = device == "cpu" or (device == "cuda" and capability >= (8, 0))
    return "int4" if grouped and known else "dense"


def _kernel_on(bits: Literal[8, 4], codes: torch.Tensor, group: int = 0) -> Kernel:
    place = codes.device
    capability = torch.cuda.get_device_capability(place) if place.type == "cuda" else (0, 0)
    return kernel(bits, (codes.shape[0], codes.shape[1]), place.type, capability, group)


def _onednn() -> bool:
    return platform.machine().lower() in X86 and hasattr(torch.ops.onednn, "qlinear_prepack")


def sums_eight_bits() -> bool:
    """Whether a CPU's int8 product is exact, and so fast with rows of eight bits: one with VNNI."""
    return _onednn() and _zero_point() == 128


@cache
def _zero_point() -> int:
    """Of rows in oneDNN's int8 product, which takes them as unsigned numbers.

    128, for eight bits, where 255 * 127 + 255 * 127 is summed exactly; CPUs without VNNI saturate there, and take 64,
    for seven bits.
    """
    weight = torch.ops.onednn.qlinear_prepack(torch.full((64, 64), 127, dtype=torch.int8), None)
    rows, ones = torch.full((2, 64), 255, dtype=torch.uint8), torch.ones(64)
    out = _qlinear(rows, 128, weight, ones, torch.zeros(64, dtype=torch.long))
    return 128 if float(out[0, 0]) == 127 * 127 * 64 else 64


def _qlinear(
    rows: torch.Tensor, zero: int, weight: torch.Tensor, scales: torch.Tensor, zeros: torch.Tensor
) -> torch.Tensor:
    """(R, out) float32 of uint8 rows (R, in); what ``torch.compile`` lowers a quantised linear layer to."""
    out: torch.Tensor = torch.ops.onednn.qlinear_pointwise(
        rows, 1.0, zero, weight, scales, zeros, None, 1.0, 0, torch.float32, "none", [], "none"
    )
    return out


class Int8(Matrix):
    """Codes of eight bits, a scale for each output; rows are quantised too, each by its largest number.

    Args:
        codes: (out, in) int8, from -127 to 127.
        scales: (out,).
        bias: (out,), or None.
        rounded: whether rows are quantised; else the codes may be -128, too.
    """

    def __init__(
        self, codes: torch.Tensor, scales: torch.Tensor, bias: torch.Tensor | None = None, *, rounded: bool = True
    ) -> None:
        self.shape, self.bias, self._scales = (codes.shape[0], codes.shape[1]), bias, scales.float().contiguous()
        whole: Kernel = "int8" if codes.device.type == "cpu" else "dense"
        self.kernel, self._codes, self._zero = _kernel_on(8, codes) if rounded else whole, codes.contiguous(), 0
        self.nbytes = codes.nbytes + self._scales.nbytes
        if self.kernel == "onednn":
            self._codes = torch.ops.onednn.qlinear_prepack(self._codes, None)
            self._zeros, self._zero = torch.zeros(codes.shape[0], dtype=torch.long), _zero_point()

    @classmethod
    def from_codes(cls, codes: torch.Tensor, scales: torch.Tensor, bias: torch.Tensor | None = None) -> Int8:
        """As a checkpoint holds them, see the class; rows are not quantised."""
        return cls(codes, scales, bias, rounded=False)

    @classmethod
    def of(cls, weight: torch.Tensor, bias: torch.Tensor | None = None) -> Int8:
        """A weight (out, in), rounded to the nearest codes."""
        scales = weight.float().abs().amax(1).clamp_min(1e-12) / 127
        return cls((weight.float() / scales[:, None]).round_().to(torch.int8), scales, bias)

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        if self.kernel == "dense":
            return F.linear(rows, (self._codes * self._scales[:, None]).to(rows.dtype), self.bias)
        if self.kernel == "int8":
            out = torch.ops.aten._weight_int8pack_mm(rows.float().contiguous(), self._codes, self._scales)
            return (out if self.bias is None else out.add_(self.bias)).to(rows.dtype)  # type: ignore[no-any-return]
        product, scales = self._product(rows.float())
        if self.bias is None:
            return product.mul_(scales).to(rows.dtype)
        return torch.addcmul(self.bias.float(), product, scales).to(rows.dtype)

    def _product(self, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """(R, out) float32 of float32 rows, and (R, 1) what each row of it is to be multiplied with."""
        scales = rows.abs().amax(1, keepdim=True).clamp_min_(1e-12).div_(63 if self._zero == 64 else 127)
        codes = (rows / scales).round_()
        if self.kernel == "onednn":
            unsigned = codes.add_(self._zero).to(torch.uint8)
            return _qlinear(unsigned, self._zero, self._codes, self._scales, self._zeros), scales
        filled = F.pad(codes.to(torch.int8), (0, 0, 0, max(0, _ROWS - len(rows))))
        return torch._int_mm(filled, self._codes.t())[: len(rows)] * self._scales, scales


class Int4(Matrix):
    """Codes of four bits, a scale and a zero for each group of inputs of each output.

    Args:
        codes: (out, in) uint8, from 0 to 15.
        scales: (out, in / group).
        zeros: (out, in / group), the code of 0, which may lie between two.
        group: inputs that share a scale.
        bias: (out,), or None.
        dtype: that rows, scales and zeros are rounded to; a GPU's product takes bfloat16 alone.
    """

    def __init__(
        self,
        codes: torch.Tensor,
        scales: torch.Tensor,
        zeros: torch.Tensor,
        group: int,
        bias: torch.Tensor | None = None,
        dtype: torch.dtype = torch.bfloat16,
    ) -> None:
        self.shape, self.bias, self._group = (codes.shape[0], codes.shape[1]), bias, group
        self.kernel = _kernel_on(4, codes, group)
        scales = scales.float()
        middle = (8 - zeros.float()) * scales  # what code 8 stands for
        pairs = torch.stack([scales, middle], dim=-1)
        if self.kernel == "dense":
            self._codes, self._pairs = codes.contiguous(), pairs
        else:
            self._pairs = pairs.transpose(0, 1).contiguous().to(dtype)
            self._codes = _packed_int4(codes)
        self.nbytes = self._codes.nbytes + self._pairs.nbytes

    @classmethod
    def from_codes(
        cls,
        codes: torch.Tensor,
        scales: torch.Tensor,
        zeros: torch.Tensor,
        group: int,
        bias: torch.Tensor | None = None,
    ) -> Int4:
        """As a checkpoint holds them, see the class; on a CPU nothing is rounded."""
        dtype = torch.float32 if codes.device.type == "cpu" else torch.bfloat16
        return cls(codes, scales, zeros, group, bias, dtype)

    @classmethod
    def of(cls, weight: torch.Tensor, bias: torch.Tensor | None = None) -> Int4:
        """A weight (out, in), rounded to the nearest codes.

        Raises:
            ValueError: the inputs cannot be divided into groups.
        """
        group = _group(weight.shape[1])
        if not group:
            raise ValueError(f"{weight.shape[1]} inputs are no groups of {_GROUPS[-1]}")
        parts = weight.float().view(len(weight), -1, group)
        least, largest = parts.amin(-1), parts.amax(-1)
        scales = ((largest - least) / 15).clamp_min(1e-12)
        zeros = -least / scales
        codes = (parts / scales[..., None] + zeros[..., None]).round_().clamp_(0, 15).to(torch.uint8)
        return cls(codes.view(weight.shape), scales, zeros, group, bias)

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        if self.kernel == "dense":
            scales, middle = self._pairs.unbind(-1)
            parts = (self._codes.view(*scales.shape, self._group).float() - 8) * scales[..., None] + middle[..., None]
            return F.linear(rows, parts.view(self.shape).to(rows.dtype), self.bias)
        given = rows.to(self._pairs.dtype).contiguous()
        if rows.device.type == "cpu":
            out = torch.ops.aten._weight_int4pack_mm_for_cpu(given, self._codes, self._group, self._pairs)
        else:
            out = torch.ops.aten._weight_int4pack_mm(given, self._codes, self._group, self._pairs)
        out = out.to(rows.dtype)
        return out if self.bias is None else out.add_(self.bias)  # type: ignore[no-any-return]


def _packed_int4(codes: torch.Tensor) -> torch.Tensor:
    """In the layout of torch's int4 product for the device."""
    if codes.device.type == "cpu":
        return torch.ops.aten._convert_weight_to_int4pack_for_cpu(codes.int(), 2)  # type: ignore[no-any-return]
    tiles = next(count for count in (8, 4, 2) if codes.shape[1] % (16 * count) == 0)
    both = codes[:, ::2] << 4 | codes[:, 1::2]
    return torch.ops.aten._convert_weight_to_int4pack(both.contiguous(), tiles)  # type: ignore[no-any-return]


def _group(inner: int) -> int:
    return next((group for group in _GROUPS if inner % group == 0), 0)


def quantised(weight: torch.Tensor, bias: torch.Tensor | None, precision: Precision) -> Matrix:
    """A weight (out, in) rounded to codes; of eight bits where its inputs are no groups."""
    return Int4.of(weight, bias) if precision == "int4" and _group(weight.shape[1]) else Int8.of(weight, bias)


class Codes(NamedTuple):
    """A weight (out, in) as a checkpoint stores it.

    Attributes:
        packed: (out, in) int8 codes; or (out, in / 2) uint8, each two of four bits, the first one in the lower half.
        scales: (out, groups), each of a run of inputs.
        zeros: (out, groups) the codes of 0; of eight bits 0.
    """

    packed: torch.Tensor
    scales: torch.Tensor
    zeros: torch.Tensor

    @classmethod
    def of(cls, codes: torch.Tensor, scales: torch.Tensor, zeros: torch.Tensor) -> Codes:
        """Of uint8 codes (out, in) of four bits, or int8 ones of eight."""
        if codes.dtype is torch.uint8:
            codes = codes[:, ::2] | codes[:, 1::2] << 4
        return cls(codes.contiguous(), scales.contiguous(), zeros.contiguous())

    @property
    def bits(self) -> Literal[8, 4]:
        """Of a code."""
        return 8 if self.packed.dtype is torch.int8 else 4

    @property
    def numbers(self) -> torch.Tensor:
        """(out, in) the codes one by one."""
        if self.bits == 8:
            return self.packed
        return torch.stack([self.packed & 15, self.packed >> 4], dim=-1).flatten(1)

    @property
    def dense(self) -> torch.Tensor:
        """(out, in) the weight in float32."""
        parts = self.numbers.float().unflatten(1, (self.scales.shape[1], -1))
        return parts.sub_(self.zeros[..., None]).mul_(self.scales[..., None]).flatten(1)  # type: ignore[no-any-return]

    @staticmethod
    def joined(parts: Sequence[Codes], bias: torch.Tensor | None, device: torch.device) -> Matrix:
        """Weights of as many groups side by side, as one matrix on a device."""
        whole = Codes(*(torch.cat(tensors).to(device) for tensors in zip(*parts, strict=True)))
        codes, scales = whole.numbers, whole.scales
        if whole.bits == 8:
            return Int8.from_codes(codes, scales[:, 0], bias)
        return Int4.from_codes(codes, scales, whole.zeros, codes.shape[1] // scales.shape[1], bias)

    @staticmethod
    def nbytes(bits: int, shape: tuple[int, int], group: int, device: torch.device, dtype: torch.dtype) -> int:
        """Bytes that a checkpoint's codes take as they are, with their scales; 0 where they cannot stay.

        They stay where a product of their own is as precise as the model's dtype: int8 and int4 on a CPU, int4 of a
        bfloat16 model on a GPU.

        Args:
            bits: of a code.
            shape: (out, in) of the weight.
            group: inputs that share a scale and a zero of four bits; of eight bits all, and the code of 0 is 0.
            device: where the product is computed.
            dtype: of the model.
        """
        (out, inner), on_cpu = shape, device.type == "cpu"
        if bits == 8:
            return out * (inner + 4) if on_cpu and group == inner else 0
        if bits != 4 or not (on_cpu or (device.type == "cuda" and dtype is torch.bfloat16)):
            return 0
        capability = (0, 0) if on_cpu else torch.cuda.get_device_capability(device)
        if kernel(4, shape, device.type, capability, group) != "int4":
            return 0
        return out * (inner // 2 + inner // group * (8 if on_cpu else 4))
