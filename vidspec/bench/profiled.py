"""``vidspec profile``: one clip under several profiles in rotation, each broken down by time. Prints nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch

from vidspec.bench.breakdown import Breakdown, breakdown
from vidspec.bench.loaded import LoadedModels, ModelSource, require_files
from vidspec.bench.machine import machine
from vidspec.bench.passes import ALPHAS, TimedPasses, measure_passes, prefill_pruned
from vidspec.bench.turns import measure_in_turns
from vidspec.captioner import Captioner
from vidspec.config.schema import Profile
from vidspec.engine.forward import Engine
from vidspec.engine.requests import run_to_completion
from vidspec.events.events import Finished
from vidspec.events.record import Caption
from vidspec.events.trace import Trace
from vidspec.models.request import CaptionRequest

__all__ = ["ProfileReport", "profile_clip"]


@dataclass(frozen=True)
class ProfileBreakdown:
    """One profile on the clip: the run of the median wall clock among its repeats.

    Attributes:
        breakdown: time by kind of work.
        tokens: emitted.
        tokens_per_s: decode rate; None for a text of one token.
        passes: T_p and T_q of its target and draft; None if they were not measured.
        alpha: share of visual tokens hidden from the draft by the profile.
        c: T_p(1) / T_q(alpha); None without passes or draft.
        gamma: recommended window; None without passes or draft.
        walls: seconds of all repeats.
    """

    profile: str
    breakdown: Breakdown
    tokens: int
    tokens_per_s: float | None
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
    """All profiles on a clip, and facts about the machine."""

    clip: str
    machine: dict[str, object]
    runs: tuple[ProfileBreakdown, ...]

    def to_dict(self) -> dict[str, object]:
        return {"clip": self.clip, "machine": self.machine, "runs": [one.to_dict() for one in self.runs]}


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
        names: profiles, by name or file.
        overrides: values of every profile, by dotted key.
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
    loaded = LoadedModels(source)
    try:
        captioners = {name: loaded.captioner(name, overrides) for name in names}
        contenders = {name: partial(_run_once, one) for name, one in captioners.items()}
        found = measure_in_turns(contenders, [str(clip)], repeats, say=say)
        times: dict[bool, TimedPasses] = {}
        runs = []
        for name, captioner in captioners.items():
            one = _breakdown_of(name, captioner, found[name][str(clip)])
            if passes:
                one = _add_pass_costs(one, captioner, loaded, clip, times, say)
            runs.append(one)
        return ProfileReport(str(clip), machine(loaded.where.device), tuple(runs))
    finally:
        loaded.close()


def _run_once(captioner: Captioner, clip: str) -> Caption:
    """Caption a clip; the previous caption is not reused as a draft."""
    captioner.client.setup.forget()
    return next(event.caption for event in captioner.stream(clip) if isinstance(event, Finished))


def _breakdown_of(name: str, captioner: Captioner, measured: Sequence[Caption]) -> ProfileBreakdown:
    ordered = sorted(measured, key=lambda one: one.timings["end_to_end"])
    record, profile = ordered[(len(ordered) - 1) // 2], captioner.client.profile
    return ProfileBreakdown(
        profile=name,
        breakdown=breakdown(record.trace.spans if record.trace else (), record.timings["end_to_end"]),
        tokens=len(record.token_ids),
        tokens_per_s=record.speed.get("tokens_per_s"),
        alpha=profile.prune.alpha if profile.prune.method != "none" else 0.0,
        walls=tuple(one.timings["end_to_end"] for one in measured),
    )


def _has_draft_passes(profile: Profile) -> bool:
    """Return True if a model drafts, with the target's own weights or others."""
    return profile.draft.has_model or profile.draft.is_target


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
    model = profile.draft.has_model
    before = known.get(model)
    if before is None or (_has_draft_passes(profile) and one.alpha not in before.draft):
        say(f"passes of {'target and draft' if model else 'the target'}")
        known[model] = _measure_pass_costs(captioner, loaded, profile, clip, one.alpha)
    times = known[model]
    if not _has_draft_passes(profile):
        return replace(one, passes=replace(times, draft={}, kept={}))
    rounding = "up" if profile.draft.is_target else "down"
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
    drafting = Engine(loaded.draft) if profile.draft.has_model and loaded.draft is not None else engine
    pixels = drafting.model.preprocess(clip)
    own = drafting.model.prefix(drafting.model.encode(pixels), profile.generate.prompt, profile.generate.system)
    drafts, kept = {}, {}
    for share in sorted({*ALPHAS, alpha}):
        read, kept[share] = prefill_pruned(drafting, own, share)
        drafts[share] = (drafting, read)
    return measure_passes((engine, state), drafts, kept=kept)
