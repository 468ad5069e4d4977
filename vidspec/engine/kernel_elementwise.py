"""Triton kernels of a block's elementwise operations, one launch each: residual and norm, rotation, activation.

Numbers are float32 until they are stored. Needs Triton; ``vidspec.engine.fused`` checks before it imports this.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from vidspec.engine.rotary import HeadNorms, RotaryTables

#: Outputs of a program of the activation; most rows whose heads are rotated by a program each.
_BLOCK, _FEW = 1024, 32


def add_norm(
    residual: torch.Tensor, rows: torch.Tensor, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the sum of two (R, n), and its root-mean-square norm times a weight (n,)."""
    summed, normed = rows.new_empty(rows.shape), rows.new_empty(rows.shape)
    _launch_norm(residual, rows, weight, summed, normed, eps)
    return summed, normed


def norm(rows: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """Return the root-mean-square norm of rows (R, n), times a weight (n,)."""
    normed = rows.new_empty(rows.shape)
    _launch_norm(None, rows, weight, None, normed, eps)
    return normed


def _launch_norm(
    residual: torch.Tensor | None,
    rows: torch.Tensor,
    weight: torch.Tensor,
    summed: torch.Tensor | None,
    normed: torch.Tensor,
    eps: float,
) -> None:
    width, stride = rows.shape[1], 0 if residual is None else residual.stride(0)
    given = rows if residual is None else residual, rows, weight, normed if summed is None else summed, normed
    size = triton.next_power_of_2(width)
    sizes, warps = {"WIDTH": width, "SIZE": size, "ADDED": residual is not None}, max(1, min(8, size // 256))
    with torch.cuda.device_of(rows):
        _add_norm[(len(rows),)](*given, stride, rows.stride(0), eps, **sizes, num_warps=warps)


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
    sizes["TOGETHER"] = together = 1 if rows <= _FEW else 8
    grid = rows, triton.cdiv(every if stored is not None else heads + kv_heads, together)
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
    ADDED: tl.constexpr,
):
    row, place = tl.program_id(0), tl.arange(0, SIZE)
    inside = place < WIDTH
    total = tl.load(rows + row * row_stride + place, mask=inside, other=0.0).to(tl.float32)
    if ADDED:
        total += tl.load(residual + row * residual_stride + place, mask=inside, other=0.0).to(tl.float32)
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
    TOGETHER: tl.constexpr,
    NORMED: tl.constexpr,
    STORED: tl.constexpr,
):
    row, place = tl.program_id(0).to(tl.int64), tl.arange(0, HALF)[None]
    head = (tl.program_id(1) * TOGETHER + tl.arange(0, TOGETHER))[:, None]
    half, inside = place < WIDTH // 2, (place < WIDTH // 2) & (head < HEADS + 2 * KV_HEADS)
    turned = head < HEADS + KV_HEADS
    out = states + row * row_stride + head * WIDTH + place
    low = tl.load(out, mask=inside, other=0.0).to(tl.float32)
    high = tl.load(out + WIDTH // 2, mask=inside, other=0.0).to(tl.float32)
    new_low, new_high = low, high
    if NORMED:
        length = tl.sqrt((tl.sum(low * low, 1) + tl.sum(high * high, 1)) / WIDTH + eps)[:, None]
        first, second = place, place + WIDTH // 2
        query_low, query_high = _load_halves(query_norm, first, second, half)
        key_low, key_high = _load_halves(key_norm, first, second, half)
        new_low = low / length * tl.where(head < HEADS, query_low, key_low)
        new_high = high / length * tl.where(head < HEADS, query_high, key_high)
        new_low = new_low.to(states.dtype.element_ty).to(tl.float32)
        new_high = new_high.to(states.dtype.element_ty).to(tl.float32)
    angle = row * table_stride + place * angle_stride
    other = angle + WIDTH // 2 * angle_stride
    cosine_low, cosine_high = _load_halves(cosine, angle, other, half)
    sine_low, sine_high = _load_halves(sine, angle, other, half)
    low = tl.where(turned, new_low * cosine_low + new_high * sine_low, low).to(states.dtype.element_ty)
    high = tl.where(turned, new_high * cosine_high + new_low * sine_high, high).to(states.dtype.element_ty)
    if STORED:
        query, entry = inside & (head < HEADS), inside & (head >= HEADS)
        kept = cache + (head - HEADS).to(tl.int64) * head_stride + tl.load(slots + row) * WIDTH + place
        tl.store(kept, low, mask=entry)
        tl.store(kept + WIDTH // 2, high, mask=entry)
        inside = query
    else:
        inside = inside & turned
    tl.store(out, low, mask=inside)
    tl.store(out + WIDTH // 2, high, mask=inside)


@triton.jit
def _load_halves(source, first, second, inside):  # type: ignore[no-untyped-def]
    low = tl.load(source + first, mask=inside, other=0.0).to(tl.float32)
    return low, tl.load(source + second, mask=inside, other=0.0).to(tl.float32)


@triton.jit  # type: ignore[untyped-decorator]
def _silu_product(gate_up, out, row_stride, WIDTH: tl.constexpr, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    row, place = tl.program_id(0), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = place < WIDTH
    gate = tl.load(gate_up + row * row_stride + place, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(gate_up + row * row_stride + WIDTH + place, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + row * WIDTH + place, (gate * tl.sigmoid(gate) * up).to(out.dtype.element_ty), mask=inside)
