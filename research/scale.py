"""Growth of times and memory with the video: prefill, T_p, T_q(alpha), KV cache, and the speed-ups they predict.

``python -m research.scale`` measures it.

SpecVLM Fig. 2a and Table 6, ParallelVLM Fig. 3. Prompts are random embeddings of the right number of tokens, since a
pass costs the same for any content. The vision tower is not included.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Annotated, Any

import numpy as np
import torch
import typer

from research import speed
from research.commands import TableFormat, parse_counts, run
from research.process_memory import PeakMemory
from research.random_init import random_model
from vidspec.bench import bandwidth
from vidspec.bench.loaded import ModelSource
from vidspec.bench.machine import machine
from vidspec.bench.passes import ALPHAS, MAX_ROWS, TimedPasses, measure_passes, prefill_pruned
from vidspec.bench.tables import table
from vidspec.bench.turns import measure_in_turns, time_call
from vidspec.cli.options import ModelOptions
from vidspec.cli.printed import print_facts, print_json, print_note
from vidspec.draft_length.costs import pass_times
from vidspec.draft_length.gamma import settled_window
from vidspec.engine.device import free_memory, synchroniser
from vidspec.engine.forward import Engine
from vidspec.engine.slab import KVSpan
from vidspec.errors import UsageError
from vidspec.models import loading
from vidspec.models.base import EmbeddedPrompt, VisualTokens
from vidspec.models.video_language_model import VideoLanguageModel
from vidspec.video import Clip

__all__ = ["ROWS", "Forecast", "Point", "main", "markdown", "measure_scale", "scale", "synthetic"]

#: Rows of the timed target passes; T_p is interpolated linearly between them.
ROWS = (1, 2, 4, 8, 16, MAX_ROWS)
#: Text tokens after the video, as in a short prompt.
TEXT = 32
#: Visual tokens of a frame under LLaVA-OneVision.
TOKENS_PER_FRAME = 196


@dataclass(frozen=True)
class Forecast:
    """Predicted speed-ups over plain decoding, by the speed model from the measured times.

    Attributes:
        sequential: of decoding by the sequential schedule, at its best window ``gamma``.
        parallel: of decoding by the parallel schedule, one device each, at ``parallel_gamma`` = T_p / T_q.
        end_to_end: of ``sequential``, with both prefills.
    """

    gamma: int
    sequential: float
    parallel_gamma: int
    parallel: float
    end_to_end: float


@dataclass(frozen=True)
class Point:
    """Measurements at one number of frames, in seconds and bytes; by alpha for the draft.

    Attributes:
        frames, visual_tokens: of the prompt.
        target_prefill, draft_prefill: of the whole and of the pruned prompt, median of the repeats.
        target: T_p(n) by rows.
        draft: T_q(alpha).
        kv: size of the target's cache of the whole prompt.
        peak: see ``PeakMemory``; None if it cannot be read.
        forecast: by alpha.
    """

    frames: int
    visual_tokens: int
    target_prefill: float
    draft_prefill: dict[float, float]
    target: dict[int, float]
    draft: dict[float, float]
    kv: int
    peak: int | None
    forecast: dict[float, Forecast]

    def to_dict(self) -> dict[str, Any]:
        """Return JSON values."""
        return asdict(self)


def measure_scale(
    source: ModelSource,
    frames: Sequence[int],
    *,
    made: tuple[str, str | None] | None = None,
    tokens_per_frame: int | None = None,
    beta: float = 0.8,
    new_tokens: int = 128,
    repeats: int = 3,
    threads: int | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> tuple[dict[str, Any], list[Point]]:
    """Load or create the models, then run :func:`scale`; also returns facts of the machine.

    Args:
        source: the models and their placement.
        frames: increasing.
        made: configs of target and draft to create with random weights instead; without a draft's the target drafts.
        tokens_per_frame: if None, as the target encodes 8 grey frames, or 196 (LLaVA-OneVision) with ``made``.
        beta, new_tokens, repeats, say: see :func:`scale`.
        threads: torch threads on a CPU.

    Raises:
        VidspecError: of the models.
    """
    if threads:
        torch.set_num_threads(threads)
    where = source.placement()
    names = source.names if made is None else made
    build = loading.load_model if made is None else random_model
    target = build(names[0], where)
    draft = None if names[1] is None else build(names[1], where)
    each = tokens_per_frame or (TOKENS_PER_FRAME if made is not None else _seen(target))
    points = scale(
        target, draft, frames, tokens_per_frame=each, beta=beta, new_tokens=new_tokens, repeats=repeats, say=say
    )
    copied = bandwidth.copy_bandwidth(where.device)
    facts = machine(where.device) | {
        "target": names[0],
        "draft": names[1],
        "dtype": str(target.dtype).removeprefix("torch."),
        "tokens_per_frame": each,
        "copy_GB_per_s": round(copied / 1e9, 2),
        "target_pass_MB": round(bandwidth.pass_bytes(target) / 1e6, 2),
    }
    return facts, points


def _seen(model: VideoLanguageModel) -> int:
    """Return the visual tokens per frame of 8 grey frames."""
    grey = np.full((8, 256, 256, 3), 127, dtype=np.uint8)
    clip = Clip.of(grey, range(8))
    return max(1, len(model.encode(model.preprocess(clip))) // 8)


def synthetic(model: VideoLanguageModel, tokens: int) -> EmbeddedPrompt:
    """Return a prompt of ``tokens`` visual tokens in one frame and 32 text tokens, all random, seed 0."""
    length, place = tokens + TEXT, torch.arange(tokens, device=model.device)
    rng = torch.Generator().manual_seed(0)
    width = model.embed(torch.zeros(1, 1, dtype=torch.long, device=model.device)).shape[-1]
    embeds = torch.randn(1, length, width, generator=rng).to(model.device, model.dtype)
    flat = torch.zeros_like(place)
    visual = VisualTokens(
        index=place,
        frame=flat,
        row=flat,
        column=place,
        required=flat.bool(),
        features=embeds[0, :tokens],
    )
    ids = torch.zeros(length, dtype=torch.long, device=model.device)
    positions = torch.arange(length, device=model.device).expand(model.decoder.axes, 1, -1)
    return EmbeddedPrompt(ids, embeds, positions, visual, length)


def scale(
    target: VideoLanguageModel,
    draft: VideoLanguageModel | None,
    frames: Sequence[int],
    *,
    tokens_per_frame: int,
    alphas: Sequence[float] = ALPHAS,
    beta: float = 0.8,
    new_tokens: int = 128,
    repeats: int = 3,
    say: Callable[[str], None] = lambda _: None,
) -> list[Point]:
    """Measure at each number of frames, until one does not fit into memory, which is reported.

    Args:
        target: the target.
        draft: the draft; the target drafts for itself if None.
        frames: increasing.
        tokens_per_frame: visual tokens of one frame.
        alphas: shares of visual tokens the draft does not see.
        beta: acceptance of the forecast, the same for every alpha.
        new_tokens: length of the text of the end-to-end forecast.
        repeats: of every measurement.
        say: receives progress messages.
    """
    drafting, points = draft or target, list[Point]()

    def point(count: int, tokens: int) -> Point:
        peak = PeakMemory(target.device)
        peak.reset()
        prefix = synthetic(target, tokens)
        own = prefix if draft is None else synthetic(draft, tokens)
        engine, beside = Engine(target), Engine(drafting)
        prefill, span = _read(engine, prefix, 0.0, repeats)
        reads = {alpha: _read(beside, own, alpha, repeats) for alpha in alphas}
        spans = {alpha: (beside, read) for alpha, (_, read) in reads.items()}
        passes = measure_passes((engine, span), spans, rows=ROWS, repeats=repeats)
        return Point(
            count,
            tokens,
            prefill,
            {alpha: seconds for alpha, (seconds, _) in reads.items()},
            dict(passes.target),
            dict(passes.draft),
            bandwidth.kv_bytes(target) * (tokens + TEXT),
            peak.read(),
            {alpha: _forecast(passes, alpha, prefill, reads[alpha][0], beta, new_tokens) for alpha in alphas},
        )

    for count in frames:
        tokens = count * tokens_per_frame
        say(f"{count} frames, {tokens} visual tokens")
        needed = _needed(target, drafting, tokens, alphas)
        room = free_memory(target.device)
        if room is not None and needed > room:
            say(f"{count} frames need about {needed / 2**30:.1f} GiB; {room / 2**30:.1f} are free")
            break
        try:
            points.append(point(count, tokens))
        except torch.OutOfMemoryError:
            say(f"{count} frames do not fit into the device's memory")
            break
    return points


def _read(engine: Engine, prefix: EmbeddedPrompt, alpha: float, repeats: int) -> tuple[float, KVSpan]:
    """Return the seconds of a prefill, the median after a warm-up, and its sequence."""
    wait, spans = synchroniser(engine.model.device), list[KVSpan]()

    def once(alpha: float) -> float:
        spans.clear()  # two caches at once might not fit
        return time_call(lambda: spans.append(prefill_pruned(engine, prefix, alpha)[0]), wait)

    return median(measure_in_turns({"": once}, [alpha], repeats)[""][alpha]), spans[0]


def _forecast(
    passes: TimedPasses, alpha: float, prefill: float, draft_prefill: float, beta: float, tokens: int
) -> Forecast:
    verify, tq = pass_times(list(passes.target.items())), passes.draft[alpha]
    gamma, rate = speed.best_window(beta, verify, tq, lowest=1)
    decode, beside = rate * verify(1), settled_window(verify, tq)
    return Forecast(
        gamma,
        decode,
        beside,
        speed.parallel(beta, beside, verify(1), verify(beside), tq),
        speed.end_to_end(decode, tokens * verify(1), prefill, draft_prefill),
    )


def _needed(target: VideoLanguageModel, draft: VideoLanguageModel, tokens: int, alphas: Sequence[float]) -> float:
    """Return the bytes of all caches, doubled for the prefill's activations; weights are loaded already."""
    kept = sum(1 - alpha for alpha in alphas) * tokens
    return 2 * (bandwidth.kv_bytes(target) * (tokens + TEXT) + bandwidth.kv_bytes(draft) * kept)


def markdown(points: Sequence[Point], beta: float, new_tokens: int) -> str:
    """Return a table with one row per number of frames and alpha; times in ms."""
    heads = ["frames", "visual tokens", "target prefill", "T_p(1)", "T_p(8)", "KV MiB", "peak MiB", "alpha"]
    heads += ["draft prefill", "T_q", "c", "in turns (gamma)", "parallel (gamma)", "end to end"]
    lines = []
    for one in points:
        first = [str(one.frames), str(one.visual_tokens), _ms(one.target_prefill), _ms(one.target[1])]
        first += [_ms(one.target[8]), f"{one.kv / 2**20:.1f}"]
        first.append("?" if one.peak is None else f"{one.peak / 2**20:.0f}")
        for alpha, what in one.forecast.items():
            cells = [*first, f"{alpha:g}", _ms(one.draft_prefill[alpha]), _ms(one.draft[alpha])]
            cells += [f"{one.target[1] / one.draft[alpha]:.1f}", f"{what.sequential:.2f}x ({what.gamma})"]
            cells += [f"{what.parallel:.2f}x ({what.parallel_gamma})", f"{what.end_to_end:.2f}x"]
            lines.append(cells)
    note = (
        f"Speed-ups are forecasts: the measured times put into the speed model at an acceptance of {beta:g} for every "
        f"alpha, at the best window in turns and at T_p / T_q in parallel; end to end in turns, {new_tokens} tokens. "
        "The vision tower is left out."
    )
    return f"{table(heads, lines)}\n\n{note}"


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:.2f}"


def command(
    *,
    frames: Annotated[
        str, typer.Option("--frames", help="Numbers of frames, increasing; it ends where memory does.")
    ] = "8,16,32,64,128",
    tokens_per_frame: Annotated[
        int | None,
        typer.Option("--tokens-per-frame", min=1, help="[default: what the target sees; 196 with --random-init]"),
    ] = None,
    models: ModelOptions,
    random_init: Annotated[
        str | None,
        typer.Option("--random-init", metavar="CONFIG", help="Target of this config.json with random weights."),
    ] = None,
    random_init_draft: Annotated[
        str | None, typer.Option("--random-init-draft", metavar="CONFIG", help="Draft; the target itself if left out.")
    ] = None,
    beta: Annotated[float, typer.Option("--beta", help="Acceptance of the speed-ups' forecast.")] = 0.8,
    tokens: Annotated[int, typer.Option("--tokens", min=2, help="Length of the text end to end.")] = 128,
    repeats: Annotated[int, typer.Option("--repeats", min=1, help="Of every measurement; medians.")] = 3,
    form: Annotated[TableFormat, typer.Option("--format", help="json: one object with points.")] = "markdown",
) -> int:
    """Measure how prefill, passes and memory grow with the number of frames, and forecast the speed-up.

    Times do not depend on weights: --random-init makes a target from its config alone.
    """
    numbers = parse_counts(frames, "--frames", "8,16,32")
    if not 0 <= beta < 1:
        raise UsageError(f"--beta must lie between 0 and 1, not {beta:g}")
    if random_init is not None and (models.target or models.draft):
        raise UsageError("--random-init excludes --target and --draft", hint="--random-init-draft names the draft")
    if random_init_draft is not None and random_init is None:
        raise UsageError("--random-init-draft needs --random-init")
    made = (random_init, random_init_draft) if random_init is not None else None
    facts, points = measure_scale(
        models.source,
        numbers,
        made=made,
        tokens_per_frame=tokens_per_frame,
        beta=beta,
        new_tokens=tokens,
        repeats=repeats,
        threads=models.threads,
        say=print_note,
    )
    if form == "json":
        content = [one.to_dict() for one in points]
        print_json({"machine": facts, "beta": beta, "tokens": tokens, "points": content})
    else:
        print(markdown(points, beta, tokens))
        print_facts(facts)
    return 0


def main(args: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    return run(command, "scale", args)


if __name__ == "__main__":
    sys.exit(main())
