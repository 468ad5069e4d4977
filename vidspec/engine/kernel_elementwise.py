"""Triton kernels of a block's elementwise operations: residual and norm, rotation, activation; one launch each.

Numbers are float32 until they are stored. Needs Triton; ``vidspec.engine.fused`` checks before it imports this.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

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


def rotate(states: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor, into: torch.Tensor) -> None:
    """Rotate heads (R, n, d): times the cosine, plus the other half of each head times the sine.

    Args:
        states: numbers of a head dense, and heads of a row.
        cosine, sine: (R, 1, d) with the same strides; the sine's first half is negative.
        into: (R, n, d), which may be ``states``.
    """
    rows, heads, width = states.shape
    half = triton.next_power_of_2(width // 2)
    strides = states.stride(0), into.stride(0), cosine.stride(0), cosine.stride(2)
    with torch.cuda.device_of(states):
        _rotate[(rows, heads)](states, cosine, sine, into, *strides, WIDTH=width, HALF=half, num_warps=1)


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
    cosine,
    sine,
    into,
    row_stride,
    into_stride,
    table_stride,
    angle_stride,
    WIDTH: tl.constexpr,
    HALF: tl.constexpr,
):
    row, head, place = tl.program_id(0), tl.program_id(1), tl.arange(0, HALF)
    inside = place < WIDTH // 2
    first = states + row * row_stride + head * WIDTH + place
    low = tl.load(first, mask=inside, other=0.0).to(tl.float32)
    high = tl.load(first + WIDTH // 2, mask=inside, other=0.0).to(tl.float32)
    angle = row * table_stride + place * angle_stride
    other = angle + WIDTH // 2 * angle_stride
    cosine_low = tl.load(cosine + angle, mask=inside, other=0.0).to(tl.float32)
    cosine_high = tl.load(cosine + other, mask=inside, other=0.0).to(tl.float32)
    sine_low = tl.load(sine + angle, mask=inside, other=0.0).to(tl.float32)
    sine_high = tl.load(sine + other, mask=inside, other=0.0).to(tl.float32)
    out = into + row * into_stride + head * WIDTH + place
    tl.store(out, (low * cosine_low + high * sine_low).to(into.dtype.element_ty), mask=inside)
    tl.store(out + WIDTH // 2, (high * cosine_high + low * sine_high).to(into.dtype.element_ty), mask=inside)


@triton.jit  # type: ignore[untyped-decorator]
def _silu_product(gate_up, out, row_stride, WIDTH: tl.constexpr, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    row, place = tl.program_id(0), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = place < WIDTH
    gate = tl.load(gate_up + row * row_stride + place, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(gate_up + row * row_stride + WIDTH + place, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + row * WIDTH + place, (gate * tl.sigmoid(gate) * up).to(out.dtype.element_ty), mask=inside)
