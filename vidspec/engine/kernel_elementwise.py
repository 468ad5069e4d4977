"""Triton kernels of a block's elementwise operations, one launch each: residual and norm, rotation, activation.

Numbers are float32 until they are stored. Needs Triton; ``vidspec.engine.fused`` checks before it imports this.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from vidspec.engine.rotary import HeadNorms, RotaryTables

__all__ = ["add_norm", "rotate", "silu_product"]

#: Outputs of a program of the activation.
_BLOCK = 1024


def add_norm(
    residual: torch.Tensor, rows: torch.Tensor, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the sum of two (R, n), and its root-mean-square norm times a weight (n,)."""
    summed, normed = torch.empty_like(rows), torch.empty_like(rows)
    width = rows.shape[1]
    strides, size = (residual.stride(0), rows.stride(0)), triton.next_power_of_2(width)
    given = residual, rows, weight, summed, normed, *strides, eps
    with torch.cuda.device_of(rows):
        _add_norm[(len(rows),)](*given, WIDTH=width, SIZE=size, num_warps=8)
    return summed, normed


def rotate(
    states: torch.Tensor,
    heads: int,
    tables: RotaryTables,
    norms: HeadNorms | None = None,
    stored: tuple[torch.Tensor, torch.Tensor] | None = None,
) -> None:
    """Rotate queries and keys in place, after the norms of their heads; keys and values may go to a cache instead.

    Args:
        states: (R, heads + 2 * kv_heads, d) queries, keys and values; numbers of a row dense.
        heads: heads of the queries.
        tables: cosines and sines, (R, 1, d) with the same strides; the first half of the sines is negative.
        norms: of queries and keys; their results are rounded to the dtype of the states.
        stored: (2, kv_heads, capacity, d) dense cache of a layer, and (R,) int64 the entry of each row. The keys in
            ``states`` are not rotated then.
    """
    (rows, every, width), (cosine, sine) = states.shape, tables
    kv_heads = (every - heads) // 2
    cache, slots = stored or (states, states)
    query_norm, key_norm, eps = norms or (states, states, 0.0)
    strides = states.stride(0), cosine.stride(0), cosine.stride(2), 0 if stored is None else cache.stride(1)
    sizes = {"HEADS": heads, "KV_HEADS": kv_heads, "WIDTH": width, "HALF": triton.next_power_of_2(width // 2)}
    given = states, query_norm, key_norm, cosine, sine, cache, slots, *strides, eps
    grid = rows, every if stored is not None else heads + kv_heads
    with torch.cuda.device_of(states):
        _rotate[grid](*given, **sizes, NORMED=norms is not None, STORED=stored is not None, num_warps=1)


def silu_product(gate_up: torch.Tensor) -> torch.Tensor:
    """Return the SiLU of the first half of each row (R, 2 n) times the second half."""
    width = gate_up.shape[1] // 2
    out = gate_up.new_empty(len(gate_up), width)
    grid = len(gate_up), triton.cdiv(width, _BLOCK)
    with torch.cuda.device_of(gate_up):
        _silu_product[grid](gate_up, out, gate_up.stride(0), WIDTH=width, BLOCK=_BLOCK)
    return out


@triton.jit  # type: ignore[untyped-decorator]
def _add_norm(  # type: ignore[no-untyped-def]
    residual,
    rows,
    weight,
    summed,
    normed,
    residual_stride,
    row_stride,
    eps,
    WIDTH: tl.constexpr,
    SIZE: tl.constexpr,
):
    row, place = tl.program_id(0), tl.arange(0, SIZE)
    inside = place < WIDTH
    total = tl.load(residual + row * residual_stride + place, mask=inside, other=0.0).to(tl.float32)
    total += tl.load(rows + row * row_stride + place, mask=inside, other=0.0).to(tl.float32)
    stored = total.to(summed.dtype.element_ty)
    tl.store(summed + row * WIDTH + place, stored, mask=inside)
    total = stored.to(tl.float32)
    length = tl.sqrt(tl.sum(total * total, 0) / WIDTH + eps)
    scaled = total / length * tl.load(weight + place, mask=inside, other=0.0).to(tl.float32)
    tl.store(normed + row * WIDTH + place, scaled.to(normed.dtype.element_ty), mask=inside)


@triton.jit  # type: ignore[untyped-decorator]
def _rotate(  # type: ignore[no-untyped-def]
    states,
    query_norm,
    key_norm,
    cosine,
    sine,
    cache,
    slots,
    row_stride,
    table_stride,
    angle_stride,
    head_stride,
    eps,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    WIDTH: tl.constexpr,
    HALF: tl.constexpr,
    NORMED: tl.constexpr,
    STORED: tl.constexpr,
):
    row, head, place = tl.program_id(0), tl.program_id(1), tl.arange(0, HALF)
    inside = place < WIDTH // 2
    out = states + row * row_stride + head * WIDTH + place
    low = tl.load(out, mask=inside, other=0.0).to(tl.float32)
    high = tl.load(out + WIDTH // 2, mask=inside, other=0.0).to(tl.float32)
    if head < HEADS + KV_HEADS:
        if NORMED:
            length = tl.sqrt((tl.sum(low * low, 0) + tl.sum(high * high, 0)) / WIDTH + eps)
            norm = (query_norm if head < HEADS else key_norm) + place
            low = low / length * tl.load(norm, mask=inside, other=0.0).to(tl.float32)
            high = high / length * tl.load(norm + WIDTH // 2, mask=inside, other=0.0).to(tl.float32)
            low = low.to(states.dtype.element_ty).to(tl.float32)
            high = high.to(states.dtype.element_ty).to(tl.float32)
        angle = row * table_stride + place * angle_stride
        other = angle + WIDTH // 2 * angle_stride
        cosine_low = tl.load(cosine + angle, mask=inside, other=0.0).to(tl.float32)
        cosine_high = tl.load(cosine + other, mask=inside, other=0.0).to(tl.float32)
        sine_low = tl.load(sine + angle, mask=inside, other=0.0).to(tl.float32)
        sine_high = tl.load(sine + other, mask=inside, other=0.0).to(tl.float32)
        turned = low * cosine_low + high * sine_low
        high = high * cosine_high + low * sine_high
        low = turned
    if STORED:  # noqa: SIM102 (the compiler's branch, then the program's)
        if head >= HEADS:
            entry = tl.load(slots + row) * WIDTH
            out = cache + (head - HEADS).to(tl.int64) * head_stride + entry + place
    tl.store(out, low.to(states.dtype.element_ty), mask=inside)
    tl.store(out + WIDTH // 2, high.to(states.dtype.element_ty), mask=inside)


@triton.jit  # type: ignore[untyped-decorator]
def _silu_product(gate_up, out, row_stride, WIDTH: tl.constexpr, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    row, place = tl.program_id(0), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = place < WIDTH
    gate = tl.load(gate_up + row * row_stride + place, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(gate_up + row * row_stride + WIDTH + place, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + row * WIDTH + place, (gate * tl.sigmoid(gate) * up).to(out.dtype.element_ty), mask=inside)
