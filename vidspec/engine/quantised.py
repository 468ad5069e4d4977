"""Weights as integers of eight or four bits: on torch's own operators on a CPU, on our kernels on a GPU.

A weight is ``(code - zero) * scale``, with a scale for each output (:class:`Int8Matrix`) or for each group of inputs
of each output (:class:`Int4Matrix`). On a CPU rows are quantised one by one or not at all, so that a row's result does
not depend on other clips' rows in the pass. A checkpoint's eight-bit codes
(:class:`~vidspec.engine.stored_codes.StoredCodes`) give the float32 product there; four-bit products round rows, scales
and zeros to bfloat16. On a GPU (:class:`~vidspec.engine.few_rows.KernelMatrix`) rows are never quantised, and four-bit
zeros are whole.
"""

from __future__ import annotations

import platform
import warnings
from functools import cache
from typing import Literal

import torch

from vidspec.engine.block_kernels import CAPABILITY, runs_triton
from vidspec.engine.few_rows import KernelMatrix, blocked_product, pack_levels, pack_words, round_scales
from vidspec.engine.huge_pages import move_to_huge_pages
from vidspec.engine.matrix import STEP, X86, Matrix, Precision, row_blocks

#: Kernel of a product with integer codes: on a CPU FBGEMM's or oneDNN's int8 product, torch's of float32 rows and int8
#: codes or its int4 product; on a GPU ours; else a float product with the weight dequantised at each call.
QuantisedKernel = Literal["fbgemm", "onednn", "int8", "int4", "triton", "dense"]
#: Inputs that share a scale in a four-bit weight: the first that divides them.
_GROUPS = (64, 32)
#: Numbers of a weight that are rounded or packed at a time; temporaries take 12 bytes each.
BLOCK = 2**22
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
    if device == "cuda":
        grouped = bits == 8 or group in (32, 64) or (group % STEP == 0 and group > 0 and inner % group == 0)
        return "triton" if capability >= CAPABILITY and inner % STEP == 0 and grouped else "dense"
    if bits == 8:
        return _cpu_kernel() if device == "cpu" else "dense"
    grouped = group in (32, 64, 128, 256) and inner % group == 0 and out % 16 == 0
    return "int4" if grouped and device == "cpu" else "dense"


def kernel_on(bits: Literal[8, 4], shape: tuple[int, int], device: torch.device, group: int = 0) -> QuantisedKernel:
    """Return the kernel for a weight on this device; none of ours without Triton or with ROCm."""
    capability = torch.cuda.get_device_capability(device) if runs_triton(device) else (0, 0)
    return choose_kernel(bits, shape, device.type, capability, group)


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
    """Eight-bit codes with a scale for each output, for a CPU or a GPU without our kernels.

    Rows are quantised too, each by its largest number.

    Args:
        codes: (out, in) int8, from -127 to 127.
        scales: (out,).
        bias: (out,), or None.
        rounded: True to round rows to one digit of seven or eight bits; else rows are split into ``_DIGITS`` digits, or
            kept, and codes may also be -128.
    """

    precision = "int8"

    def __init__(
        self, codes: torch.Tensor, scales: torch.Tensor, bias: torch.Tensor | None = None, *, rounded: bool = True
    ) -> None:
        self.shape, self.bias, self._scales = (codes.shape[0], codes.shape[1]), bias, scales.float().clone()
        self.kernel, self._codes, self._zero = kernel_on(8, self.shape, codes.device), codes.contiguous(), 0
        self._digits = 1 if rounded else _DIGITS
        if self.kernel == "triton":
            self.kernel = "dense"
        elif not rounded and self.kernel == "dense" and codes.device.type == "cpu":
            self.kernel = "int8"
        self.nbytes = codes.nbytes + self._scales.nbytes
        if self.kernel in ("onednn", "fbgemm"):
            self._zero = _zero_point()
        self._bound = 63 if self._zero == 64 else 127
        if self.kernel in ("onednn", "fbgemm"):  # a row's largest number maps to the bound
            self._scales /= self._bound
        if self.kernel == "onednn":
            self._codes = torch.ops.onednn.qlinear_prepack(self._codes, None)
            move_to_huge_pages(torch.ops.mkldnn.data_ptr(self._codes), codes.nbytes)
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
        for rows in row_blocks(weight.shape, BLOCK):
            codes[rows], scales[rows] = _round_outputs(weight[rows])
        return cls(codes, scales, bias)

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        if self.kernel == "dense":
            return blocked_product(rows, self._dequantise, self.shape, self.bias)
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

    def _dequantise(self, outputs: slice, dtype: torch.dtype) -> torch.Tensor:
        return (self._codes[outputs] * self._scales[outputs, None]).to(dtype)

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
        unsigned = numbers.round().add_(self._zero).to(torch.uint8)
        return _qlinear(unsigned, self._zero, self._codes, self._scales, self._zeros)


class Int4Matrix(Matrix):
    """Four-bit codes with a scale and a zero for each group of inputs, for a CPU or a GPU without our kernels.

    Args:
        codes: (out, in) uint8, from 0 to 15.
        scales: (out, in / group).
        zeros: (out, in / group), the code of 0, which may be fractional.
        group: inputs that share a scale.
        bias: (out,), or None.
    """

    precision = "int4"

    def __init__(
        self,
        codes: torch.Tensor,
        scales: torch.Tensor,
        zeros: torch.Tensor,
        group: int,
        bias: torch.Tensor | None = None,
    ) -> None:
        self.shape, self.bias, self._group = (codes.shape[0], codes.shape[1]), bias, group
        self.kernel = "int4" if kernel_on(4, self.shape, codes.device, group) == "int4" else "dense"
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
        for rows in row_blocks(weight.shape, BLOCK):
            codes[rows], scales[rows], zeros[rows] = _round_groups(weight[rows], group)
        return cls(codes, scales, zeros, group, bias)

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        if self.kernel == "dense":
            return blocked_product(rows, self._dequantise, self.shape, self.bias)
        given = rows.to(self._pairs.dtype).contiguous()
        out = torch.ops.aten._weight_int4pack_mm_for_cpu(given, self._codes, self._group, self._pairs).to(rows.dtype)
        return out if self.bias is None else out.add_(self.bias)  # type: ignore[no-any-return]

    def _dequantise(self, outputs: slice, dtype: torch.dtype) -> torch.Tensor:
        scales, middle = self._pairs[outputs].unbind(-1)
        parts = (self._codes[outputs].view(*scales.shape, self._group).float() - 8) * scales[..., None]
        return parts.add_(middle[..., None]).flatten(1).to(dtype)


def _pack_int4(codes: torch.Tensor) -> torch.Tensor:
    """Return the codes in the layout of torch's int4 product on a CPU."""
    pack = torch.ops.aten._convert_weight_to_int4pack_for_cpu
    return torch.cat([pack(codes[rows].int(), 2) for rows in row_blocks(codes.shape, BLOCK)])


def _round_outputs(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the int8 codes and the scales (out,) of a weight (out, in)."""
    weight = weight.float()
    scales = torch.linalg.vector_norm(weight, torch.inf, 1).clamp_min_(1e-12) / 127
    return weight.div(scales[:, None]).round_().to(torch.int8), scales


def _round_groups(
    weight: torch.Tensor, group: int, *, whole: bool = False
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the codes from 0 to 15, the scales and the zeros (out, in / group) of a weight (out, in).

    Args:
        weight: (out, in).
        group: inputs that share a scale.
        whole: True for zeros from 0 to 15 and scales that the kernels keep; False for float32 and fractional ones.
    """
    parts = weight.float().unflatten(1, (-1, group))
    least, largest = parts.amin(-1), parts.amax(-1)
    if whole:
        least, largest = least.clamp_(max=0), largest.clamp_(min=0)
    scales = ((largest - least) / 15).clamp_min_(1e-12)
    if whole:
        scales = round_scales(scales)
    zeros = -least / scales
    if whole:
        zeros = zeros.round_().clamp_(0, 15)
    numbers = parts.div(scales[..., None]).add_(zeros[..., None])
    return numbers.round_().clamp_(0, 15).to(torch.uint8).flatten(1), scales, zeros


def _group_size(inner: int) -> int:
    return next((group for group in _GROUPS if inner % group == 0), 0)


def quantised_bytes(shape: tuple[int, int], precision: Precision, device: torch.device) -> int:
    """Return the bytes of a weight (out, in) quantised by :func:`quantise_weight`, scales included."""
    (out, inner), group = shape, _group_size(shape[1])
    if precision == "int8" or not group:
        return out * (inner + 4)
    return int4_bytes(shape, group, kernel_on(4, shape, device, group))


def int4_bytes(shape: tuple[int, int], group: int, kernel: QuantisedKernel) -> int:
    """Return the bytes of a weight (out, in) in four bits, with scales and zeros."""
    (out, inner), groups = shape, shape[1] // group
    if kernel == "dense":
        return out * (inner + groups * 8)
    return out * (inner // 2 + groups * 4)


def quantise_weight(weight: torch.Tensor, bias: torch.Tensor | None, precision: Precision) -> Matrix:
    """Round a weight (out, in) to codes; to eight bits if its inputs do not divide into groups."""
    shape, group = (weight.shape[0], weight.shape[1]), _group_size(weight.shape[1]) if precision == "int4" else 0
    if kernel_on(4 if group else 8, shape, weight.device, group) != "triton":
        return Int4Matrix.of(weight, bias) if group else Int8Matrix.of(weight, bias)
    words = torch.empty(
        len(weight), weight.shape[1] * (4 if group else 8) // 32, dtype=torch.int32, device=weight.device
    )
    if not group:
        scales = torch.empty(len(weight), device=weight.device)
        for rows in row_blocks(weight.shape, BLOCK):
            codes, scales[rows] = _round_outputs(weight[rows])
            words[rows] = pack_words(codes, 8)
        return KernelMatrix(words, scales, bias)
    levels = torch.empty(weight.shape[1] // group, len(weight), dtype=torch.int32, device=weight.device)
    for rows in row_blocks(weight.shape, BLOCK):
        codes, scales, zeros = _round_groups(weight[rows], group, whole=True)
        words[rows], levels[:, rows] = pack_words(codes, 4), pack_levels(scales, zeros).t()
    return KernelMatrix(words, levels, bias)
