"""Times of passes, prompts and the vision tower at published sizes with random weights, against the bandwidth limit.

The video's keys and values are noise, since times do not depend on values. Sizes and numbers of clips that do not fit
into memory are left out and listed.
"""

from __future__ import annotations

import gc
import json
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Literal

import numpy as np
import torch

from research.gpu.results import Results, without_kind
from research.process_memory import PeakMemory
from research.random_decoder import Language, behind, engine_of, language, rolled_back
from research.random_init import random_model
from research.sizes import SIZES, Size, Tower
from vidspec.bench.measure import copy_bandwidth
from vidspec.bench.tables import table
from vidspec.bench.turns import time_call
from vidspec.engine.block_kernels import triton_absence
from vidspec.engine.device import free_memory, synchroniser
from vidspec.engine.forward import Engine
from vidspec.engine.fused import FusedDecoder
from vidspec.engine.graphs.passes import ReplayedPasses
from vidspec.engine.rows import Prompt, Rows
from vidspec.models.placement import resolve_placement
from vidspec.video import Clip, SourceFacts

#: Text tokens after the video, as in a short prompt.
TEXT = 32
#: Rows of a verification: gamma 5.
ROWS = 6
#: Entries that a sequence takes beyond the video: text, and windows.
_MARGIN = 4 * ROWS
#: Seconds that the repeats of one figure may take.
_SECONDS = 1.0
Way = Literal["graphs", "kernel", "eager", "stock"]
REPLAYED = ("graphs", "kernel")


@dataclass(frozen=True)
class Grid:
    """Grid to measure: sizes in order, clips at once, visual tokens of each.

    Attributes:
        tower: Qwen2.5-VL's, or one like it.
        repeats: of each figure: warm-ups, in which kernels are compiled and passes captured, the least and the most.
    """

    sizes: Sequence[str] = ("7B", "3B", "0.5B", "32B")
    clips: Sequence[int] = (1, 4, 16)
    entries: Sequence[int] = (2_000, 25_000)
    dtype: torch.dtype = torch.bfloat16
    tower: Tower | None = None
    repeats: tuple[int, int, int] = (3, 3, 20)


@dataclass(frozen=True)
class Pass:
    """Times of a pass of one size; seconds are medians.

    Attributes:
        way: ``graphs``, fused and replayed; ``kernel``, the same kernel by kernel; ``eager``, fused with torch's
            attention; ``stock``, the modules of ``transformers``.
        clips, entries: sequences of a pass, and cache entries of each.
        one, six: T_p(1) and T_p(6) of all clips, the logits being there.
        chain: T_q of a draft of this size, a token of a greedy chain of six.
        tokens_per_s: of plain decoding, all clips together.
        share: of the bandwidth limit of plain decoding, by the copy rate.
        peak: bytes of device memory while these passes ran; None where that cannot be read.
    """

    model: str
    way: str
    clips: int
    entries: int
    one: float
    six: float
    chain: float
    tokens_per_s: float
    share: float
    peak: int | None


@dataclass(frozen=True)
class Timed:
    """Time of one step of reading a clip.

    Attributes:
        what: ``prefill``, ``tower``, or ``preprocess``.
        entries: visual tokens.
        seconds: of all of it.
        flops_per_s: by counted operations; None where they are not counted.
        peak: bytes, as of :class:`Pass`.
    """

    model: str
    what: str
    entries: int
    seconds: float
    flops_per_s: float | None
    peak: int | None


def copy_rate(device: torch.device, megabytes: int = 1024, repeats: int = 20) -> float:
    """Return the bytes read and written per second by the fastest of several copies, by the device's clock."""
    if device.type != "cuda":
        return copy_bandwidth(device)
    source = torch.ones(megabytes * 2**20 // 4, dtype=torch.float32, device=device)
    target = torch.empty_like(source)
    clocks = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(repeats)]
    for begun, ended in clocks:
        begun.record()
        target.copy_(source)
        ended.record()
    torch.cuda.synchronize(device)
    return 2 * source.nbytes / float(min(begun.elapsed_time(ended) / 1e3 for begun, ended in clocks))


def measure(grid: Grid, device: torch.device, results: Results) -> None:
    """Measure a grid, one line each, until the time is over."""
    if device.type == "cuda":
        torch.backends.cuda.enable_cudnn_sdp(False)  # as where a model is loaded
    rate = copy_rate(device)
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else str(device)
    results.add("device", device=name, torch=torch.__version__, bytes_per_s=rate)
    if grid.tower is not None and results.begin("tower", 5):
        with results.guarded("tower"):
            for row in _tower(grid.tower, grid, device):
                results.add("timed", **asdict(row))
    for size in grid.sizes:
        if not results.begin(size, 10):
            continue
        for kind in ("fused", "stock"):
            with results.guarded(f"{size} {kind}"):
                for one in _size(size, kind, grid, device, rate, results):
                    results.add("pass" if isinstance(one, Pass) else "timed", **asdict(one))
            release(device)  # before the next is made


def release(device: torch.device) -> None:
    """Free the memory of models that are not used any more."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


def bytes_needed(size: Size, clips: int, entries: int) -> int:
    """Return the bytes of bfloat16 weights with copies of one block, of the caches, and 2 GiB of activations."""
    block = size.hidden * (2 * size.hidden + 2 * size.kv_heads * size.width + 3 * size.inner)
    weights = 2 * (size.layers + 1) * block + 4 * size.vocabulary * size.hidden
    return weights + 4 * size.layers * size.kv_heads * size.width * clips * entries + 2**31


def _size(
    name: str,
    kind: Literal["fused", "stock"] | str,
    grid: Grid,
    device: torch.device,
    rate: float,
    results: Results,
) -> Iterator[Pass | Timed]:
    """Measure one model, in all ways of running it."""
    size, free = SIZES[name], free_memory(device)
    if free is not None and bytes_needed(size, 1, min(grid.entries)) > free:
        results.leave_out(f"{name} {kind}", "too little memory")
        return
    model = language(size, device, grid.dtype, "fused" if kind == "fused" else "stock")
    engine = engine_of(model)
    if isinstance(model.decoder, FusedDecoder) and model.decoder.eager is not None:
        results.leave_out(f"{name} graphs", f"eager: {model.decoder.eager}")
    for way in _ways(model):
        for entries in grid.entries:
            for clips in grid.clips:
                what = f"{name} {way}, {clips} x {entries}"
                if way == "kernel" and clips > 1:  # the same work as graphs, of which the launches are the difference
                    continue
                if way in REPLAYED and model.decoder.graphs is None:  # after a pass that could not be captured
                    results.leave_out(what, f"eager: {model.decoder.eager}")
                elif free is not None and bytes_needed(size, clips, entries) > free:
                    results.leave_out(what, "too little memory")
                elif results.begin(what, 5):
                    with results.guarded(what):
                        yield _passes(engine, model, (name, way), (clips, entries), rate, grid.repeats)
    if kind != "fused":
        return
    for entries in grid.entries:
        if results.begin(f"{name} prefill, {entries}", 5):
            with results.guarded(f"{name} prefill, {entries}"):
                yield _prefill(engine, name, size, entries, grid.repeats)


def _ways(model: Language) -> Iterator[Way]:
    """Yield the names of the ways, with the model set to each."""
    decoder = model.decoder
    if not isinstance(decoder, FusedDecoder):
        yield "stock"
        return
    graphs = decoder.graphs
    if graphs is not None:
        yield "graphs"
    if graphs is not None or (model.device.type == "cpu" and triton_absence() is None):
        decoder.graphs = ReplayedPasses(decoder, capture=False)
        yield "kernel"
    decoder.graphs = None
    yield "eager"
    decoder.graphs = graphs


def _passes(
    engine: Engine,
    model: Language,
    names: tuple[str, str],
    shape: tuple[int, int],
    rate: float,
    repeats: tuple[int, int, int],
) -> Pass:
    clips, entries = shape
    spans = behind(model, clips, entries, _MARGIN)
    peak = PeakMemory(model.device)
    peak.reset()

    def run(work: Callable[[], object]) -> float:
        return _median(model.device, partial(rolled_back, spans, work), repeats)

    one, six = (run(partial(engine.run, [Rows(span, [0] * rows) for span in spans])) for rows in (1, ROWS))
    chain = run(partial(engine.greedy, [(span, [0], ROWS) for span in spans])) / ROWS
    limit = (model.weight_bytes + clips * entries * model.decoder.slab.entry_bytes) / rate
    for span in spans:
        span.free()
    if names[1] in REPLAYED and model.decoder.graphs is None:
        raise RuntimeError(f"eager: {model.decoder.eager}")
    return Pass(*names, clips, entries, one, six, chain, clips / one, limit / one, peak.read())


def _median(device: torch.device, work: Callable[[], object], repeats: tuple[int, int, int]) -> float:
    """Return the median seconds of work."""
    wait, taken = synchroniser(device), list[float]()
    warm_ups, least, most = repeats
    for _ in range(warm_ups):
        work()
    while len(taken) < least or (len(taken) < most and sum(taken) < _SECONDS):
        taken.append(time_call(work, wait))
    return median(taken)


@dataclass(frozen=True)
class _Noise:
    """A prompt of random embeddings."""

    embeds: torch.Tensor
    positions: torch.Tensor
    visual: _Nothing
    next_position: int
    length: int
    bidirectional: torch.Tensor


@dataclass(frozen=True)
class _Nothing:
    index: torch.Tensor
    deepstack: Sequence[torch.Tensor] = ()


def _prefill(engine: Engine, name: str, size: Size, entries: int, repeats: tuple[int, int, int]) -> Timed:
    decoder, device = engine.model.decoder, engine.model.device
    length = entries + TEXT
    embeds = torch.randn(1, length, size.hidden, device=device, dtype=decoder.slab.dtype)
    positions = torch.arange(length, device=device).expand(decoder.axes, 1, -1)
    visual, bidirectional = _Nothing(torch.arange(entries, device=device)), torch.empty(0, dtype=torch.long)
    prompt: Prompt = _Noise(embeds, positions, visual, length, length, bidirectional)
    peak = PeakMemory(device)
    peak.reset()
    seconds = _median(device, lambda: engine.prefill(prompt, _MARGIN).span.free(), repeats)
    return Timed(name, "prefill", entries, seconds, size.prefill_flops(length) / seconds, peak.read())


def _tower(tower: Tower, grid: Grid, device: torch.device) -> Iterator[Timed]:
    """Measure Qwen2.5-VL's vision tower over frames that give 14 x 14 visual tokens per pair."""
    tokens = tower.patches // tower.merged
    side = 14 * round(tower.patches**0.5)
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "config.json"
        config.write_text(json.dumps(tower_config(tower)), encoding="utf-8")
        where = resolve_placement(str(device), str(grid.dtype).removeprefix("torch."))
        model = random_model(config, where)
    for entries in grid.entries:
        count = 2 * max(1, round(entries / tokens))
        noise = np.random.default_rng(0).integers(0, 256, (count, side, side, 3), np.uint8)
        facts = SourceFacts("", count, side, side, "none", "none", 1.0, False, 0, count, "none")
        clip = Clip(noise, np.arange(float(count)), facts)
        peak = PeakMemory(device)
        peak.reset()
        first = _median(device, partial(model.preprocess, clip), grid.repeats)
        yield Timed("Qwen2.5-VL tower", "preprocess", entries, first, None, peak.read())
        pixels = model.preprocess(clip)
        peak.reset()
        seconds = _median(device, partial(model.encode, pixels), grid.repeats)
        yield Timed("Qwen2.5-VL tower", "tower", entries, seconds, tower.flops * count / 2 / seconds, peak.read())


def tower_config(tower: Tower) -> dict[str, object]:
    """Return the config of a Qwen2.5-VL with a minimal language model."""
    vision = {
        "depth": tower.layers,
        "hidden_size": tower.hidden,
        "intermediate_size": tower.inner,
        "num_heads": 16,
        "out_hidden_size": tower.out,
        "fullatt_block_indexes": [at for at in (7, 15, 23, 31) if at < tower.layers],
    }
    text: dict[str, object] = {
        "num_hidden_layers": 1,
        "hidden_size": tower.out,
        "intermediate_size": 64,
        "vocab_size": 151_936,
    }
    text |= {"num_attention_heads": tower.out // 128, "num_key_value_heads": 1}
    text |= {"rope_parameters": {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [16, 24, 24]}}
    return {"model_type": "qwen2_5_vl", "vision_config": vision, "text_config": text}


def markdown(rows: Sequence[dict[str, object]]) -> str:
    """Return tables of a run's lines."""
    passes = [Pass(**without_kind(row)) for row in rows if row["kind"] == "pass"]  # type: ignore[arg-type]
    reads = [Timed(**without_kind(row)) for row in rows if row["kind"] == "timed"]  # type: ignore[arg-type]
    left = [(str(row["what"]), str(row["why"])) for row in rows if row["kind"] == "left out"]
    lines = [
        (
            one.model,
            one.way,
            str(one.clips),
            f"{one.entries:,}",
            *(f"{1e3 * seconds:.2f} ms" for seconds in (one.one, one.six, one.chain)),
            f"{one.tokens_per_s:.0f}",
            f"{one.share:.0%}",
            gib(one.peak),
        )
        for one in passes
    ]
    heads = ["model", "way", "clips", "visual tokens", "T_p(1)", "T_p(6)", "T_q", "tokens/s", "share of limit", "peak"]
    reading = [
        (
            one.model,
            one.what,
            f"{one.entries:,}",
            f"{1e3 * one.seconds:.1f} ms",
            "" if one.flops_per_s is None else f"{one.flops_per_s / 1e12:.0f}",
            gib(one.peak),
        )
        for one in reads
    ]
    parts = [table(heads, lines)]
    parts += [table(["model", "what", "visual tokens", "time", "TFLOP/s", "peak"], reading)] if reading else []
    parts += [table(["left out", "why"], left)] if left else []
    return "\n\n".join(parts)


def gib(count: int | None) -> str:
    """Return bytes as a table shows them."""
    return "?" if count is None else f"{count / 2**30:.1f} GiB"
