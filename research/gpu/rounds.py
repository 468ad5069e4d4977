"""Rounds at published sizes with random weights on the real loop, and ``generate`` of transformers.

Each drafted token is accepted with a given probability whatever the models say, so that a round takes as long as that
of a trained pair of this acceptance. The video's keys and values are noise. A configuration that fails is named, and
the next one is measured.
"""

from __future__ import annotations

import gc
import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from itertools import product
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile

from research.gpu.generation import Generated, measure_generate
from research.gpu.results import Results, without_kind
from research.gpu.sizes import bytes_needed, gib, release
from research.process_memory import PeakMemory
from research.random_clips import begin_clip
from research.random_decoder import Language, behind, engine_of, language
from research.random_heads import BLOCK_HEADS, RandomHead, random_block_head, random_eagle3
from research.sizes import SIZES
from vidspec.acceptance.base import AcceptanceRule, Verdict
from vidspec.bench.tables import table
from vidspec.decoding.loop import Loop
from vidspec.decoding.sequence import Sequence as Clip
from vidspec.drafting.base import Draft, Drafter
from vidspec.drafting.block import BlockDrafter
from vidspec.drafting.chain import ChainDrafter
from vidspec.drafting.tree import HeadChain
from vidspec.engine.device import free_memory, synchroniser
from vidspec.engine.forward import Engine
from vidspec.engine.matrix import Precision
from vidspec.engine.rows import PassResult, PrefillResult, Rows
from vidspec.engine.sampling import Sampling
from vidspec.engine.slab import KVSpan

#: Entries that a clip takes beyond its prompt, and those that the last windows may need.
_ROOM, _LAST = 4096, 80
#: Turns of the loop in a profile, and kernels of its table.
_PROFILED, _KERNELS = 6, 30
#: Kernels of a line of results, and letters of their names.
_TOP, _NAME = 8, 60
#: The contender that is not ours.
GENERATE = "generate"
_COPIES = ("int8", "int4")


class Forced(AcceptanceRule):
    """Accept each drafted token with probability ``beta``, up to the first that is not; no text is kept.

    Args:
        beta: the probability.
        seed: of its own random numbers.
    """

    def __init__(self, beta: float, seed: int) -> None:
        self.beta, self._rng = beta, random.Random(seed)

    def __call__(self, draft: Draft, passed: PassResult, rng: torch.Generator) -> Verdict:
        accepted = 0
        while accepted < len(draft.tokens) and self._rng.random() < self.beta:
            accepted += 1
        return Verdict.chain(accepted, passed.chosen[accepted])


@dataclass(frozen=True)
class Configuration:
    """A contender and its windows.

    Attributes:
        draft: ``none``; ``int8`` or ``int4``, a copy of the target's weights; ``eagle3``; a block head (``dflash``,
            ``dspark`` with a Markov head, ``selector``); the name of a smaller model; or ``generate``, plain decoding
            by transformers.
        clips: at once, one after another.
        windows: acceptance of a drafted token, and tokens drafted at a time.
    """

    draft: str
    clips: Sequence[int] = (1,)
    windows: Sequence[tuple[float, int]] = ((0.0, 0),)


@dataclass(frozen=True)
class Plan:
    """Measurements to make, the most valuable first.

    Attributes:
        sizes: of the target.
        entries: of a clip's prompt.
        seconds: of each configuration, after ``warm_up`` rounds in which kernels are compiled and passes captured.
        tokens: of ``generate``.
        weights: format of the target's weights.
    """

    sizes: Sequence[str]
    configurations: Sequence[Configuration]
    dtype: torch.dtype = torch.bfloat16
    entries: int = 2_000
    seconds: float = 2.0
    warm_up: int = 8
    tokens: int = 48
    weights: Precision | None = None


#: Acceptance as assumed in research/prediction, and others. Heads last: a target once tapped stays so.
PLAN = (
    Configuration("none", (1, 16)),
    Configuration("int4", (1, 16), ((0.9, 5), (0.8, 3))),
    Configuration("int8", (1,), ((0.98, 8), (0.9, 5))),
    Configuration("3B", (1,), ((0.81, 3),)),
    Configuration("eagle3", (1, 16), ((0.55, 3), (0.8, 5))),
    Configuration("dflash", (1, 16), ((0.8, 7), (0.8, 15))),
    Configuration("dspark", (1, 16), ((0.8, 7),)),
    Configuration("selector", (1, 16), ((0.8, 7),)),
    Configuration(GENERATE),
)


@dataclass(frozen=True)
class Rounds:
    """Times of rounds of one configuration.

    Attributes:
        way: ``graphs`` if all passes of target and draft were replayed; else ``eager: reason``.
        clips, entries: at once, and entries of each one's prompt.
        beta, gamma: acceptance and window; 0 for plain decoding.
        seconds: of a round of all clips.
        tokens_per_s: of all clips together.
        tokens_per_round: of a clip.
        ready: seconds until the warm-up was over, in which passes are captured.
        peak: bytes of device memory.
    """

    model: str
    draft: str
    way: str
    clips: int
    entries: int
    beta: float
    gamma: int
    seconds: float
    tokens_per_s: float
    tokens_per_round: float
    ready: float
    peak: int | None


@dataclass(frozen=True)
class Kernels:
    """Profile of some turns of the loop: passes of the target, and chains or passes of the draft.

    Attributes:
        turns: their number.
        seconds: of all, with the profiler's own.
        busy: seconds of all kernels.
        top: the kernels that took longest: name, calls, seconds.
    """

    model: str
    draft: str
    clips: int
    beta: float
    gamma: int
    turns: int
    seconds: float
    busy: float
    top: Sequence[tuple[str, int, float]]


def measure(plan: Plan, device: torch.device, results: Results, profiles: Path | None = None) -> None:
    """Measure all configurations, one line each, until the time is over.

    Args:
        plan: the configurations.
        device: where.
        results: takes the lines.
        profiles: folder for a table of a few turns after each configuration; None for none.
    """
    if device.type == "cuda":
        torch.backends.cuda.enable_cudnn_sdp(False)  # as where a model is loaded
    for size in plan.sizes:
        if results.begin(size, 10):
            with results.guarded(size):
                _size(size, plan, device, results, profiles)
            release(device)
            if any(one.draft == GENERATE for one in plan.configurations) and results.begin(f"{size} {GENERATE}", 20):
                with results.guarded(f"{size} {GENERATE}"):
                    found = measure_generate(size, device, plan.dtype, plan.entries, plan.tokens)
                    results.add("generated", **asdict(found))
            release(device)  # before the next is made


def _size(size: str, plan: Plan, device: torch.device, results: Results, profiles: Path | None) -> None:
    """Measure the rounds of one target."""
    free = free_memory(device)
    if free is not None and bytes_needed(SIZES[size], 1, plan.entries + _ROOM) > free:  # quantised from 16 bits
        results.leave_out(size, "too little memory")
        return
    smaller = [name for name, one in SIZES.items() if one.read < SIZES[size].read]
    drafts = [one for one in plan.configurations if one.draft not in SIZES or one.draft in smaller]
    # A draft model has an embedding for no other ids than its own.
    ids = min([SIZES[name].vocabulary for name in (size, *(one.draft for one in drafts)) if name in SIZES])
    model = language(SIZES[size], device, plan.dtype, wanted=plan.weights)
    target = engine_of(replace(model, vocabulary=ids))
    release(device)
    name = f"{size} in {plan.weights}" if plan.weights else size
    for one in drafts:
        if one.draft != GENERATE and results.begin(f"{size} {one.draft}", 10):
            with results.guarded(f"{size} {one.draft}"):
                _Run(size, name, one.draft, target, _draft(one.draft, target, size, plan.dtype), plan).measure_all(
                    one, free, results, profiles
                )
            release(device)  # before the next draft is made


def _draft(name: str, target: Engine, size: str, dtype: torch.dtype) -> Engine | None:
    """Return the engine of a draft of the target; None for plain decoding."""
    model: Language = target.model  # type: ignore[assignment]
    if name == "none":
        return None
    if name in _COPIES:
        copy = model.decoder.quantised_copy(name)  # type: ignore[attr-defined]
        return engine_of(Language(copy, model.device, model.vocabulary, 0, model.known_ids))
    if name == "eagle3":
        return engine_of(random_eagle3(model, SIZES[size]))
    if name in BLOCK_HEADS:
        return engine_of(random_block_head(model, SIZES[size], name))
    return engine_of(language(SIZES[name], model.device, dtype))


@dataclass(frozen=True)
class _Run:
    """Models and times of the runs of one target and draft."""

    size: str
    model: str
    name: str
    target: Engine
    draft: Engine | None
    plan: Plan

    def measure_all(self, one: Configuration, free: int | None, results: Results, profiles: Path | None) -> None:
        """Measure all numbers of clips and all windows, one line each."""
        entries = self.plan.entries
        for clips, (beta, gamma) in product(one.clips, one.windows):
            what = f"{self.model} {self.name}, {clips} x {entries}, beta {beta:g}, gamma {gamma}"
            if free is not None and bytes_needed(SIZES[self.size], clips, entries + _ROOM) > free:
                results.leave_out(what, "too little memory")
            elif results.begin(what, self.plan.seconds + 2):
                with results.guarded(what):
                    table_of = profiles and profiles / f"{what.replace(',', '').replace(' ', '-')}.txt"
                    found, kernels = self.measure(clips, beta, gamma, table_of)
                    results.add("rounds", **asdict(found))
                    if kernels is not None:
                        results.add("kernels", **asdict(kernels))

    def measure(self, clips: int, beta: float, gamma: int, table_of: Path | None) -> tuple[Rounds, Kernels | None]:
        """Return the times of some rounds, and a profile of further turns, whose tables are written to ``table_of``."""
        device, loop = self.target.model.device, Loop(overlaps=True)
        wait, peak, begun = synchroniser(device), PeakMemory(device), time.perf_counter()
        kernels = None
        peak.reset()
        with self._spans(clips) as (spans, drafts):
            try:
                running = [
                    self._begin(loop, at, span, own, beta, gamma)
                    for at, (span, own) in enumerate(zip(spans, drafts, strict=True))
                ]
                _turns(loop, running, lambda: len(running[0].rounds) <= self.plan.warm_up)
                wait()
                ready = time.perf_counter() - begun
                seconds, rounds, tokens = self._timed(loop, running, wait)
                if table_of is not None:
                    profiled, spent, top = _profiled(table_of, loop, running, wait)
                    kernels = Kernels(self.model, self.name, clips, beta, gamma, _PROFILED, profiled, spent, top)
            finally:
                loop.close()
        found = Rounds(
            self.model,
            self.name,
            self._way,
            clips,
            self.plan.entries,
            beta,
            gamma,
            seconds * clips / rounds,
            tokens / seconds,
            tokens / rounds,
            ready,
            peak.read(),
        )
        return found, kernels

    def _timed(self, loop: Loop, running: Sequence[Clip], wait: Callable[[], None]) -> tuple[float, int, int]:
        """Return the seconds, rounds and tokens of all clips in a stretch without collections."""
        most, before = self.plan.entries + _ROOM - _LAST, [len(one.rounds) for one in running]

        def more() -> bool:
            ended = time.perf_counter() >= end and len(running[0].rounds) > before[0]
            return not ended and max([one.target.span.length for one in running]) < most

        gc.disable()  # as during decoding
        try:
            begun = time.perf_counter()
            end = begun + self.plan.seconds
            _turns(loop, running, more)
            wait()
            seconds = time.perf_counter() - begun
        finally:
            gc.enable()
        rounds = [one for clip, count in zip(running, before, strict=True) for one in clip.rounds[count:]]
        return seconds, len(rounds), sum(len(one.token_ids) for one in rounds)

    @contextmanager
    def _spans(self, clips: int) -> Iterator[tuple[list[KVSpan], list[KVSpan | None]]]:
        """Sequences of target and draft behind noise, freed afterwards; copies of the target follow its own."""
        entries, target = self.plan.entries, self.target.model
        spans = behind(target, clips, entries, _ROOM)  # type: ignore[arg-type]
        drafts: list[KVSpan] = []
        try:
            if self.name in _COPIES:
                drafts = [span.make_follower() for span in spans]
            elif self.draft is not None:
                drafts = behind(self.draft.model, clips, entries, _ROOM)  # type: ignore[arg-type]
            yield spans, [*drafts] or [None] * clips
        finally:
            for span in (*drafts, *spans):
                span.free()

    def _begin(self, loop: Loop, at: int, span: KVSpan, own: KVSpan | None, beta: float, gamma: int) -> Clip:
        """Begin a clip after one token behind the noise."""
        model = None if self.draft is None else self.draft.model
        tapped = model.blocks if isinstance(model, RandomHead) else ()
        (passed,) = self.target.run([Rows(span, [at], tapped=tapped)])
        read = PrefillResult(span, passed.logits[-1])
        if self.draft is None or own is None:
            return begin_clip(loop, at, self.target, read)
        drafter = self._drafter(self.draft, own, passed.tapped)
        return begin_clip(loop, at, self.target, read, drafter, Forced(beta, at), gamma)

    def _drafter(self, engine: Engine, span: KVSpan, states: torch.Tensor | None) -> Drafter:
        """Return the drafter of a clip; ``states`` are the target's at its last row."""
        if self.name == "eagle3":
            assert states is not None
            return HeadChain(engine, span, (), states)  # type: ignore[arg-type]
        kind = BlockDrafter if self.name in BLOCK_HEADS else ChainDrafter
        return kind(engine, span, Sampling(), torch.Generator().manual_seed(2))  # type: ignore[arg-type]

    @property
    def _way(self) -> str:
        for who, engine in (("target", self.target), ("draft", self.draft)):
            if engine is not None and not ((graphs := engine.model.decoder.graphs) and graphs.captured):
                return f"eager: {who}, {engine.model.decoder.eager or 'no GPU'}"
        return "graphs"


def _turns(loop: Loop, running: Sequence[Clip], more: Callable[[], bool]) -> None:
    """Run turns of the loop while there are to be more.

    Raises:
        Exception: that of the first clip that failed.
    """
    while more():
        loop.turn()
        for one in running:
            if one.error is not None:
                raise one.error
            one.events.clear()


def _profiled(
    file: Path, loop: Loop, running: Sequence[Clip], wait: Callable[[], None]
) -> tuple[float, float, list[tuple[str, int, float]]]:
    """Write the kernels, and the operations of the host, of some turns of the loop.

    Returns:
        Seconds of the turns and of all kernels, and the first kernels with their calls and seconds; of a CPU its
        operations.
    """
    left, on_gpu = iter(range(_PROFILED)), running[0].target.engine.model.device.type == "cuda"
    with profile(activities=[ProfilerActivity.CPU, *[ProfilerActivity.CUDA] * on_gpu]) as seen:
        begun = time.perf_counter()
        _turns(loop, running, lambda: next(left, None) is not None)
        wait()
        seconds = time.perf_counter() - begun
    averages, keys = seen.key_averages(), [*["self_device_time_total"] * on_gpu, "self_cpu_time_total"]
    tables = [averages.table(sort_by=key, row_limit=_KERNELS, max_name_column_width=80) for key in keys]
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("\n".join([f"{_PROFILED} turns, {1e3 * seconds:.1f} ms", *tables]), encoding="utf-8")
    spent = [(str(one.key)[:_NAME], int(one.count), getattr(one, keys[0]) / 1e6) for one in averages]
    spent.sort(key=lambda one: -one[2])
    return seconds, sum(one[2] for one in spent), spent[:_TOP]


def markdown(rows: Sequence[dict[str, object]]) -> str:
    """Return tables of a run's lines."""
    rounds = [Rounds(**without_kind(row)) for row in rows if row["kind"] == "rounds"]  # type: ignore[arg-type]
    generated = [Generated(**without_kind(row)) for row in rows if row["kind"] == "generated"]  # type: ignore[arg-type]
    left = [(str(row["what"]), str(row["why"])) for row in rows if row["kind"] == "left out"]
    lines = [
        (
            one.model,
            one.draft,
            one.way,
            str(one.clips),
            f"{one.entries:,}",
            *((f"{one.beta:g}", str(one.gamma)) if one.gamma else ("", "")),
            f"{1e3 * one.seconds:.2f} ms",
            f"{one.tokens_per_round:.2f}",
            f"{one.tokens_per_s:.0f}",
            gib(one.peak),
        )
        for one in rounds
    ]
    heads = ["model", "draft", "way", "clips", "entries", "acceptance", "gamma", "round", "tokens / round", "tokens/s"]
    parts = [table([*heads, "peak"], lines)]
    others = [
        (
            one.model,
            f"{one.entries:,}",
            f"{1e3 * one.first:.0f} ms",
            f"{1e3 * one.token:.1f} ms",
            f"{1 / one.token:.1f}",
        )
        for one in generated
    ]
    names = ["`generate` of transformers", "entries", "first token", "each further token", "tokens/s"]
    parts += [table(names, others)] if others else []
    parts += [table(["left out", "why"], left)] if left else []
    return "\n\n".join(parts)
