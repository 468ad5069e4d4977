"""On an NVIDIA GPU: products with quantised weights of a 7B's shapes, and the kernels of a block."""

from __future__ import annotations

from functools import partial

import pytest
import torch

from tests.gpu.places import DEVICE, SMOKE, cuda_only, needs_replay
from vidspec.bench.turns import time_call
from vidspec.engine import quantised
from vidspec.engine.few_rows import KernelMatrix
from vidspec.engine.quantised import quantise_weight

pytestmark = [pytest.mark.gpu, needs_replay]  # the kernels need the same GPUs
SHAPES = [(64, 128)] if SMOKE else [(4608, 3584), (3584, 18944), (37888, 3584)]
DTYPE, COUNTS = (torch.float16, (1, 17)) if SMOKE else (torch.bfloat16, (1, 8, 16, 17, 33, 64, 256))
MOST = max(COUNTS)


def replayed_seconds(call):
    """Return the seconds of one of ten calls in a CUDA graph, the fastest of ten replays; on a CPU of one call."""
    call()  # compiles it
    if DEVICE.type != "cuda":
        return time_call(call)
    graph, clocks = torch.cuda.CUDAGraph(), [[torch.cuda.Event(enable_timing=True) for _ in "be"] for _ in range(10)]
    torch.cuda.synchronize(DEVICE)
    with torch.cuda.graph(graph):
        for _ in range(10):
            call()
    graph.replay()
    for begin, end in clocks:
        begin.record()
        graph.replay()
        end.record()
    torch.cuda.synchronize(DEVICE)
    return min(begin.elapsed_time(end) for begin, end in clocks) / 1e4


@pytest.fixture(autouse=True)
def no_gradients(monkeypatch):
    if SMOKE:
        monkeypatch.setattr(quantised, "kernel_on", lambda *_: "triton")
    with torch.inference_mode():
        yield


@pytest.mark.parametrize("precision", ["int8", "int4"])
@pytest.mark.parametrize("shape", SHAPES)
def test_products_are_those_of_float64_for_every_number_of_rows(shape, precision):
    """Few rows by the kernels, alone and among others to the bit; more than 256 by dequantised blocks."""
    weight = torch.randn(shape, dtype=DTYPE, device=DEVICE) / 64
    made = quantise_weight(weight, None, precision)
    assert isinstance(made, KernelMatrix)
    rows = torch.randn(300, shape[1], dtype=DTYPE, device=DEVICE)
    residual = torch.randn(300, shape[0], dtype=DTYPE, device=DEVICE)
    expected, whole = rows.double() @ made.dense(torch.float64, DEVICE).t(), made(rows[:MOST])
    # The interpreter's BLAS rounds rows by their places.
    same = partial(torch.allclose, rtol=1e-2, atol=1e-2) if SMOKE else torch.equal
    for count in COUNTS:
        assert same(made(rows[:count]), whole[:count]), f"{count} rows round differently"
    assert same(made.add(residual[:1], rows[:1]), made.add(residual[:MOST], rows[:MOST])[:1])
    results = (whole, expected[:MOST]), (made(rows), expected)
    added = [(made.add(residual[:count], rows[:count]), (expected + residual)[:count]) for count in (MOST, 300)]
    for got, wanted in (*results, *added):
        assert (got.double() - wanted).norm() < 2**-7 * wanted.norm()


@cuda_only
@pytest.mark.parametrize("precision", ["int8", "int4"])
def test_a_row_is_multiplied_faster_than_in_bfloat16(precision, record_property):
    """Replayed, as in a pass: launches by the host take longer. Its share of the bandwidth is a figure to record."""
    weight = torch.randn(37888, 3584, dtype=torch.bfloat16, device=DEVICE) / 64
    made, row = quantise_weight(weight, None, precision), torch.randn(1, 3584, dtype=torch.bfloat16, device=DEVICE)
    plain, own = replayed_seconds(lambda: torch.mm(row, weight.t())), replayed_seconds(lambda: made(row))
    record_property("bytes_per_s", {"bfloat16": weight.nbytes / plain, precision: made.nbytes / own})
    assert own < plain
