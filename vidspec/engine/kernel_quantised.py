"""Products of few rows with codes of eight or four bits as Triton kernels that read each weight once.

A program multiplies 64 outputs with up to 32 rows. Codes become numbers of the rows' dtype without rounding, and are
multiplied by tensor cores into float32; scales are applied to the sums. Weights are the left factor, so a row is a
column of the product: its sums are taken in the same order whatever the number of rows. Inputs are split over programs
where outputs alone do not fill the device; the last program to arrive adds the parts in their order. Needs Triton and
compute capability 8.0; ``vidspec.engine.quantised`` checks before ``vidspec.engine.few_rows`` imports this.

Issued instructions can bound these kernels, so two codes take a shift and one logical instruction, which puts their
bits into the mantissas of two numbers. These are the codes plus a constant. A second product of the same rows, of ones
or of the codes' signs, takes the constant off the sums of at most 128 inputs, which float32 holds well: a tensor core
instruction for hundreds of weights instead of a subtraction for each two.

Codes stay in the registers of the thread that reads them. Words and rows are permuted by the same order of inputs, in
which a thread reads 16 bytes at a time.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from vidspec.engine.matrix import STEP

#: Outputs of a program, and the most of its rows. Two warps, or Triton would take the wider instructions of 9.0 and
#: 10.0, for which codes take a way through shared memory.
_TILE, _ROWS, _WARPS = 64, 32, 2
#: Stages of the copies into shared memory, and steps of 128 inputs from one wait for them to the next: of codes of four
#: bits for up to 8 rows if their number of steps is even, and of others. Measured on an H100: more rows take too many
#: registers for the first, and codes of eight bits twice as many bytes.
_QUICK, _USUAL = (2, 2), (3, 1)
#: Most registers of a thread where inputs are not split: five programs fit on a multiprocessor.
_REGISTERS = 200
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
    size = max(8, min(triton.next_power_of_2(count), _ROWS))
    blocks, tiles = triton.cdiv(count, size), triton.cdiv(outputs, _TILE)
    out = torch.empty(count, outputs, dtype=rows.dtype, device=rows.device)
    parts = arrived = out
    if splits > 1:
        parts = torch.empty(tiles * blocks * splits, size, _TILE, dtype=torch.float32, device=rows.device)
        arrived = _counters(rows.device)
    steps, eight = inner // STEP, scales.dtype is torch.float32
    multiple = 1 if eight or steps % _QUICK[1] else _QUICK[1]
    stages, together = _QUICK if multiple > 1 and size <= 8 else _USUAL
    share = multiple * triton.cdiv(steps // multiple, splits)
    shared = {"INNER": inner, "ROWS": size, "TILE": _TILE, "SPLITS": splits, "SHARE": share}
    shared |= {"STAGES": stages, "TOGETHER": together}
    shared |= {"HAS_BIAS": bias is not None, "HAS_RESIDUAL": residual is not None}
    added = out if bias is None else bias, out if residual is None else residual
    strides = rows.stride(0), out.stride(0) if residual is None else residual.stride(0)
    given = *added, out, parts, arrived, count, outputs, *strides
    grid = blocks, tiles, splits
    options = {"num_warps": _WARPS, "num_stages": stages, "maxnreg": _REGISTERS if splits == 1 else None}
    with torch.cuda.device_of(rows):
        if eight:
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
    SHARE: tl.constexpr,
    STAGES: tl.constexpr,
    TOGETHER: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    HAS_RESIDUAL: tl.constexpr,
):
    """Multiply a tile of outputs by a block of rows over one split of the inputs: codes of eight bits.

    Two codes at a time become two pairs of numbers, whose sums are the codes: BASE, which is 128 or 1024, plus the last
    seven bits; and -BASE, less 128 where the sign is set.
    """
    output = tl.program_id(1) * TILE + tl.arange(0, TILE)
    row, run, word = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.arange(0, 128), tl.arange(0, 32)
    known, given = (output < outputs)[:, None], (row < count)[:, None]
    total = tl.zeros([TILE, ROWS], tl.float32)
    DTYPE: tl.constexpr = rows.dtype.element_ty
    NARROW: tl.constexpr = rows.dtype.element_ty == tl.bfloat16
    BITS: tl.constexpr = 0x43004300 if NARROW else 0x64006400
    MINUS: tl.constexpr = BITS | 0x80008000
    scale = tl.load(scales + output, mask=output < outputs, other=0.0)
    last, sign = _masked(0x007F007F, scale), _masked(0x00800080, scale)
    first = tl.program_id(2) * SHARE
    end = tl.minimum(first + SHARE, INNER // 128)
    for some in tl.range(first // TOGETHER, end // TOGETHER, num_stages=STAGES):
        for one in tl.static_range(TOGETHER):
            step = some * TOGETHER + one
            codes = tl.load(words + output[:, None] * (INNER // 4) + (step * 32 + word)[None], mask=known, other=0)
            factor = tl.load(rows + row[:, None] * row_stride + (step * 128 + run)[None], mask=given, other=0.0)
            factor = factor.reshape(ROWS, 2, 4, 4, 4).permute(0, 1, 3, 2, 4).reshape(ROWS, 128)
            codes = codes.to(tl.uint32, bitcast=True).reshape(TILE, 2, 4, 4).permute(0, 1, 3, 2).reshape(TILE, 32)
            lasts = tl.join(_pair((codes & last) | BITS, DTYPE), _pair(((codes >> 8) & last) | BITS, DTYPE))
            signs = tl.join(_pair((codes & sign) | MINUS, DTYPE), _pair(((codes >> 8) & sign) | MINUS, DTYPE))
            left = tl.join(lasts, signs).permute(4, 0, 1, 3, 2).reshape(2 * TILE, 128)
            both = tl.dot(left, tl.trans(factor), input_precision="ieee")
            of_lasts, of_signs = both.reshape(2, TILE, ROWS).permute(1, 2, 0).split()
            total += of_lasts + of_signs
    total *= scale[:, None]
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
    SHARE: tl.constexpr,
    STAGES: tl.constexpr,
    TOGETHER: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    HAS_RESIDUAL: tl.constexpr,
    GROUP: tl.constexpr,
):
    """Multiply a tile of outputs by a block of rows over one split of the inputs: codes of four bits in groups.

    Two codes at a time become numbers, 16 plus the code: the first bits of the mantissa behind the exponent of 16.
    Scale and zero are one number of 32 bits, which Triton copies steps ahead like the codes as the loop has its stages.
    """
    output = tl.program_id(1) * TILE + tl.arange(0, TILE)
    row, run, word = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.arange(0, 128), tl.arange(0, 16)
    known, given = (output < outputs)[:, None], (row < count)[:, None]
    total = tl.zeros([TILE, ROWS], tl.float32)
    DTYPE: tl.constexpr = rows.dtype.element_ty
    NARROW: tl.constexpr = rows.dtype.element_ty == tl.bfloat16
    BITS: tl.constexpr = 0x41804180 if NARROW else 0x4C004C00
    FIRST: tl.constexpr = 3 if NARROW else 6  # the lowest of a code's bits
    level = tl.load(levels + output, mask=output < outputs, other=0)
    code = _masked(0x000F000F << FIRST, (level & -32).to(tl.float32, bitcast=True))
    ones = tl.full([TILE, 32], 1.0, DTYPE)
    RUNS: tl.constexpr = GROUP // 32 if GROUP < 128 else 4
    first = tl.program_id(2) * SHARE
    end = tl.minimum(first + SHARE, INNER // 128)
    for some in tl.range(first // TOGETHER, end // TOGETHER, num_stages=STAGES):
        for one in tl.static_range(TOGETHER):
            step = some * TOGETHER + one
            codes = tl.load(words + output[:, None] * (INNER // 8) + (step * 16 + word)[None], mask=known, other=0)
            factor = tl.load(rows + row[:, None] * row_stride + (step * 128 + run)[None], mask=given, other=0.0)
            codes = codes.to(tl.uint32, bitcast=True).reshape(TILE, 4, 2, 2).permute(0, 2, 1, 3).reshape(TILE, 16)
            factor = factor.reshape(ROWS, 2, 2, 4, 2, 4).permute(0, 4, 3, 5, 2, 1).reshape(ROWS, 32, 2, 2)
            front, back = factor.split()
            for place in tl.static_range(4):
                if place % RUNS == 0:
                    group = (step * 128 + place * 32) // GROUP * outputs + output
                    level = tl.load(levels + group, mask=output < outputs, other=0)
                    sums = tl.zeros([2 * TILE, ROWS], tl.float32)
                early, late = (front if place < 2 else back).split()
                right = tl.trans(early if place % 2 == 0 else late)
                left = tl.join(_pair((_moved(codes, place, FIRST) & code) | BITS, DTYPE).reshape(TILE, 32), ones)
                left = left.permute(2, 0, 1).reshape(2 * TILE, 32)
                sums = tl.dot(left, right, sums, input_precision="ieee")
                if place % RUNS == RUNS - 1:
                    total += _scaled(sums, level, ROWS, TILE)
    added = bias, residual, out, residual_stride
    _finish(total, added, parts, arrived, count, outputs, ROWS, TILE, SPLITS, HAS_BIAS, HAS_RESIDUAL)


@triton.jit  # type: ignore[untyped-decorator]
def _moved(codes, PLACE: tl.constexpr, FIRST: tl.constexpr):  # type: ignore[no-untyped-def]
    """Return words whose two codes at a place have their lowest bits at FIRST."""
    if PLACE == 3:  # bits of its code are the first of the other half
        moved = (codes >> (15 - FIRST)) | (codes << (17 + FIRST))
    elif 4 * PLACE + 3 < FIRST:
        moved = codes << (FIRST - 3)
    else:
        moved = codes >> (4 * PLACE + 3 - FIRST)
    return moved


@triton.jit  # type: ignore[untyped-decorator]
def _scaled(sums, level, ROWS: tl.constexpr, TILE: tl.constexpr):  # type: ignore[no-untyped-def]
    """Return the sums (TILE, ROWS) of a group by its scale and zero, from those of codes and of ones."""
    scale, zero = (level & -32).to(tl.float32, bitcast=True), (level & 31).to(tl.float32) + 16.0
    of_codes, of_ones = sums.reshape(2, TILE, ROWS).permute(1, 2, 0).split()
    return (of_codes - of_ones * zero[:, None]) * scale[:, None]


@triton.jit  # type: ignore[untyped-decorator]
def _masked(MASK: tl.constexpr, scale):  # type: ignore[no-untyped-def]
    """Return a mask of words (TILE, 1) that the compiler does not know: one instruction has only one constant."""
    return ((scale * 0.0).to(tl.int32) + MASK).to(tl.uint32, bitcast=True)[:, None]


@triton.jit  # type: ignore[untyped-decorator]
def _pair(both, DTYPE: tl.constexpr):  # type: ignore[no-untyped-def]
    """Return the lower and upper halves of words (TILE, n) as numbers (TILE, n, 2)."""
    low, high = (both & 0xFFFF).to(tl.int16), (both >> 16).to(tl.int16)
    return tl.join(low.to(DTYPE, bitcast=True), high.to(DTYPE, bitcast=True))


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
