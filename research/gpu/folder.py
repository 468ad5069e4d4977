"""Measurements of the built-in pairs over clips in memory: losslessness, rounding of wide passes, schedules, batches.

Profiles take turns on each clip, after a warm-up of each; all share one target and one draft, and the parallel ones
have draft processes on the same device.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from statistics import median

import torch

from research.gpu.results import Results, without_kind
from research.ready_clips import ReadyClips
from vidspec.bench.loaded import LoadedModels, ModelSource
from vidspec.bench.tables import table
from vidspec.captioner import Captioner
from vidspec.engine.requests import run_to_completion
from vidspec.engine.rows import Rows
from vidspec.events.compare import decode_rate
from vidspec.events.events import Finished
from vidspec.events.record import Caption
from vidspec.events.trace import Trace
from vidspec.models.request import CaptionRequest
from vidspec.runs.ties import EPSILON, logit_gap, tie_limit
from vidspec.video import Clip

#: Rows of a verification.
_ROWS = 6


@dataclass(frozen=True)
class Folder:
    """Options of the measurement.

    Attributes:
        profiles: plain decoding first; in turns before in parallel.
        batches: clips at once, of the first two profiles.
        overrides: of all profiles.
    """

    pairs: Sequence[str] = ("embedded", "embedded-qwen")
    dtypes: Sequence[str] = ("bfloat16", "float32")
    profiles: Sequence[str] = ("ar", "vanilla-sd", "sd-tree", "uv-sequential", "parallelvlm", "pearl-video")
    batches: Sequence[int] = (1, 4, 16)
    overrides: Mapping[str, object] | None = None


@dataclass(frozen=True)
class Profiled:
    """Results of a profile over all clips, against plain decoding of the same target.

    Attributes:
        identical: clips with plain decoding's tokens.
        ties: others that part from it at a near-tie, see ``vidspec.runs.ties``; in float32 on a CPU none.
        clips: all of them.
        tokens_per_s: of decoding; the median of the clips, as are the next two.
        first, end_to_end: seconds from the clip's frames to its first token, and to its last.
        accepted: of drafted tokens; None of plain decoding.
    """

    pair: str
    dtype: str
    profile: str
    identical: int
    ties: int
    clips: int
    tokens_per_s: float
    first: float
    end_to_end: float
    accepted: float | None

    @property
    def holds(self) -> bool:
        """Return True if it is lossless: all identical, except near-ties."""
        return self.identical + self.ties == self.clips


@dataclass(frozen=True)
class Disagreement:
    """Disagreement of passes of one row and of six rows over plain decoding's tokens.

    Attributes:
        places: tokens that were compared.
        differ: where the argmax differs.
        ties: of those, where the first two logits of the one row are a near-tie.
        apart: the greatest difference of two logits, as a share of the largest.
    """

    pair: str
    dtype: str
    places: int
    differ: int
    ties: int
    apart: float


@dataclass(frozen=True)
class AtOnce:
    """Times of all clips at one batch size, from the start of the first to the end of the last."""

    pair: str
    dtype: str
    profile: str
    batch: int
    clips_per_s: float
    tokens_per_s: float


def measure(wanted: Folder, clips: Mapping[str, Clip], device: str, results: Results) -> bool:
    """Measure everything, one line each, until the time is over; return True if all profiles were lossless."""
    holds = True
    for dtype in wanted.dtypes:
        for pair in wanted.pairs:
            if not results.begin(f"{pair} {dtype}", 10):
                continue
            with (
                results.guarded(f"{pair} {dtype}"),
                closing(LoadedModels(ModelSource(pair, device=device, dtype=dtype))) as loaded,
            ):
                for row in _pair(loaded, wanted, clips, results):
                    results.add(type(row).__name__.lower(), **asdict(row))
                    holds &= not isinstance(row, Profiled) or row.holds
    return holds


def _pair(
    loaded: LoadedModels, wanted: Folder, clips: Mapping[str, Clip], results: Results
) -> Iterator[Profiled | Disagreement | AtOnce]:
    names = loaded.source.pair, loaded.source.dtype
    captioners: dict[str, Captioner] = {}
    for name in wanted.profiles:
        if results.begin(f"{' '.join(names)}: {name}", 5):
            with results.guarded(f"{' '.join(names)}: {name}"):
                captioner = loaded.captioner(name, wanted.overrides)
                captioner.client.warm_up()
                captioners[name] = captioner
    plain = next(iter(captioners), None)
    if plain != wanted.profiles[0]:
        return
    records: dict[str, dict[str, Caption]] = {name: {} for name in captioners}
    for path, clip in clips.items():
        if results.begin(f"{' '.join(names)}: {path}", 2):
            for name, captioner in captioners.items():
                with results.guarded(f"{' '.join(names)}: {name} on {path}"):
                    records[name][path] = captioner.caption(path, clip=clip)
    for name, captioner in captioners.items():
        both = {path: record for path, record in records[name].items() if path in records[plain]}
        if both:
            yield _profiled(names, name, captioner, records[plain], both, clips)
    if records[plain] and results.begin(f"{' '.join(names)}: rows", 5):
        yield disagreement(names, captioners[plain], records[plain], clips)
    for name in list(captioners)[:2]:
        for batch in wanted.batches:
            if results.begin(f"{' '.join(names)}: {name}, {batch} at once", 5):
                yield _at_once(names, name, captioners[name], clips, batch)


def _profiled(
    names: tuple[str, str],
    profile: str,
    captioner: Captioner,
    plain: Mapping[str, Caption],
    records: Mapping[str, Caption],
    clips: Mapping[str, Clip],
) -> Profiled:
    limit = tie_limit(captioner.client.setup.target.model.dtype, captioner.client.setup.target.model.device)
    gaps = [
        logit_gap(captioner.client, CaptionRequest(path, clips[path]), plain[path].token_ids, record.token_ids)
        for path, record in records.items()
    ]
    ties = sum(0 < one <= limit for one in gaps)
    drafted = sum(record.counters["drafted"] for record in records.values())
    accepted = sum(record.counters["accepted"] for record in records.values())
    first, whole = (
        median(record.timings[kind] for record in records.values()) for kind in ("time_to_first_token", "end_to_end")
    )
    rate = median(decode_rate(record) or 0.0 for record in records.values())
    share = accepted / drafted if drafted else None
    return Profiled(*names, profile, gaps.count(0.0), ties, len(records), rate, first, whole, share)


@torch.inference_mode()
def disagreement(
    names: tuple[str, str], captioner: Captioner, plain: Mapping[str, Caption], clips: Mapping[str, Clip]
) -> Disagreement:
    """Read plain decoding's tokens twice and compare."""
    engine, generate = captioner.client.setup.target, captioner.client.profile.generate
    places = differ = ties = 0
    apart = 0.0
    for path, record in plain.items():
        request = CaptionRequest(path, clips[path], generate.prompt, generate.system)
        prefix = run_to_completion(captioner.client.setup.read(request, Trace()))
        both = []
        for rows in (1, _ROWS):
            span = engine.prefill(prefix, len(record.token_ids)).span
            parts = [record.token_ids[at : at + rows] for at in range(0, len(record.token_ids), rows)]
            both.append(torch.cat([engine.run([Rows(span, part)])[0].logits.float() for part in parts]))
            span.free()
        one, six = both
        best = one.topk(2, dim=-1).values
        tie = (best[:, 0] - best[:, 1]) / one.abs().amax(-1) <= EPSILON
        other = one.argmax(-1) != six.argmax(-1)
        places, differ, ties = places + len(one), differ + int(other.sum()), ties + int((other & tie).sum())
        apart = max(apart, float(((one - six).abs().amax(-1) / one.abs().amax(-1)).max()))
    return Disagreement(*names, places, differ, ties, apart)


def _at_once(
    names: tuple[str, str], profile: str, captioner: Captioner, clips: Mapping[str, Clip], batch: int
) -> AtOnce:
    begun, tokens = time.perf_counter(), 0
    with closing(captioner.client.serve(ReadyClips.of(clips), batch=batch)) as news:
        for _, one in news:
            if isinstance(one, Exception):
                raise one
            tokens += len(one.caption.token_ids) if isinstance(one, Finished) else 0
    seconds = time.perf_counter() - begun
    return AtOnce(*names, profile, batch, len(clips) / seconds, tokens / seconds)


def markdown(rows: Sequence[dict[str, object]]) -> str:
    """Return tables of a run's lines."""
    of = {name: [row for row in rows if row["kind"] == name] for name in ("profiled", "disagreement", "atonce")}
    parts = []
    if of["profiled"]:
        found = [Profiled(**without_kind(row)) for row in of["profiled"]]  # type: ignore[arg-type]
        lines = [
            (
                one.pair,
                one.dtype,
                one.profile,
                f"{one.identical}/{one.clips}",
                str(one.ties),
                "yes" if one.holds else "NO",
                f"{one.tokens_per_s:.0f}",
                f"{1e3 * one.first:.0f} ms",
                f"{1e3 * one.end_to_end:.0f} ms",
                "" if one.accepted is None else f"{one.accepted:.0%}",
            )
            for one in found
        ]
        heads = ["pair", "dtype", "profile", "same tokens", "near-ties", "holds", "tokens/s", "time to first token"]
        parts.append(table([*heads, "end to end", "accepted"], lines))
    if of["disagreement"]:
        heads = ["pair", "dtype", "places", "one row and six differ", "of them near-ties", "logits apart"]
        parts.append(table(heads, [_cells(row) for row in of["disagreement"]]))
    if of["atonce"]:
        heads = ["pair", "dtype", "profile", "clips at once", "clips/s", "tokens/s"]
        parts.append(table(heads, [_cells(row) for row in of["atonce"]]))
    left = [(str(row["what"]), str(row["why"])) for row in rows if row["kind"] == "left out"]
    parts += [table(["left out", "why"], left)] if left else []
    return "\n\n".join(parts)


def _cells(row: dict[str, object]) -> list[str]:
    return [f"{one:.3g}" if isinstance(one, float) else str(one) for one in without_kind(row).values()]
