"""What a GPU is worth: passes of published sizes against its memory bandwidth, and the built-in pairs.

``python -m research.gpu`` (``make gpu``) measures on the first NVIDIA GPU and writes ``gpu.json`` and ``gpu.md``.
The weights of the sizes are random and the video's keys and values noise: times do not depend on them. A size for
which the memory does not suffice is left out and named.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Annotated, Any, Literal

import torch
import typer

from research.commands import run
from research.random_decoder import Language, engine_of, language
from research.sizes import SIZES, Size
from research.ties import EPSILON, gap
from vidspec.bench.bandwidth import copy_bandwidth
from vidspec.bench.loaded import Loaded, Source
from vidspec.bench.passes import timed_pass
from vidspec.bench.tables import table
from vidspec.bench.turns import repeated
from vidspec.cli.printed import note
from vidspec.embedded.samples import shipped
from vidspec.engine.forward import Engine
from vidspec.engine.fused import FusedDecoder
from vidspec.engine.graphs import Graphs
from vidspec.engine.slab import KVSpan
from vidspec.events.compare import decode_rate
from vidspec.models import loading

__all__ = ["Pair", "Timed", "fits", "main", "pairs", "timed"]

ENTRIES = (2_000, 25_000)
_ROWS = 6
_PROFILES = ("ar", "vanilla-sd", "sd-tree")


@dataclass(frozen=True)
class Timed:
    """One model behind so many visual tokens, one way of running it; seconds are medians.

    Attributes:
        way: decoder, attention, and whether passes are replayed.
        one, six: a pass of one row, and of six: T_p(1) and T_p(6), the logits being there.
        chain: a token of a greedy chain of six: T_q of a draft of this size.
        tokens_per_s: of plain decoding.
        share: of what the copy bandwidth allows it.
    """

    model: str
    entries: int
    way: str
    one: float
    six: float
    chain: float
    tokens_per_s: float
    share: float


@dataclass(frozen=True)
class Pair:
    """A profile on the built-in pair's sample clips, against plain decoding of the same target.

    Attributes:
        identical: clips with the same tokens.
        ties: others that part from it at a near-tie, see ``research.ties``.
        clips: all of them.
        tokens_per_s: decode rate, the median of the clips.
    """

    pair: str
    dtype: str
    profile: str
    identical: int
    ties: int
    clips: int
    tokens_per_s: float

    @property
    def holds(self) -> bool:
        """Whether it is lossless: all identical in float32, but for near-ties otherwise."""
        return self.identical + (0 if self.dtype == "float32" else self.ties) == self.clips


def timed(
    name: str,
    size: Size,
    device: torch.device,
    bandwidth: float,
    *,
    entries: Sequence[int] = ENTRIES,
    dtype: torch.dtype = torch.bfloat16,
    repeats: int = 20,
) -> Iterator[Timed]:
    """Every way of running a size; those that need a GPU are left out elsewhere."""
    kinds: tuple[Literal["stock", "fused"], ...] = ("stock", "fused")
    for kind in kinds:
        model = language(size, device, dtype, kind)
        for way in _ways(model):
            for count in entries:
                engine, span = engine_of(model), _behind(model, count)
                one, six = (_median(engine, span, rows, repeats) for rows in (1, _ROWS))
                chain = _median(engine, span, partial(engine.greedy, [(span, [0], _ROWS)]), repeats) / _ROWS
                limit = (model.weight_bytes + count * model.decoder.slab.entry_bytes) / bandwidth
                yield Timed(name, count, way, one, six, chain, 1 / one, limit / one)
                span.free()
        del model, engine, span
        if device.type == "cuda":
            torch.cuda.empty_cache()


def _ways(model: Language) -> Iterator[str]:
    """Names of the ways, the model being set to each in turn."""
    decoder = model.decoder
    graphs = decoder.graphs
    decoder.graphs = None
    yield f"{decoder.name}, sdpa"
    if isinstance(decoder, FusedDecoder) and graphs is not None:
        decoder.graphs = Graphs(decoder, capture=False)
        yield "fused, kernel"
        decoder.graphs = graphs
        yield "fused, kernel, graphs"


@torch.inference_mode()
def _behind(model: Language, entries: int) -> KVSpan:
    """A sequence that holds so many entries of noise."""
    span = model.decoder.slab.open(entries + 2 * _ROWS)
    for layer in span.writes(entries):
        layer.normal_()
    span.length = entries
    return span


def _median(engine: Engine, span: KVSpan, work: int | Callable[[], object], repeats: int) -> float:
    runs = {"": partial(timed_pass, engine, span, work)}
    return median(repeated(runs, repeats, warm_ups=3)[""])  # kernels are compiled and passes captured


def pairs(device: str, dtypes: Sequence[str] = ("float32", "bfloat16"), clips: int | None = None) -> Iterator[Pair]:
    """Profiles of the built-in pairs, in turns on the same device."""
    paths = shipped()[:clips]
    for pair in ("embedded", "embedded-qwen"):
        for dtype in dtypes:
            loaded = Loaded(Source(pair, device=device, dtype=dtype))
            plain: dict[Path, Sequence[int]] = {}
            for name in _PROFILES:
                captioner = loaded.captioner(name)
                captioner.warm_up()
                records = {path: captioner.caption(path) for path in paths}
                plain = plain or {path: record.token_ids for path, record in records.items()}
                gaps = [gap(captioner, path, plain[path], record.token_ids) for path, record in records.items()]
                ties = sum(0 < one <= EPSILON for one in gaps)
                rate = median(decode_rate(record) or 0.0 for record in records.values())
                yield Pair(pair, dtype, name, gaps.count(0.0), ties, len(paths), rate)
            loaded.close()


def fits(size: Size, device: torch.device, entries: Sequence[int]) -> bool:
    """Whether weights in bfloat16, a block's worth of copies and the longest cache fit into what is free."""
    if device.type != "cuda":
        return True
    block = size.hidden * (2 * size.hidden + 2 * size.kv_heads * size.width + 3 * size.inner)
    weights = 2 * (size.layers + 1) * block + 4 * size.vocabulary * size.hidden
    cache = 4 * size.layers * size.kv_heads * size.width * max(entries)
    return weights + cache + 2**31 < torch.cuda.mem_get_info(device)[0]


def _markdown(found: dict[str, Any]) -> str:
    """The tables of a run."""
    sizes = [
        (
            one.model,
            f"{one.entries:,}",
            one.way,
            *(f"{1e3 * seconds:.2f} ms" for seconds in (one.one, one.six, one.chain)),
            f"{one.tokens_per_s:.0f}",
            f"{one.share:.0%}",
        )
        for one in (Timed(**row) for row in found["sizes"])
    ]
    sizes += [(name, "-", "left out: too little memory", *"-----") for name in found["left_out"]]
    pairs = [
        (
            one.pair,
            one.dtype,
            one.profile,
            f"{one.identical}/{one.clips}",
            str(one.ties),
            "yes" if one.holds else "NO",
            f"{one.tokens_per_s:.0f}",
        )
        for one in (Pair(**row) for row in found["pairs"])
    ]
    parts = [
        f"{found['device']}, torch {found['torch']}, copies {found['bandwidth'] / 1e9:.0f} GB/s; "
        "random weights, bfloat16.",
        table(["model", "visual tokens", "way", "T_p(1)", "T_p(6)", "T_q", "tokens/s", "share of limit"], sizes),
        table(["pair", "dtype", "profile", "same tokens", "near-ties", "holds", "tokens/s"], pairs),
    ]
    return "\n\n".join(parts) + "\n"


def command(
    sizes: Annotated[str, typer.Option("--sizes", help=f"Of {', '.join(SIZES)}.")] = "0.5B,3B,7B,32B",
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="For gpu.json and gpu.md.")] = Path("runs/gpu"),
    device: Annotated[str, typer.Option("--device", hidden=True)] = "cuda",
) -> int:
    """Measure passes of published sizes and the built-in pairs on a GPU; 1 if a pair is not lossless."""
    if device == "cuda" and not torch.cuda.is_available():
        print("no NVIDIA GPU here: nothing was run")
        return 0
    place = loading.placement(device).device
    bandwidth = copy_bandwidth(place)
    found: dict[str, Any] = {
        "device": torch.cuda.get_device_name(place) if place.type == "cuda" else str(place),
        "torch": torch.__version__,
        "bandwidth": bandwidth,
        "sizes": [],
        "left_out": [],
        "pairs": [],
    }
    out.mkdir(parents=True, exist_ok=True)
    for row in _measured(sizes.split(","), place, bandwidth, found["left_out"]):
        found["pairs" if isinstance(row, Pair) else "sizes"].append(asdict(row))
        note(str(row))
        (out / "gpu.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    text = _markdown(found)
    (out / "gpu.md").write_text(text, encoding="utf-8")
    print(text)
    return 0 if all(Pair(**row).holds for row in found["pairs"]) else 1


def _measured(
    names: Sequence[str], device: torch.device, bandwidth: float, left_out: list[str]
) -> Iterator[Timed | Pair]:
    if device.type == "cuda":
        torch.backends.cuda.enable_cudnn_sdp(False)  # as where a model is loaded
    for name in names:
        if fits(SIZES[name], device, ENTRIES):
            yield from timed(name, SIZES[name], device, bandwidth, entries=ENTRIES)
        else:
            left_out.append(name)
    yield from pairs(str(device))


def main(args: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    return run(command, "gpu", args)


if __name__ == "__main__":
    sys.exit(main())
