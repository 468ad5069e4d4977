"""Quantised weights of a GPU: kernels that read the codes once for few rows, dequantised blocks for prompts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, TypeAlias

import torch
from torch.nn import functional as F

from vidspec.engine.matrix import Matrix, row_blocks

#: Most rows of the kernels. Beyond, such as for trees of many clips, reading the rows again for each tile of outputs is
#: predicted to take longer than writing and reading dequantised weights: at 512 rows on an H100 twice as long for int8.
FEW_ROWS = 256
#: Numbers of a weight that are dequantised at a time, at up to 10 bytes each.
_BLOCK = 2**23
#: Signature of a kernel, see :func:`~vidspec.engine.kernel_quantised.few_row_product`.
FewRowProduct: TypeAlias = Callable[
    [torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor | None, torch.Tensor | None], torch.Tensor
]


def load_product() -> FewRowProduct:
    """Return the product of few rows; imports Triton."""
    from vidspec.engine.kernel_quantised import few_row_product

    return few_row_product


class KernelMatrix(Matrix):
    """Codes packed for the kernels of few rows, of bfloat16 or float16 models.

    Args:
        words: (out, in * bits / 32) int32, see :func:`pack_words`.
        scales: (out,) float32 for eight bits; (groups, out) int32 for four, see :func:`pack_levels`.
        bias: (out,), or None.
    """

    def __init__(self, words: torch.Tensor, scales: torch.Tensor, bias: torch.Tensor | None = None) -> None:
        self._bits: Literal[8, 4] = 8 if scales.dtype is torch.float32 else 4
        self.precision = "int8" if self._bits == 8 else "int4"
        self.shape, self.bias = (len(words), words.shape[1] * 32 // self._bits), bias
        self._words, self._scales = words, scales
        self.nbytes = words.nbytes + scales.nbytes
        self._few_rows = load_product()

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        return self._product(rows, None)

    def add(self, residual: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        return self._product(rows, residual)

    def _product(self, rows: torch.Tensor, residual: torch.Tensor | None) -> torch.Tensor:
        if len(rows) <= FEW_ROWS and rows.dtype is not torch.float32:
            return self._few_rows(rows, self._words, self._scales, self.bias, residual)
        out = blocked_product(rows, self._dequantise, self.shape, self.bias)
        return out if residual is None else out.add_(residual)

    def _dequantise(self, outputs: slice, dtype: torch.dtype) -> torch.Tensor:
        """Return the weights of a run of outputs (n, in)."""
        codes = unpack_words(self._words[outputs], self._bits)
        if self._bits == 8:
            return (codes * self._scales[outputs, None]).to(dtype)
        scales, zeros = unpack_levels(self._scales[:, outputs].t())
        parts = codes.float().unflatten(1, (len(self._scales), -1))
        weight: torch.Tensor = parts.sub_(zeros[..., None]).mul_(scales[..., None])
        return weight.to(dtype).flatten(1)

    def dense(self, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        weight = torch.empty(self.shape, dtype=dtype, device=device)
        for outputs in row_blocks(self.shape, _BLOCK):
            weight[outputs] = self._dequantise(outputs, dtype).to(device)
        return weight


def blocked_product(
    rows: torch.Tensor,
    dequantise: Callable[[slice, torch.dtype], torch.Tensor],
    shape: tuple[int, int],
    bias: torch.Tensor | None,
) -> torch.Tensor:
    """Return the product of rows (R, in) with a weight that is dequantised a block of outputs at a time.

    Args:
        rows: of any dtype; weights are dequantised to it.
        dequantise: returns the weights of a run of outputs.
        shape: (out, in) of the weight.
        bias: (out,), or None.
    """
    blocks = list(row_blocks(shape, _BLOCK))
    if len(blocks) == 1:
        return F.linear(rows, dequantise(blocks[0], rows.dtype), bias)
    out = rows.new_empty(len(rows), shape[0])
    for outputs in blocks:
        torch.mm(rows, dequantise(outputs, rows.dtype).t(), out=out[:, outputs])
    return out if bias is None else out.add_(bias)


def pack_words(codes: torch.Tensor, bits: Literal[8, 4]) -> torch.Tensor:
    """Return codes (out, in), int8 or uint8 below 16, as (out, in * bits / 32) int32 words.

    A word of 8 bits has four neighbours, the second and third exchanged: the first two are in its halves' lower bytes.
    A word of 4 bits has two neighbours, in its lower and upper half, of each of the four runs of 32 in 128 inputs; all
    is rotated by three bits, to where the kernels put codes in bfloat16.
    """
    if bits == 8:
        return _exchanged(codes).view(torch.int32)
    runs: torch.Tensor = codes.unflatten(1, (-1, 4, 16, 2))  # out, step, run, word, half
    first = runs[:, :, 0] | runs[:, :, 1] << 4
    second = runs[:, :, 2] | runs[:, :, 3] << 4
    return _rotated(torch.stack([first, second], dim=-1).flatten(2).view(torch.int32).flatten(1), 3)


def unpack_words(words: torch.Tensor, bits: Literal[8, 4]) -> torch.Tensor:
    """Return the codes of :func:`pack_words`, (out, in) int8 or uint8."""
    if bits == 8:
        return _exchanged(words.view(torch.int8))
    halves = _rotated(words, 29).view(torch.uint8).unflatten(1, (-1, 16, 2, 2))  # out, step, word, half, pair of runs
    runs = torch.stack([halves & 15, halves >> 4], dim=-1).permute(0, 1, 4, 5, 2, 3)
    return runs.flatten(1)


def _exchanged(codes: torch.Tensor) -> torch.Tensor:
    """Return codes (out, in) with the second and third of each four exchanged."""
    exchanged: torch.Tensor = codes.unflatten(1, (-1, 2, 2)).transpose(2, 3)
    return exchanged.flatten(1)


def _rotated(words: torch.Tensor, bits: int) -> torch.Tensor:
    """Return int32 words rotated to the left."""
    return words << bits | words >> 32 - bits & (1 << bits) - 1


def round_scales(scales: torch.Tensor) -> torch.Tensor:
    """Return scales rounded to what :func:`pack_levels` keeps of a float32: all but its last five bits."""
    return (scales.float().contiguous().view(torch.int32) + 16 & -32).view(torch.float32)


def pack_levels(scales: torch.Tensor, zeros: torch.Tensor) -> torch.Tensor:
    """Return scales and the codes of 0, from 0 to 16, as int32: a float32 whose last five bits are the code.

    One number for both, as wide as what a GPU copies into shared memory ahead of the products that need it.

    Args:
        scales: of any dtype and shape; rounded by :func:`round_scales`, exact of 16 bits.
        zeros: whole numbers of that shape.
    """
    return round_scales(scales).view(torch.int32) | zeros.to(torch.int32)


def unpack_levels(levels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the scales, float32, and the zeros, int32, of :func:`pack_levels`."""
    return (levels & -32).contiguous().view(torch.float32), levels & 31
