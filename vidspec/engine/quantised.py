"""Weights as integers of eight or four bits, on torch's own operators.

A weight is ``(code - zero) * scale``, with a scale for each output (:class:`Int8Matrix`) or for each group of inputs
of each output (:class:`Int4Matrix`). Rows are quantised one by one or not at all, so that a row's result does not
depend on other clips' rows in the pass. A checkpoint's eight-bit codes (:class:`StoredCodes`) give the float32 product
on a CPU; four-bit products round rows, scales and zeros to bfloat16.
"""

from __future__ import annotations

import platform
import warnings
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Literal, NamedTuple

import torch
from torch.nn import functional as F

from vidspec.engine.matrix import X86, Matrix

__all__ = [
    "Int4Matrix",
    "Int8Matrix",
    "Precision",
    "QuantisedKernel",
    "StoredCodes",
    "choose_kernel",
    "has_fast_int8",
    "quantise_weight",
    "quantised_bytes",
]

#: Precision of quantised weights.
Precision = Literal["int8", "int4"]
#: Kernel of a product with integer codes: the int8 product of FBGEMM, oneDNN or cuBLAS, torch's product of float32 rows
#: and int8 codes, its int4 product for this type of device, or a float product with the weight made dense at each call.
QuantisedKernel = Literal["fbgemm", "onednn", "int_mm", "int8", "int4", "dense"]
#: Inputs that share a scale in a four-bit weight: the first that divides them.
_GROUPS = (64, 32)
#: Numbers of a weight that are rounded or packed at a time; temporaries take 12 bytes each.
_BLOCK = 2**22
#: Fewest rows of cuBLAS's int8 product.
_ROWS = 32
#: Digits that rows are split into for a checkpoint's eight-bit codes: 21 bits, and more with VNNI.
_DIGITS = 3


def choose_kernel(
    bits: Literal[8, 4], shape: tuple[int, int], device: str, capability: tuple[int, int] = (0, 0), group: int = 0
) -> QuantisedKernel:
    """Return the kernel for a weight (out, in) on a type of device.

    Args:
        bits: bits of a code.
        shape: (out, in).
        device: ``cpu``, ``cuda``, ...
        capability: compute capability of a GPU.
        group: inputs that share a scale in a four-bit weight.
    """
    out, inner = shape
    if bits == 8 and device == "cpu":
        return _cpu_kernel()
    if bits == 8:
        return "int_mm" if device == "cuda" and capability >= (7, 5) and out % 8 == inner % 8 == 0 else "dense"
    grouped = group in (32, 64, 128, 256) and inner % group == 0 and out % 16 == 0
    known = device == "cpu" or (device == "cuda" and capability >= (8, 0))
    return "int4" if grouped and known else "dense"


def _kernel_on(bits: Literal[8, 4], codes: torch.Tensor, group: int = 0) -> QuantisedKernel:
    place = codes.device
    capability = torch.cuda.get_device_capability(place) if place.type == "cuda" else (0, 0)
    return choose_kernel(bits, (codes.shape[0], codes.shape[1]), place.type, capability, group)


@cache
def _cpu_kernel() -> QuantisedKernel:
    """Return the eight-bit kernel: oneDNN's if the CPU has VNNI, else FBGEMM's, about three times as fast there."""
    if platform.machine().lower() not in X86:
        return "dense"
    onednn = hasattr(torch.ops.onednn, "qlinear_prepack")
    if onednn and _zero_point() == 128:
        return "onednn"
    known = hasattr(torch.ops.quantized, "linear_with_input_q_dq_qweight_dq_output_fp32")
    if known and "fbgemm" in torch.backends.quantized.supported_engines:
        return "fbgemm"
    return "onednn" if onednn else "dense"


def has_fast_int8() -> bool:
    """Return True if a CPU's product with eight-bit codes is much faster than one in float32."""
    return _cpu_kernel() == "fbgemm" or (_cpu_kernel() == "onednn" and _zero_point() == 128)


@cache
def _zero_point() -> int:
    """Return the zero point of rows in a CPU's int8 product, which takes them as unsigned numbers.

    128, for eight bits, if 255 * 127 + 255 * 127 is summed exactly; CPUs without VNNI saturate there, and take 64, for
    seven bits.
    """
    if not hasattr(torch.ops.onednn, "qlinear_prepack"):
        return 64
    weight = torch.ops.onednn.qlinear_prepack(torch.full((64, 64), 127, dtype=torch.int8), None)
    rows, ones = torch.full((2, 64), 255, dtype=torch.uint8), torch.ones(64)
    out = _qlinear(rows, 128, weight, ones, torch.zeros(64, dtype=torch.long))
    return 128 if float(out[0, 0]) == 127 * 127 * 64 else 64


def _pack_int8(codes: torch.Tensor, scales: torch.Tensor) -> torch.ScriptObject:
    """Pack codes for FBGEMM's product, which needs one of torch's quantised tensors, although they are deprecated."""
    engine = torch.backends.quantized.engine
    torch.backends.quantized.engine = "fbgemm"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            zeros = torch.zeros(len(codes), dtype=torch.long)
            tensor = torch._make_per_channel_quantized_tensor(codes, scales.double(), zeros, 0)
            return torch.ops.quantized.linear_prepack(tensor, None)  # type: ignore[no-any-return]
    finally:
        torch.backends.quantized.engine = engine


def _qlinear(
    rows: torch.Tensor, zero: int, weight: torch.Tensor, scales: torch.Tensor, zeros: torch.Tensor
) -> torch.Tensor:
    """Return (R, out) float32 for uint8 rows (R, in), by the operator ``torch.compile`` lowers quantised layers to."""
    out: torch.Tensor = torch.ops.onednn.qlinear_pointwise(
        rows, 1.0, zero, weight, scales, zeros, None, 1.0, 0, torch.float32, "none", [], "none"
    )
    return out


class Int8Matrix(Matrix):
    """Eight-bit codes with a scale for each output; rows are quantised too, each by its largest number.

    Args:
        codes: (out, in) int8, from -127 to 127.
        scales: (out,).
        bias: (out,), or None.
        rounded: True to round rows to one digit of seven or eight bits; else rows are split into ``_DIGITS`` digits, or
            kept, and codes may also be -128.
    """

    def __init__(
        self, codes: torch.Tensor, scales: torch.Tensor, bias: torch.Tensor | None = None, *, rounded: bool = True
    ) -> None:
        self.shape, self.bias, self._scales = (codes.shape[0], codes.shape[1]), bias, scales.float().clone()
        self.kernel, self._codes, self._zero = _kernel_on(8, codes), codes.contiguous(), 0
        self._digits = 1 if rounded else _DIGITS
        if not rounded and codes.device.type != "cpu":
            self.kernel = "dense"
        elif not rounded and self.kernel == "dense":
            self.kernel = "int8"
        self.nbytes = codes.nbytes + self._scales.nbytes
        if self.kernel in ("onednn", "fbgemm"):
            self._zero = _zero_point()
        self._bound = 63 if self._zero == 64 else 127
        if self.kernel in ("onednn", "fbgemm", "int_mm"):  # a row's largest number maps to the bound
            self._scales /= self._bound
        if self.kernel == "onednn":
            self._codes = torch.ops.onednn.qlinear_prepack(self._codes, None)
            self._zeros = torch.zeros(codes.shape[0], dtype=torch.long)
        elif self.kernel == "fbgemm":
            self._packed = _pack_int8(self._codes, self._scales)
            del self._codes

    @classmethod
    def from_codes(cls, codes: torch.Tensor, scales: torch.Tensor, bias: torch.Tensor | None = None) -> Int8Matrix:
        """Return the matrix of a checkpoint's codes, see the class; rows are not rounded to one digit."""
        return cls(codes, scales, bias, rounded=False)

    @classmethod
    def of(cls, weight: torch.Tensor, bias: torch.Tensor | None = None) -> Int8Matrix:
        """Round a weight (out, in) to the nearest codes."""
        codes = torch.empty(weight.shape, dtype=torch.int8, device=weight.device)
        scales = torch.empty(len(weight), device=weight.device)
        for rows in _row_blocks(weight.shape):
            part = weight[rows].float()
            scales[rows] = torch.linalg.vector_norm(part, torch.inf, 1).clamp_min_(1e-12) / 127
            codes[rows] = part.div(scales[rows, None]).round_().to(torch.int8)
        return cls(codes, scales, bias)

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        if self.kernel == "dense":
            return F.linear(rows, (self._codes * self._scales[:, None]).to(rows.dtype), self.bias)
        if self.kernel == "int8":
            out = torch.ops.aten._weight_int8pack_mm(rows.float().contiguous(), self._codes, self._scales)
            return (out if self.bias is None else out.add_(self.bias)).to(rows.dtype)  # type: ignore[no-any-return]
        numbers32 = rows.float()
        largest = torch.linalg.vector_norm(numbers32, torch.inf, 1, keepdim=True).clamp_min_(1e-12)
        numbers = numbers32 * (self._bound / largest)
        product = self._exact_product(numbers) if self._digits == 1 else self._split_product(numbers)
        if self.bias is None:
            return product.mul_(largest).to(rows.dtype)
        return torch.addcmul(self.bias.float(), product, largest).to(rows.dtype)

    def _split_product(self, numbers: torch.Tensor) -> torch.Tensor:
        """Return (R, out) float32 for numbers (R, in) within the bound, each split into digits of falling weight."""
        digits, base = list[torch.Tensor](), 2 * self._bound + 1
        for _ in range(self._digits):
            digits.append(numbers.round().clamp_(-self._bound, self._bound))
            numbers = (numbers - digits[-1]).mul_(base)
        parts: torch.Tensor = self._exact_product(torch.cat(digits)).unflatten(0, (self._digits, len(numbers)))
        product = parts[-1]
        for part in reversed(parts[:-1].unbind()):
            product = torch.add(part, product, alpha=1 / base)
        return product

    def _exact_product(self, numbers: torch.Tensor) -> torch.Tensor:
        """Return (R, out) float32 for numbers (R, in) within the bound, rounded, whose products are summed exactly."""
        if self.kernel == "fbgemm":  # it rounds by itself
            of_rows = torch.ops.quantized.linear_with_input_q_dq_qweight_dq_output_fp32
            return of_rows(numbers, 1.0, self._zero, self._packed)  # type: ignore[no-any-return]
        numbers = numbers.round()
        if self.kernel == "onednn":
            unsigned = numbers.add_(self._zero).to(torch.uint8)
            return _qlinear(unsigned, self._zero, self._codes, self._scales, self._zeros)
        filled = F.pad(numbers.to(torch.int8), (0, 0, 0, max(0, _ROWS - len(numbers))))
        return torch._int_mm(filled, self._codes.t())[: len(numbers)] * self._scales


class Int4Matrix(Matrix):
    """Four-bit codes with a scale and a zero for each group of inputs of each output.

    Args:
        codes: (out, in) uint8, from 0 to 15.
        scales: (out, in / group).
        zeros: (out, in / group), the code of 0, which may be fractional.
        group: inputs that share a scale.
        bias: (out,), or None.
    """

    def __init__(
        self,
        codes: torch.Tensor,
        scales: torch.Tensor,
        zeros: torch.Tensor,
        group: int,
        bias: torch.Tensor | None = None,
    ) -> None:
        self.shape, self.bias, self._group = (codes.shape[0], codes.shape[1]), bias, group
        self.kernel = _kernel_on(4, codes, group)
        scales = scales.float()
        middle = (8 - zeros.float()) * scales  # the value of code 8
        pairs = torch.stack([scales, middle], dim=-1)
        if self.kernel == "dense":
            self._codes, self._pairs = codes.contiguous(), pairs
        else:
            self._pairs = pairs.transpose(0, 1).contiguous().to(torch.bfloat16)
            self._codes = _pack_int4(codes)
        self.nbytes = self._codes.nbytes + self._pairs.nbytes

    @classmethod
    def of(cls, weight: torch.Tensor, bias: torch.Tensor | None = None) -> Int4Matrix:
        """Round a weight (out, in) to the nearest codes.

        Raises:
            ValueError: the inputs cannot be divided into groups.
        """
        group = _group_size(weight.shape[1])
        if not group:
            raise ValueError(f"{weight.shape[1]} inputs are no groups of {_GROUPS[-1]}")
        codes = torch.empty(weight.shape, dtype=torch.uint8, device=weight.device)
        scales = torch.empty(len(weight), weight.shape[1] // group, device=weight.device)
        zeros = torch.empty_like(scales)
        for rows in _row_blocks(weight.shape):
            parts = weight[rows].float().unflatten(1, (-1, group))
            least, largest = parts.amin(-1), parts.amax(-1)
            scales[rows] = ((largest - least) / 15).clamp_min_(1e-12)
            zeros[rows] = -least / scales[rows]
            numbers = parts.div(scales[rows, :, None]).add_(zeros[rows, :, None])
            codes[rows] = numbers.round_().clamp_(0, 15).to(torch.uint8).flatten(1)
        return cls(codes, scales, zeros, group, bias)

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


def _row_blocks(shape: Sequence[int]) -> Iterator[slice]:
    """Return blocks of rows of a weight (out, in), multiples of 64, the row block of four-bit layouts."""
    rows = max(_BLOCK // shape[1] // 64, 1) * 64
    return (slice(start, min(start + rows, shape[0])) for start in range(0, shape[0], rows))


def _pack_int4(codes: torch.Tensor) -> torch.Tensor:
    """Return the codes in the layout of torch's int4 product for the device."""
    return torch.cat([_pack_int4_block(codes[rows]) for rows in _row_blocks(codes.shape)])


def _pack_int4_block(codes: torch.Tensor) -> torch.Tensor:
    if codes.device.type == "cpu":
        return torch.ops.aten._convert_weight_to_int4pack_for_cpu(codes.int(), 2)  # type: ignore[no-any-return]
    tiles = next(count for count in (8, 4, 2) if codes.shape[1] % (16 * count) == 0)
    both = codes[:, ::2] << 4 | codes[:, 1::2]
    return torch.ops.aten._convert_weight_to_int4pack(both.contiguous(), tiles)  # type: ignore[no-any-return]


def _group_size(inner: int) -> int:
    return next((group for group in _GROUPS if inner % group == 0), 0)


def quantised_bytes(shape: tuple[int, int], precision: Precision, device: torch.device) -> int:
    """Return the bytes of a weight (out, in) quantised by :func:`quantise_weight`, scales included."""
    (out, inner), group = shape, _group_size(shape[1])
    if precision == "int8" or not group:
        return out * (inner + 4)
    capability = (0, 0) if device.type != "cuda" else torch.cuda.get_device_capability(device)
    if choose_kernel(4, shape, device.type, capability, group) == "dense":
        return out * (inner + inner // group * 8)
    return out * (inner // 2 + inner // group * 4)


def quantise_weight(weight: torch.Tensor, bias: torch.Tensor | None, precision: Precision) -> Matrix:
    """Round a weight (out, in) to codes; to eight bits if its inputs do not divide into groups."""
    return (
        Int4Matrix.of(weight, bias)
        if precision == "int4" and _group_size(weight.shape[1])
        else Int8Matrix.of(weight, bias)
    )


class StoredCodes(NamedTuple):
    """A weight (out, in) as a checkpoint stores it.

    Attributes:
        packed: (out, in) int8 codes; or (out, in / 2) uint8, two four-bit codes each, the first in the lower half.
        scales: (out, groups), one for each run of inputs.
        zeros: (out, groups) the codes of 0; 0 for eight bits.
    """

    packed: torch.Tensor
    scales: torch.Tensor
    zeros: torch.Tensor

    @classmethod
    def of(cls, codes: torch.Tensor, scales: torch.Tensor, zeros: torch.Tensor) -> StoredCodes:
        """Return the stored form of codes (out, in): uint8 of four bits, or int8."""
        if codes.dtype is torch.uint8:
            codes = codes[:, ::2] | codes[:, 1::2] << 4
        return cls(codes.contiguous(), scales.contiguous(), zeros.contiguous())

    @property
    def bits(self) -> Literal[8, 4]:
        """Bits of a code."""
        return 8 if self.packed.dtype is torch.int8 else 4

    @property
    def numbers(self) -> torch.Tensor:
        """(out, in) unpacked codes."""
        if self.bits == 8:
            return self.packed
        return torch.stack([self.packed & 15, self.packed >> 4], dim=-1).flatten(1)

    @property
    def dense(self) -> torch.Tensor:
        """(out, in) weight in float32."""
        parts = self.numbers.float().unflatten(1, (self.scales.shape[1], -1))
        return parts.sub_(self.zeros[..., None]).mul_(self.scales[..., None]).flatten(1)  # type: ignore[no-any-return]

    @staticmethod
    def join(parts: Sequence[StoredCodes], bias: torch.Tensor | None, device: torch.device) -> Matrix:
        """Concatenate weights with equally many groups into one matrix on a device."""
        joined = StoredCodes(*(torch.cat(tensors).to(device) for tensors in zip(*parts, strict=True)))
        codes, scales = joined.numbers, joined.scales
        if joined.bits == 8:
            return Int8Matrix.from_codes(codes, scales[:, 0], bias)
        return Int4Matrix(codes, scales, joined.zeros, codes.shape[1] // scales.shape[1], bias)

    @staticmethod
    def nbytes(bits: int, shape: tuple[int, int], group: int, device: torch.device, dtype: torch.dtype) -> int:
        """Return the bytes of a checkpoint's codes kept as stored, with their scales; 0 if they cannot be kept.

        They can be kept if their product is as precise as the model's dtype, or as the 16 bits of a library's: int8 and
        int4 on a CPU, int4 of a bfloat16 model on a GPU.

        Args:
            bits: bits of a code.
            shape: (out, in) of the weight.
            group: inputs that share a scale and, for four bits, a zero; for eight bits all inputs, and the code of 0
                is 0.
            device: device of the product.
            dtype: dtype of the model.
        """
        (out, inner), on_cpu = shape, device.type == "cpu"
        if bits == 8:
            return out * (inner + 4) if on_cpu and group == inner else 0
        if bits != 4 or not (on_cpu or (device.type == "cuda" and dtype is torch.bfloat16)):
            return 0
        capability = (0, 0) if on_cpu else torch.cuda.get_device_capability(device)
        if choose_kernel(4, shape, device.type, capability, group) != "int4":
            return 0
        return out * (inner // 2 + inner // group * 4)
