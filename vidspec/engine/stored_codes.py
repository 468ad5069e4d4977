"""Weights as a quantised checkpoint stores them, and the matrices of their codes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

import torch

from vidspec.engine.few_rows import KernelMatrix, pack_levels, pack_words
from vidspec.engine.matrix import Matrix, row_blocks
from vidspec.engine.quantised import BLOCK, Int4Matrix, Int8Matrix, int4_bytes, kernel_on


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
    def shape(self) -> tuple[int, int]:
        """(out, in)."""
        return len(self.packed), self.packed.shape[1] * 8 // self.bits

    @property
    def numbers(self) -> torch.Tensor:
        """(out, in) unpacked codes."""
        if self.bits == 8:
            return self.packed
        return torch.stack([self.packed & 15, self.packed >> 4], dim=-1).flatten(1)

    def part(self, outputs: slice) -> StoredCodes:
        """Return the codes of a run of outputs."""
        return StoredCodes(self.packed[outputs], self.scales[outputs], self.zeros[outputs])

    @property
    def dense(self) -> torch.Tensor:
        """(out, in) weight in float32."""
        weight = torch.empty(self.shape, device=self.packed.device)
        for outputs in row_blocks(self.shape, BLOCK):
            part = self.part(outputs)
            numbers = part.numbers.unflatten(1, (self.scales.shape[1], -1))
            into = weight[outputs].view(numbers.shape)
            torch.sub(numbers, part.zeros[..., None], out=into).mul_(part.scales[..., None])
        return weight

    @staticmethod
    def join(parts: Sequence[StoredCodes], bias: torch.Tensor | None, device: torch.device) -> Matrix:
        """Concatenate weights with equally many groups into one matrix on a device."""
        joined = StoredCodes(*(torch.cat(tensors).to(device) for tensors in zip(*parts, strict=True)))
        group = joined.shape[1] // joined.scales.shape[1]
        if kernel_on(joined.bits, joined.shape, device, group) == "triton":
            return joined._kernel_matrix(bias)
        if joined.bits == 8:
            return Int8Matrix.from_codes(joined.numbers, joined.scales[:, 0], bias)
        return Int4Matrix(joined.numbers, joined.scales, joined.zeros, group, bias)

    def _kernel_matrix(self, bias: torch.Tensor | None) -> KernelMatrix:
        words = torch.empty(
            len(self.packed), self.shape[1] * self.bits // 32, dtype=torch.int32, device=self.packed.device
        )
        for outputs in row_blocks(self.shape, BLOCK):
            words[outputs] = pack_words(self.part(outputs).numbers, self.bits)
        if self.bits == 8:
            return KernelMatrix(words, self.scales[:, 0].float().contiguous(), bias)
        return KernelMatrix(words, pack_levels(self.scales, self.zeros).t().contiguous(), bias)

    @staticmethod
    def nbytes(bits: int, shape: tuple[int, int], group: int, device: torch.device, dtype: torch.dtype) -> int:
        """Return the bytes of a checkpoint's codes kept as stored, with their scales; 0 if they cannot be kept.

        They can be kept if their product is as precise as the model's dtype, or as the 16 bits of a library's: int8 and
        int4 on a CPU, and of a bfloat16 or float16 model on a GPU.

        Args:
            bits: bits of a code.
            shape: (out, in) of the weight.
            group: inputs that share a scale and, for four bits, a zero; for eight bits all inputs, and the code of 0
                is 0.
            device: device of the product.
            dtype: dtype of the model.
        """
        (out, inner), on_cpu = shape, device.type == "cpu"
        if bits not in (8, 4) or (bits == 8 and group != inner) or not (on_cpu or dtype is not torch.float32):
            return 0
        kernel = kernel_on(8 if bits == 8 else 4, shape, device, group)
        if bits == 8:
            return out * (inner + 4) if on_cpu or kernel == "triton" else 0
        return 0 if kernel == "dense" else int4_bytes(shape, group, kernel)
