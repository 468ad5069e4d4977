"""Times of single kernels at a published size, replayed as in a pass: products by format and rows, attention.

Weights and caches take turns, so that none is read from the GPU's L2 cache.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Literal

import torch

from research.gpu.results import Results, without_kind
from research.sizes import SIZES, Size
from vidspec.bench.tables import table
from vidspec.engine.quantised import quantise_weight

#: Bytes that the copies of a weight or of a layer's cache take together: several times an L2 cache.
_BYTES = 2**28
#: Replays that are timed; the fastest counts.
_REPEATS = 10
Format = Literal["plain", "int8", "int4"]
#: Rows of a pass: a token, a window, 16 clips, 16 windows; clips, rows of each, and entries of each, for attention.
ROWS = (1, 8, 16, 128)
PASSES = ((1, 1, 2_000), (1, 6, 2_000), (16, 1, 2_000), (16, 6, 2_000), (1, 1, 25_000), (16, 1, 25_000))


@dataclass(frozen=True)
class KernelTime:
    """Time of one launch.

    Attributes:
        kernel: ``plain``, ``int8``, ``int4`` or ``attention``.
        shape: the weight's name and (out, in), or clips, rows and entries.
        rows: of the pass, idle ones of attention included.
        seconds: by the device's clock.
        bytes_per_s: of weights, or of keys and values.
    """

    kernel: str
    shape: str
    rows: int
    seconds: float
    bytes_per_s: float


def replayed_seconds(calls: Sequence[Callable[[], object]], device: torch.device) -> float:
    """Return the seconds of one of several calls that take turns, captured in one CUDA graph; on a CPU just called."""
    for call in calls[:2]:
        call()  # compiles it
    if device.type != "cuda":
        begun = time.perf_counter()
        for call in calls:
            call()
        return (time.perf_counter() - begun) / len(calls)
    torch.cuda.synchronize(device)
    graph, clocks = (
        torch.cuda.CUDAGraph(),
        [[torch.cuda.Event(enable_timing=True) for _ in "be"] for _ in range(_REPEATS)],
    )
    with torch.cuda.graph(graph):
        for call in calls:
            call()
    graph.replay()
    for begin, end in clocks:
        begin.record()
        graph.replay()
        end.record()
    torch.cuda.synchronize(device)
    return float(min(begin.elapsed_time(end) for begin, end in clocks)) / 1e3 / len(calls)


def weights(size: Size) -> Mapping[str, tuple[int, int]]:
    """Return the shapes (out, in) of the weights of a block, and of the head."""
    entries = 2 * size.kv_heads * size.width
    return {
        "qkv": (size.hidden + entries, size.hidden),
        "out": (size.hidden, size.hidden),
        "gate_up": (2 * size.inner, size.hidden),
        "down": (size.hidden, size.inner),
        "head": (size.vocabulary, size.hidden),
    }


@torch.inference_mode()
def measure(name: str, device: torch.device, dtype: torch.dtype, results: Results, rows: Sequence[int] = ROWS) -> None:
    """Measure the kernels of one size, a line each, until the time is over."""
    size = SIZES[name]
    for what, shape in weights(size).items():
        for kind in ("plain", "int8", "int4"):
            if results.begin(f"{name} {what} {kind}", 2):
                with results.guarded(f"{name} {what} {kind}"):
                    for one in _products(what, shape, kind, rows, device, dtype):
                        results.add("kernel", **asdict(one))
    for clips, each, entries in PASSES:
        what = f"{name} attention {clips} x {each} x {entries}"
        if device.type != "cuda":
            results.leave_out(what, "needs a GPU")
        elif results.begin(what, 2):
            with results.guarded(what):
                results.add("kernel", **asdict(_attention(size, clips, each, entries, device, dtype)))


def _products(
    what: str, shape: tuple[int, int], kind: Format, rows: Sequence[int], device: torch.device, dtype: torch.dtype
) -> Iterator[KernelTime]:
    weight = torch.randn(shape, dtype=dtype, device=device) / 64
    made = [weight if kind == "plain" else quantise_weight(weight, None, kind)]
    size = weight.nbytes if kind == "plain" else made[0].nbytes
    while len(made) * size < (_BYTES if device.type == "cuda" else 2 * size):
        made.append(weight.clone() if kind == "plain" else quantise_weight(weight, None, kind))
    for count in rows:
        given = torch.randn(count, shape[1], dtype=dtype, device=device)
        calls = [partial(_multiply, one, given) for one in made]
        seconds = replayed_seconds(calls, device)
        yield KernelTime(kind, f"{what} {shape[0]}x{shape[1]}", count, seconds, size / seconds)


def _multiply(weight: torch.Tensor | Callable[[torch.Tensor], torch.Tensor], rows: torch.Tensor) -> torch.Tensor:
    return torch.mm(rows, weight.t()) if isinstance(weight, torch.Tensor) else weight(rows)


def attention_places(clips: int, each: int, entries: int, rows: int) -> torch.Tensor:
    """Return (6, rows) int64, the places that :func:`~vidspec.engine.kernel.split_attention` takes.

    Args:
        clips: sequences, one behind the other in the slab.
        each: rows of a window of each.
        entries: of each sequence, the window's included.
        rows: of the pass; the others are idle.
    """
    columns = [
        [entries - each, entries, clip * entries, clip * each, (2 << row) - 1, entries]
        for clip in range(clips)
        for row in range(each)
    ]
    columns += [[0, 1, clips * entries, row, 1, 0] for row in range(len(columns), rows)]
    return torch.tensor(columns).t().contiguous()


def _attention(size: Size, clips: int, each: int, entries: int, device: torch.device, dtype: torch.dtype) -> KernelTime:
    from vidspec.engine.graphs import FEWEST, padded_rows
    from vidspec.engine.kernel import split_attention

    rows = max(FEWEST, padded_rows(clips * each))
    places = attention_places(clips, each, entries, rows).to(device)
    caches = [torch.randn(2, size.kv_heads, clips * entries + 1, size.width, dtype=dtype, device=device)]
    read = caches[0].nbytes
    while len(caches) * read < _BYTES:
        caches.append(caches[0].clone())
    query = torch.randn(rows, size.heads, size.width, dtype=dtype, device=device)
    calls = [partial(split_attention, query, keys, values, places, size.width**-0.5) for keys, values in caches]
    seconds = replayed_seconds(calls, device)
    return KernelTime("attention", f"{clips} x {each} rows x {entries:,}", rows, seconds, read / seconds)


def markdown(rows: Sequence[dict[str, object]]) -> str:
    """Return a table of a run's lines."""
    found = [KernelTime(**without_kind(row)) for row in rows if row["kind"] == "kernel"]  # type: ignore[arg-type]
    lines = [
        (one.kernel, one.shape, str(one.rows), f"{1e6 * one.seconds:.1f} us", f"{one.bytes_per_s / 1e12:.2f} TB/s")
        for one in found
    ]
    return table(["kernel", "shape", "rows", "time", "bytes read"], lines)
