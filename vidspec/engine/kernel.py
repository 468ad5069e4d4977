"""Attention of few rows over the slab as two Triton kernels: keys are split over the device, the parts merged.

All that differs between sequences is read on the device, a column of numbers for each row of the pass, so a launch does
not depend on lengths and can be captured in a graph. Needs Triton; ``vidspec.engine.graphs.passes`` checks before it
imports this.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from vidspec.engine.attention import split_count

#: Bytes of the queries that share loaded keys, and of the keys loaded at a time; fits into a small GPU's SM too. Those
#: of float32 are multiplied in registers, which hold a quarter.
_BYTES, _BYTES_FLOAT32 = 2**14, 2**12
_LOG2_E = 1.4426950408889634


def split_attention(
    query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, places: torch.Tensor, scaling: float
) -> torch.Tensor:
    """Return the attention of R rows of any number of sequences, each row over its own sequence.

    Args:
        query: (R, heads, d) rotated; d is a power of two, at least 16; heads and d are dense.
        keys, values: (kv_heads, capacity, d) of one layer of one slab, entries dense, the rows' own included.
        places: (6, R) int64, dense. For each row: entries that all rows of its sequence see; entries of its sequence;
            its first entry in the slab; its first row in the pass, the others following; the later entries that this
            row sees, as bits, at most 64; entries of its sequence by which the keys are split, 0 for an idle row, whose
            result is 0. While the last number stays, a row's result is bit-identical by itself and among other rows of
            its sequence, in passes with equally many rows.
        scaling: factor of the scores.

    Returns:
        (R, heads * d).
    """
    rows, heads, width = query.shape
    kv_heads = len(keys)
    group = heads // kv_heads
    size = _BYTES_FLOAT32 if query.dtype is torch.float32 else _BYTES
    padded, some = triton.next_power_of_2(group), max(16, min(64, size // (width * query.itemsize)))
    together = max(1, min(triton.next_power_of_2(rows), some // padded))
    processors = torch.cuda.get_device_properties(query.device).multi_processor_count if query.is_cuda else 132
    splits = split_count(kv_heads, -(-rows // together), processors)
    parts = torch.empty(rows, heads, splits, width, dtype=torch.float32, device=query.device)
    weights = torch.empty(rows, heads, splits, dtype=torch.float32, device=query.device)
    sizes = {"HEADS": heads, "SPLITS": splits, "WIDTH": width}
    tiles = {"GROUP": group, "PADDED": padded, "TOGETHER": together, "TILE": max(16, padded * together), "BLOCK": some}
    strides = query.stride(0), keys.stride(0)
    given = query, keys, values, places, parts, weights, scaling * _LOG2_E, rows, *strides
    _part[(rows, kv_heads, splits)](*given, **sizes, **tiles, num_stages=2)
    out = torch.empty(rows, heads * width, dtype=query.dtype, device=query.device)
    # Of two, four and eight warps the fewer are the faster, as measured on an H100; one holds half of 64 splits.
    _merge[(rows, heads)](parts, weights, places, out, rows, **sizes, num_warps=max(1, splits * width // 2**12))
    return out


@triton.jit  # type: ignore[untyped-decorator]
def _part(  # type: ignore[no-untyped-def]
    query,
    keys,
    values,
    places,
    parts,
    weights,
    scaling,
    rows,
    query_stride,
    head_stride,
    HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    PADDED: tl.constexpr,
    TOGETHER: tl.constexpr,
    TILE: tl.constexpr,
    SPLITS: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Attend to one stretch of a sequence's keys: one KV head, up to TOGETHER rows; a tile is (group member, row).

    Programs of idle rows and of stretches behind the last entry end at once: of a pass of one sequence they are most.
    """
    row, kv_head, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    first, first_length = tl.load(places + 3 * rows + row), tl.load(places + 5 * rows + row).to(tl.int32)
    if (row - first) % TOGETHER == 0 and first_length > 0:  # the others are in an earlier row's tile
        common, length = tl.load(places + row).to(tl.int32), tl.load(places + rows + row).to(tl.int32)
        start = tl.load(places + 2 * rows + row)
        at = tl.arange(0, TILE)
        mine, member = row + at // PADDED, at % PADDED
        is_row = (member < GROUP) & (at // PADDED < TOGETHER) & (mine < rows)
        is_row &= tl.load(places + 3 * rows + mine, mask=is_row, other=-1) == first
        head, inner = kv_head * GROUP + member, tl.arange(0, WIDTH)
        out = (mine * HEADS + head) * SPLITS + split
        # Leave room for text a quarter as long as the prompt, or the last split has more to do.
        share = tl.cdiv(tl.cdiv(first_length * 5 // 4, SPLITS), BLOCK) * BLOCK
        end = length
        if split < SPLITS - 1:
            end = tl.minimum(length, (split + 1) * share)
        if split * share >= end:
            tl.store(weights + out, tl.full([TILE], float("-inf"), tl.float32), mask=is_row)
        else:
            sees = tl.load(places + 4 * rows + mine, mask=is_row, other=0)
            rotated = tl.load(
                query + mine[:, None] * query_stride + head[:, None] * WIDTH + inner[None],
                mask=is_row[:, None],
                other=0.0,
            )
            stretch = split * share, end, common, start, kv_head.to(tl.int64) * head_stride
            weight, part = _attend(rotated, sees, keys, values, stretch, scaling, TILE, WIDTH, BLOCK)
            tl.store(weights + out, weight, mask=is_row)
            tl.store(parts + out[:, None] * WIDTH + inner[None], part, mask=is_row[:, None])


@triton.jit  # type: ignore[untyped-decorator]
def _attend(  # type: ignore[no-untyped-def]
    rotated, sees, keys, values, stretch, scaling, TILE: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr
):
    """Return the log-sum-exp (TILE,) and the mean values (TILE, WIDTH) of a tile over a stretch of one sequence.

    The stretch is its first entry, the one after its last, the number of entries that all rows see, the sequence's
    first entry in the slab, and the offset of the KV head.
    """
    begins, end, common, start, base = stretch
    top = tl.full([TILE], float("-inf"), tl.float32)
    total = tl.zeros([TILE], tl.float32)
    summed = tl.zeros([TILE, WIDTH], tl.float32)
    for begin in range(begins, end, BLOCK):
        entry = begin + tl.arange(0, BLOCK)
        held = entry < end
        address = base + (start + entry)[:, None] * WIDTH + tl.arange(0, WIDTH)[None]
        key = tl.load(keys + address, mask=held[:, None], other=0.0)
        scores = tl.dot(rotated, tl.trans(key), input_precision="ieee") * scaling
        own = entry - common
        bit = (sees[:, None] >> tl.maximum(own, 0)[None]) & 1
        visible = held[None] & ((own < 0)[None] | (bit == 1))
        scores = tl.where(visible, scores, float("-inf"))
        higher = tl.maximum(top, tl.max(scores, 1))
        level = tl.where(higher == float("-inf"), 0.0, higher)  # a row may see none of these
        chances = tl.exp2(scores - level[:, None])
        shrunk = tl.exp2(top - level)
        total = total * shrunk + tl.sum(chances, 1)
        value = tl.load(values + address, mask=held[:, None], other=0.0)
        summed = summed * shrunk[:, None]
        summed += tl.dot(chances.to(value.dtype), value, input_precision="ieee")
        top = higher
    seen = tl.where(total > 0, total, 1.0)
    return top + tl.log2(seen), summed / seen[:, None]


@triton.jit  # type: ignore[untyped-decorator]
def _merge(  # type: ignore[no-untyped-def]
    parts, weights, places, out, rows, HEADS: tl.constexpr, SPLITS: tl.constexpr, WIDTH: tl.constexpr
):
    """Merge the stretches of one row and head by the log-sum-exp of their scores; 0 for an idle row."""
    row, inner = tl.program_id(0), tl.arange(0, WIDTH)
    place = row * HEADS + tl.program_id(1)
    merged = tl.zeros([WIDTH], tl.float32)
    if tl.load(places + 5 * rows + row) > 0:
        split = tl.arange(0, SPLITS)
        weight = tl.load(weights + place * SPLITS + split)
        share = tl.exp2(weight - tl.max(weight, 0))
        # Stretches without an entry that the row sees were not written, or hold 0.
        part = tl.load(
            parts + (place * SPLITS + split)[:, None] * WIDTH + inner[None], mask=(share > 0)[:, None], other=0
        )
        merged = tl.sum(part * share[:, None], 0) / tl.sum(share, 0)
    tl.store(out + place * WIDTH + inner, merged.to(out.dtype.element_ty))
