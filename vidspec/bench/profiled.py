"""``vidspec profile``: one clip under several profiles in rotation, each broken down by time. Prints nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path

import torch

from vidspec.bench import bandwidth
from vidspec.bench.arithmetic import WorkRate, measure_rates
from vidspec.bench.breakdown import Breakdown, breakdown
from vidspec.bench.loaded import LoadedModels, ModelSource, require_files
from vidspec.bench.machine import machine
from vidspec.bench.memory import MemoryUse, PeakMemory, resident
from vidspec.bench.passes import ALPHAS, TimedPasses, measure_passes, prefill_pruned
from vidspec.bench.turns import measure_in_turns
from vidspec.captioner import Captioner
from vidspec.config.profiles import Profile
from vidspec.engine.forward import Engine
from vidspec.engine.requests import run_to_completion
from vidspec.events.events import Finished, Prefilled
from vidspec.events.record import Caption
from vidspec.events.trace import Trace
from vidspec.models.request import CaptionRequest

__all__ = ["ProfileBreakdown", "ProfileReport", "profile_clip"]


@dataclass(frozen=True)
class ProfiledRun:
    """One run: its record, text tokens of the prompt, and the peaks of this process and of the draft's."""

    record: Caption
    text: int
    peaks: tuple[int | None, int | None]


@dataclass(frozen=True)
class ProfileBreakdown:
    """One profile on the clip: the run of the median wall clock among its repeats.

    Attributes:
        profile: its name.
        breakdown: time by kind of work.
        tokens: emitted.
        tokens_per_s: decode rate; None for a text of one token.
        limit_share: target passes per second over those that the measured copy bandwidth allows for weights and KV.
            Above 1 if the weights stay in the processor's caches.
        memory: one entry per process.
        passes: T_p and T_q of its target and draft; None if they were not measured.
        alpha: share of visual tokens hidden from the draft by the profile.
        c: T_p(1) / T_q(alpha); None without passes or draft.
        gamma: recommended window; None without passes or draft.
        walls: wall clocks of all repeats.
    """

    profile: str
    breakdown: Breakdown
    tokens: int
    tokens_per_s: float | None
    limit_share: float | None
    memory: tuple[MemoryUse, ...]
    alpha: float
    walls: tuple[float, ...]
    passes: TimedPasses | None = None
    c: float | None = None
    gamma: int | None = None

    def to_dict(self) -> dict[str, object]:
        """Return JSON values: ``profile``, ``wall`` and ``parts`` in seconds, and everything else."""
        one = self.breakdown
        return {
            "profile": self.profile,
            "wall": one.wall,
            "parts": one.parts,
            "hidden": one.hidden,
            "lanes": one.lanes,
            "overlap": one.overlap,
            "walls": list(self.walls),
            "tokens": self.tokens,
            "tokens_per_s": self.tokens_per_s,
            "limit_share": self.limit_share,
            "memory": [{**asdict(part), "activations": part.activations} for part in self.memory],
            "alpha": self.alpha,
            "passes": None
            if self.passes is None
            else {
                "target": {str(n): seconds for n, seconds in self.passes.target.items()},
                "draft": {f"{alpha:g}": seconds for alpha, seconds in self.passes.draft.items()},
                "kept": {f"{alpha:g}": tokens for alpha, tokens in self.passes.kept.items()},
            },
            "c": self.c,
            "gamma": self.gamma,
        }


@dataclass(frozen=True)
class ProfileReport:
    """All profiles on a clip, facts about the machine, and the target's rates, empty if passes were not measured."""

    clip: str
    machine: dict[str, object]
    runs: tuple[ProfileBreakdown, ...]
    rates: tuple[WorkRate, ...] = ()

    def to_dict(self) -> dict[str, object]:
        """Return JSON values."""
        rates = [{**asdict(one), "share": one.share} for one in self.rates]
        runs = [one.to_dict() for one in self.runs]
        return {"clip": self.clip, "machine": self.machine, "runs": runs, "rates": rates}


def profile_clip(
    clip: str | Path,
    names: Sequence[str],
    source: ModelSource,
    *,
    overrides: Mapping[str, object] | None = None,
    repeats: int = 3,
    passes: bool = True,
    threads: int | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> ProfileReport:
    """Caption a clip under each profile in rotation, and break down the runs.

    Args:
        clip: a video file.
        names: profiles, by name or file.
        source: the models.
        overrides: dotted keys of every profile.
        repeats: of every profile, interleaved, after a warm-up of each.
        passes: measure single passes too.
        threads: of torch on a CPU.
        say: called with the next step.

    Raises:
        VidspecError: of profiles, models and the clip.
    """
    require_files([Path(clip)])
    if threads:
        torch.set_num_threads(threads)
    before = resident() or 0
    loaded = LoadedModels(source)
    try:
        captioners = {name: loaded.captioner(name, overrides) for name in names}
        loaded_draft = {name: _draft_memory(captioner) for name, captioner in captioners.items()}
        contenders = {name: partial(_run_once, one) for name, one in captioners.items()}
        found = measure_in_turns(contenders, [str(clip)], repeats, say=say)
        speed = bandwidth.copy_bandwidth(loaded.where.device)
        times: dict[bool, TimedPasses] = {}
        runs = []
        for name, captioner in captioners.items():
            one = _breakdown_of(name, captioner, loaded, found[name][str(clip)], speed, (before, loaded_draft[name]))
            if passes:
                one = _add_pass_costs(one, captioner, loaded, clip, times, say)
            runs.append(one)
        rates = _measure_rates(captioners[names[0]], clip, say) if passes else ()
        facts = machine(loaded.where.device) | {"copy_GB_per_s": round(speed / 1e9, 2)}
        return ProfileReport(str(clip), facts, tuple(runs), rates)
    finally:
        loaded.close()


def _measure_rates(captioner: Captioner, path: str | Path, say: Callable[[str], None]) -> tuple[WorkRate, ...]:
    """Return the target's rates on a clip as a profile shows it."""
    say("operations per second")
    engine, wanted = captioner.client.setup.target, captioner.client.profile.generate
    pixels = engine.model.preprocess(captioner.client.inputs.read(path))
    return measure_rates(engine, pixels, engine.model.prefix(engine.model.encode(pixels), wanted.prompt, wanted.system))


def _draft_memory(captioner: Captioner) -> int:
    """Return the resident memory of the draft's process with its model loaded, before any run; 0 without one."""
    slot = captioner.client.setup.slot
    return (resident(slot.ready().process.pid) or 0) if slot is not None else 0


def _run_once(captioner: Captioner, clip: str) -> ProfiledRun:
    setup = captioner.client.setup
    setup.forget()  # the previous caption would be reused as a draft
    process = setup.slot.process if setup.slot else None
    device = setup.target.model.device
    peaks = [PeakMemory(device)]
    if process is not None:
        peaks.append(PeakMemory(device, process.process.pid))
    for one in peaks:
        one.reset()
    text, record = 0, None
    for event in captioner.stream(clip):
        if isinstance(event, Prefilled):
            text = event.prompt_tokens - event.visual_tokens
        elif isinstance(event, Finished):
            record = event.caption
    if record is None:
        raise AssertionError("a stream ends with Finished")
    read = [one.read() for one in peaks]
    return ProfiledRun(record, text, (read[0], read[1] if len(read) > 1 else None))


def _breakdown_of(
    name: str,
    captioner: Captioner,
    loaded: LoadedModels,
    measured: Sequence[ProfiledRun],
    speed: float,
    base: tuple[int, int],
) -> ProfileBreakdown:
    ordered = sorted(measured, key=lambda one: one.record.timings["end_to_end"])
    chosen = ordered[(len(ordered) - 1) // 2]
    record, profile = chosen.record, captioner.client.profile
    rate, length = record.speed.get("tokens_per_s"), record.lengths.get("tokens_per_target_pass")
    context = record.counters["visual_tokens"] + chosen.text + len(record.token_ids) / 2
    share = rate / (length or 1.0) * bandwidth.pass_bytes(loaded.target, context) / speed if rate else None
    return ProfileBreakdown(
        profile=name,
        breakdown=breakdown(record.trace.spans if record.trace else (), record.timings["end_to_end"]),
        tokens=len(record.token_ids),
        tokens_per_s=rate,
        limit_share=share,
        memory=_memory(captioner, loaded, chosen, base),
        alpha=profile.prune.alpha if profile.prune.method != "none" else 0.0,
        walls=tuple(one.record.timings["end_to_end"] for one in measured),
    )


def _has_draft_passes(profile: Profile) -> bool:
    """Return True if a model drafts, with the target's own weights or others."""
    return profile.drafts_with_a_model or profile.drafts_with_the_target


def _memory(
    captioner: Captioner, loaded: LoadedModels, once: ProfiledRun, base: tuple[int, int]
) -> tuple[MemoryUse, ...]:
    """Return the memory use by process.

    Weights of all models loaded in a process count as its own, even if this profile does not use them.
    """
    setup = captioner.client.setup
    counters, room = once.record.counters, setup.room + once.text
    target, draft = loaded.target, loaded.draft
    what = PeakMemory(target.device).what
    weights = {"target": bandwidth.model_weight_bytes(target)}
    if draft is not None:
        weights["draft"] = bandwidth.model_weight_bytes(draft)
    kv = {"target": bandwidth.kv_bytes(target) * (counters["visual_tokens"] + room)}
    drafts = _has_draft_passes(setup.profile)
    drafting = draft if setup.profile.drafts_with_a_model and draft is not None else target
    own = bandwidth.kv_bytes(drafting) * (counters["visual_tokens_kept"] + room)
    before = base[0] if what == "resident" else 0
    if setup.slot is None:
        workers = ("target", "draft") if drafts else ("target",)
        return (MemoryUse(workers, weights, kv | ({"draft": own} if drafts else {}), once.peaks[0], what, before),)
    own_weights = {"draft": bandwidth.model_weight_bytes(drafting)}
    return (
        MemoryUse(("target",), weights, kv, once.peaks[0], what, before),
        MemoryUse(("draft",), own_weights, {"draft": own}, once.peaks[1], what, max(0, base[1] - own_weights["draft"])),
    )


def _add_pass_costs(
    one: ProfileBreakdown,
    captioner: Captioner,
    loaded: LoadedModels,
    clip: str | Path,
    known: dict[bool, TimedPasses],
    say: Callable[[str], None],
) -> ProfileBreakdown:
    """Add T_p and T_q, measured once for all profiles whose draft has the same weights.

    T_q is that of a prompt with the video, even if the draft sees something else in addition or instead.
    """
    profile = captioner.client.profile
    model = profile.drafts_with_a_model
    before = known.get(model)
    if before is None or (_has_draft_passes(profile) and one.alpha not in before.draft):
        say(f"passes of {'target and draft' if model else 'the target'}")
        known[model] = _measure_pass_costs(captioner, loaded, profile, clip, one.alpha)
    times = known[model]
    if not _has_draft_passes(profile):
        return replace(one, passes=replace(times, draft={}, kept={}))
    rounding = "up" if profile.drafts_with_the_target else "down"
    return replace(one, passes=times, c=times.cost_ratio(one.alpha), gamma=times.gamma(one.alpha, rounding))  # type: ignore[arg-type]


def _measure_pass_costs(
    captioner: Captioner, loaded: LoadedModels, profile: Profile, path: str | Path, alpha: float
) -> TimedPasses:
    clip = captioner.client.inputs.read(path)
    request = CaptionRequest(str(path), clip, profile.generate.prompt, profile.generate.system)
    engine = captioner.client.setup.target
    prefix = run_to_completion(captioner.client.setup.read(request, Trace()))
    state, _ = prefill_pruned(engine, prefix, 0.0)
    if not _has_draft_passes(profile):
        return measure_passes((engine, state), {})
    drafting = Engine(loaded.draft) if profile.drafts_with_a_model and loaded.draft is not None else engine
    pixels = drafting.model.preprocess(clip)
    own = drafting.model.prefix(drafting.model.encode(pixels), profile.generate.prompt, profile.generate.system)
    drafts, kept = {}, {}
    for share in sorted({*ALPHAS, alpha}):
        read, kept[share] = prefill_pruned(drafting, own, share)
        drafts[share] = (drafting, read)
    return measure_passes((engine, state), drafts, kept=kept)
