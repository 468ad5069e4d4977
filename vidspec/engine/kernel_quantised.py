"""Products of few rows with codes of eight or four bits as Triton kernels that read each weight once.

A program multiplies 64 outputs with up to 32 rows. Codes become numbers of the rows' dtype without rounding, and are
multiplied by tensor cores into float32; scales are applied to the sums. Weights are the left factor, so a row is a
column of the product: its sums are taken in the same order whatever the number of rows. Inputs are split over programs
where outputs alone do not fill the device; the last program to arrive adds the parts in their order. Needs Triton and
compute capability 8.0; ``vidspec.engine.quantised`` checks before ``vidspec.engine.few_rows`` imports this.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from vidspec.engine.matrix import STEP

__all__ = ["few_row_product", "split_count"]

#: Outputs of a program, and the most of its rows. Two warps, or Triton would take the wider instructions of 9.0 and
#: 10.0, for which codes take a way through shared memory.
_TILE, _ROWS, _WARPS = 64, 32, 2
#: Programs of each multiprocessor that inputs are split for, fewest steps of a split, and most splits.
_PROGRAMS, _STEPS, _SPLITS = 4, 4, 8
#: Counters of programs that share outputs, by device and stream: zero, and left so by every launch. There are more
#: than tiles of a split weight times blocks of its rows; captured passes keep their addresses.
_ARRIVED: dict[tuple[torch.device, int], torch.Tensor] = {}
_COUNTERS = 2**14


def split_count(outputs: int, inner: int, processors: int) -> int:
    """Return the parts that the inputs of a weight are split into; it does not depend on the number of rows."""
    wanted = -(-_PROGRAMS * processors // -(-outputs // _TILE))
    return max(1, min(wanted, inner // STEP // _STEPS, _SPLITS))


def few_row_product(
    rows: torch.Tensor,
    words: torch.Tensor,
    scales: torch.Tensor,
    bias: torch.Tensor | None,
    residual: torch.Tensor | None,
) -> torch.Tensor:
    """Return the product of rows with a quantised weight, plus bias and residual, rounded once.

    Args:
        rows: (R, in) bfloat16 or float16, numbers of a row dense.
        words: (out, in * bits / 32) int32, see :func:`~vidspec.engine.few_rows.pack_words`.
        scales: (out,) float32 for eight bits; (groups, out) int32 for four, see
            :func:`~vidspec.engine.few_rows.pack_levels`, groups of 32, 64 or a multiple of 128 inputs.
        bias: (out,), or None.
        residual: (R, out), numbers of a row dense; or None.

    Returns:
        (R, out) in the dtype of the rows.
    """
    (count, inner), outputs = rows.shape, len(words)
    on_gpu = rows.device.type == "cuda"
    processors = torch.cuda.get_device_properties(rows.device).multi_processor_count if on_gpu else 132
    splits = split_count(outputs, inner, processors)
    size = 16 if count <= 16 else _ROWS
    blocks, tiles = triton.cdiv(count, size), triton.cdiv(outputs, _TILE)
    out = torch.empty(count, outputs, dtype=rows.dtype, device=rows.device)
    parts = arrived = out
    if splits > 1:
        parts = torch.empty(tiles * blocks * splits, size, _TILE, dtype=torch.float32, device=rows.device)
        arrived = _counters(rows.device)
    shared = {"INNER": inner, "ROWS": size, "TILE": _TILE, "SPLITS": splits}
    shared |= {"HAS_BIAS": bias is not None, "HAS_RESIDUAL": residual is not None}
    added = out if bias is None else bias, out if residual is None else residual
    strides = rows.stride(0), out.stride(0) if residual is None else residual.stride(0)
    given = *added, out, parts, arrived, count, outputs, *strides
    grid, options = (blocks, tiles, splits), {"num_warps": _WARPS, "num_stages": 4}
    with torch.cuda.device_of(rows):
        if scales.dtype is torch.float32:
            _product8[grid](rows, words, scales, *given, **shared, **options)
        else:
            _product4[grid](rows, words, scales, *given, **shared, GROUP=inner // len(scales), **options)
    return out


def _counters(device: torch.device) -> torch.Tensor:
    stream = torch.cuda.current_stream(device).cuda_stream if device.type == "cuda" else 0
    if (device, stream) not in _ARRIVED:
        _ARRIVED[device, stream] = torch.zeros(_COUNTERS, dtype=torch.int32, device=device)
    return _ARRIVED[device, stream]


@triton.jit  # type: ignore[untyped-decorator]
def _product8(  # type: ignore[no-untyped-def]
    rows,
    words,
    scales,
    bias,
    residual,
    out,
    parts,
    arrived,
    count,
    outputs,
    row_stride,
    residual_stride,
    INNER: tl.constexpr,
    ROWS: tl.constexpr,
    TILE: tl.constexpr,
    SPLITS: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    HAS_RESIDUAL: tl.constexpr,
):
    """Multiply a tile of outputs by a block of rows over one split of the inputs: codes of eight bits, plus 128."""
    output = tl.program_id(1) * TILE + tl.arange(0, TILE)
    row, run = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.arange(0, 32)
    known, given = (output < outputs)[:, None], (row < count)[:, None]
    total = tl.zeros([TILE, ROWS], tl.float32)
    STEPS: tl.constexpr = INNER // 128
    SHARE: tl.constexpr = (STEPS + SPLITS - 1) // SPLITS
    first = tl.program_id(2) * SHARE
    for step in range(first, tl.minimum(first + SHARE, STEPS)):
        word = tl.load(words + output[:, None] * (INNER // 4) + (step * 32 + run)[None], mask=known, other=0)
        for place in tl.static_range(4):
            inner = step * 128 + place * 32 + run
            some = tl.load(rows + row[:, None] * row_stride + inner[None], mask=given, other=0.0)
            # 2 ** 23 plus the byte, as float32.
            code = (((word >> (8 * place)) & 0xFF) | 0x4B000000).to(tl.float32, bitcast=True) - 8388736.0
            total = tl.dot(code.to(some.dtype), tl.trans(some), total, input_precision="ieee")
    total *= tl.load(scales + output, mask=output < outputs, other=0.0)[:, None]
    added = bias, residual, out, residual_stride
    _finish(total, added, parts, arrived, count, outputs, ROWS, TILE, SPLITS, HAS_BIAS, HAS_RESIDUAL)


@triton.jit  # type: ignore[untyped-decorator]
def _product4(  # type: ignore[no-untyped-def]
    rows,
    words,
    levels,
    bias,
    residual,
    out,
    parts,
    arrived,
    count,
    outputs,
    row_stride,
    residual_stride,
    INNER: tl.constexpr,
    ROWS: tl.constexpr,
    TILE: tl.constexpr,
    SPLITS: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    HAS_RESIDUAL: tl.constexpr,
    GROUP: tl.constexpr,
):
    """Multiply a tile of outputs by a block of rows over one split of the inputs: codes of four bits in groups.

    Two codes at a time become numbers without a conversion: they are the last bits of numbers between BASE and
    BASE + 32, where those of the dtype are whole. The zero is subtracted before, and BASE + 16 after. Scale and zero
    are one number of 32 bits, which Triton copies steps ahead like the codes: narrower ones were loaded in their step,
    and the products waited for them.
    """
    output = tl.program_id(1) * TILE + tl.arange(0, TILE)
    row, run, pair = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.arange(0, 32), tl.arange(0, 16)
    known, given = (output < outputs)[:, None], (row < count)[:, None]
    total = tl.zeros([TILE, ROWS], tl.float32)
    NARROW: tl.constexpr = rows.dtype.element_ty == tl.bfloat16
    BITS: tl.constexpr = 0x43004300 if NARROW else 0x64006400
    BASE: tl.constexpr = 128.0 if NARROW else 1024.0
    STEPS: tl.constexpr = INNER // 128
    SHARE: tl.constexpr = (STEPS + SPLITS - 1) // SPLITS
    RUNS: tl.constexpr = GROUP // 32 if GROUP < 128 else 4
    first = tl.program_id(2) * SHARE
    for step in range(first, tl.minimum(first + SHARE, STEPS)):
        word = tl.load(words + output[:, None] * (INNER // 8) + (step * 16 + pair)[None], mask=known, other=0)
        for place in tl.static_range(4):
            inner = step * 128 + place * 32 + run
            if place % RUNS == 0:
                group = (step * 128 + place * 32) // GROUP * outputs + output
                level = tl.load(levels + group, mask=output < outputs, other=0)
                scale = (level & -32).to(tl.float32, bitcast=True)
                raised = ((16 - (level & 31)) * 0x00010001 + BITS)[:, None]
                part = tl.zeros([TILE, ROWS], tl.float32)
            some = tl.load(rows + row[:, None] * row_stride + inner[None], mask=given, other=0.0)
            both = ((word >> (4 * place)) & 0x000F000F) + raised
            low = (both & 0xFFFF).to(tl.int16).to(some.dtype, bitcast=True) - (BASE + 16)
            high = (both >> 16).to(tl.int16).to(some.dtype, bitcast=True) - (BASE + 16)
            code = tl.join(low, high).reshape(TILE, 32)
            part = tl.dot(code, tl.trans(some), part, input_precision="ieee")
            if place % RUNS == RUNS - 1:
                total += part * scale[:, None]
    added = bias, residual, out, residual_stride
    _finish(total, added, parts, arrived, count, outputs, ROWS, TILE, SPLITS, HAS_BIAS, HAS_RESIDUAL)


@triton.jit  # type: ignore[untyped-decorator]
def _finish(  # type: ignore[no-untyped-def]
    total,
    added,
    parts,
    arrived,
    count,
    outputs,
    ROWS: tl.constexpr,
    TILE: tl.constexpr,
    SPLITS: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    HAS_RESIDUAL: tl.constexpr,
):
    """Write a tile; with several splits, the last program to arrive adds all their parts in order and writes."""
    if SPLITS == 1:
        _write(total, added, count, outputs, ROWS, TILE, HAS_BIAS, HAS_RESIDUAL)
    else:
        place = tl.program_id(1) * tl.num_programs(0) + tl.program_id(0)
        own = tl.arange(0, ROWS)[None] * TILE + tl.arange(0, TILE)[:, None]
        given = (tl.program_id(0) * ROWS + tl.arange(0, ROWS) < count)[None] & (tl.arange(0, TILE) >= 0)[:, None]
        base = parts + place * (SPLITS * ROWS * TILE) + own
        tl.store(base + tl.program_id(2) * (ROWS * TILE), total, mask=given)
        tl.debug_barrier()  # all of this program's part is written before it counts as arrived
        before = tl.atomic_add(arrived + place, 1, sem="acq_rel")
        if before == SPLITS - 1:
            tl.store(arrived + place, 0)
            summed = tl.zeros([TILE, ROWS], tl.float32)
            for split in tl.static_range(SPLITS):  # all loads at once, not one after the other
                part = tl.load(base + split * (ROWS * TILE), mask=given, other=0.0, cache_modifier=".cg")
                summed += part
            _write(summed, added, count, outputs, ROWS, TILE, HAS_BIAS, HAS_RESIDUAL)


@triton.jit  # type: ignore[untyped-decorator]
def _write(  # type: ignore[no-untyped-def]
    total,
    added,
    count,
    outputs,
    ROWS: tl.constexpr,
    TILE: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    HAS_RESIDUAL: tl.constexpr,
):
    """Add bias and residual to a tile of sums and store it, rounded."""
    bias, residual, out, residual_stride = added
    output = tl.program_id(1) * TILE + tl.arange(0, TILE)
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    inside = (output < outputs)[:, None] & (row < count)[None]
    if HAS_BIAS:
        total += tl.load(bias + output, mask=output < outputs, other=0.0).to(tl.float32)[:, None]
    if HAS_RESIDUAL:
        place = row[None] * residual_stride + output[:, None]
        total += tl.load(residual + place, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + row[None] * outputs + output[:, None], total.to(out.dtype.element_ty), mask=inside)
