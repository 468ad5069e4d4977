"""Runs contenders in turn on every clip (A B C, then B C A, ...) after a warm-up of each, and sums up; no printing."""

from __future__ import annotations

import math
import os
import platform
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from statistics import fmean, median
from typing import Any, Protocol

import torch

from vidspec._version import __version__
from vidspec.bench.peers import PeerFailed
from vidspec.bench.places import places
from vidspec.bench.predicted import predicted
from vidspec.bench.talk import Talk
from vidspec.bench.turns import TakingPart, rotated
from vidspec.captioner import Captioner
from vidspec.config.profiles import Profile
from vidspec.events.compare import decode_rate, time_at_length
from vidspec.events.counters import tau
from vidspec.events.record import Caption

__all__ = ["Contender", "Row", "by_other_draws", "machine", "run", "speed_ups", "summary"]


class Contender(Protocol):
    """Anything that captions a clip: a captioner with a profile, or a peer."""

    def caption(self, path: str | Path) -> Caption: ...


@dataclass(frozen=True)
class Row:
    """One contender over all clips. Speed-ups are medians over clips of ratios to the baseline on the same clip.

    Attributes:
        name: of the contender.
        equal: clips whose token ids are the baseline's; None where it and the baseline draw from the same distributions
            by other draws, so that token ids say nothing.
        clips: clips measured.
        tau, tokens_per_target_pass, run_length, acceptance_rate: pooled over clips; None where nothing was drafted.
        kept: share of visual tokens the draft saw; None without a draft.
        tokens_per_s: median decode rate.
        rate_spread: its least and greatest over clips.
        also: other names of the same contender.
        retention: mean share of the visual tokens that a block of a pruned target reads; None of a whole one.
        accepted_by_target: metric A of ParallelVLM's Table 2; None where nothing was judged.
        place: by decode, from 1 on; those that differ by less than the spread share one (:mod:`~vidspec.bench.places`).
        context: mean entries in the target's cache while decoding: visual tokens and half of the text; None of peers.
        first, decode, end_to_end: speed-ups over the baseline: (median, least, greatest); ``end_to_end`` for texts as
            long as the baseline's (:func:`~vidspec.events.compare.time_at_length`).
        end_to_end_raw: the same of the texts as they are, which loose and lossy methods may write shorter or longer.
        tokens: mean over its texts, the end token among them.
        model: the decode speed-up that the speed model gives for the measured times and lengths; None without a draft.
    """

    name: str
    equal: int | None
    clips: int
    tau: float | None
    tokens_per_target_pass: float | None
    kept: float | None
    tokens_per_s: float
    first: tuple[float, float, float]
    decode: tuple[float, float, float]
    end_to_end: tuple[float, float, float]
    model: float | None = None
    run_length: float | None = None
    acceptance_rate: float | None = None
    rate_spread: tuple[float, float] = (0.0, 0.0)
    context: float | None = None
    also: tuple[str, ...] = ()
    retention: float | None = None
    accepted_by_target: float | None = None
    place: int = 1
    tokens: float | None = None
    end_to_end_raw: tuple[float, float, float] | None = None

    @property
    def names(self) -> str:
        """All its names."""
        return " = ".join((self.name, *self.also))

    @property
    def equality(self) -> str:
        """``equal`` as tables show it."""
        return "in distribution" if self.equal is None else f"{self.equal}/{self.clips}"


def run(
    contenders: Mapping[str, Contender],
    clips: Sequence[Path],
    repeats: int,
    progress: Callable[[str], None] = lambda _: None,
    *,
    done: Mapping[tuple[str, str, int], Caption] | None = None,
    keep: Callable[[tuple[str, str, int], Caption], None] = lambda _key, _record: None,
    leave: Callable[[str, str], None] = lambda _name, _why: None,
) -> dict[str, dict[str, list[Caption]]]:
    """Caption every clip ``repeats`` times with every contender.

    Args:
        contenders: by name.
        clips: each in its turn.
        repeats: of all clips.
        progress: is told what comes next.
        done: records of an earlier run by contender, clip and repeat; they are not measured again.
        keep: is given every new record at once.
        leave: is given each peer that was left out because it failed on a clip, and why.

    Returns:
        records by contender and clip, of those that were not left out.
    """
    done = dict(done or {})
    taking = TakingPart(contenders, lambda _, error: isinstance(error, PeerFailed), progress)
    for name, contender in contenders.items():  # warm-up: allocations, kernels, caches
        if all((name, str(clip), repeat) in done for clip in clips for repeat in range(repeats)):
            continue
        progress(f"warm-up {name}")
        taking.ask(name, partial(contender.caption, clips[0]))
        if isinstance(contender, Captioner | Talk):
            contender.forget()  # a plan, or this very clip's caption, from the warm-up would cost nothing
    records: dict[str, dict[str, list[Caption]]] = {name: {str(clip): [] for clip in clips} for name in contenders}
    for turn, (repeat, clip) in enumerate(product(range(repeats), clips)):
        progress(f"{repeat + 1}/{repeats} {clip.name}")
        if turn and clip == clips[0]:
            for contender in contenders.values():
                if isinstance(contender, Captioner | Talk):
                    contender.forget(plan=False)  # its own caption would be a clip's draft
        for name in rotated(taking.names, turn):
            key = name, str(clip), repeat
            if key not in done:
                made = taking.ask(name, partial(contenders[name].caption, clip))
                if made is None:
                    continue
                done[key] = made
                keep(key, made)
            records[name][str(clip)].append(done[key])
    for name, why in taking.left.items():
        leave(name, why)
    return {name: records[name] for name in taking.names}


def summary(
    records: Mapping[str, Mapping[str, Sequence[Caption]]],
    baseline: str,
    drawn: Collection[str] = (),
    *,
    also: Mapping[str, Sequence[str]] | None = None,
    judged: Mapping[str, float] | None = None,
) -> list[Row]:
    """One row per contender; per clip the median over repeats is compared with the baseline's.

    Args:
        records: by contender and clip.
        baseline: a contender.
        drawn: those of :func:`by_other_draws`.
        also: further names of contenders that have some.
        judged: metric A by contender.
    """
    plain = records[baseline]
    rows = []
    ranked = places({name: {clip: _rate(runs) for clip, runs in by_clip.items()} for name, by_clip in records.items()})
    for name, by_clip in records.items():
        first, decode, whole = list[float](), list[float](), list[float]()
        raw, rates = list[float](), list[float]()
        for clip, runs in by_clip.items():
            for ratios, ratio in zip((first, decode, whole), speed_ups(runs, plain[clip]), strict=True):
                ratios.append(ratio)
            raw.append(_time(plain[clip], "end_to_end") / _time(runs, "end_to_end"))
            rates.append(_rate(runs))
        counters = [run.counters for runs in by_clip.values() for run in runs if run.counters.get("drafted")]
        passes = sum(c["target_forwards"] for c in counters)
        seen = sum(c["visual_tokens"] for c in counters)
        accepted, drafted = sum(c["accepted"] for c in counters), sum(c["drafted"] for c in counters)
        runs_of = sum(c.get("corrections", 0) + 1 for c in counters)
        shown = [
            run.counters["visual_tokens"] + len(run.token_ids) / 2
            for run in _flat(by_clip)
            if "visual_tokens" in run.counters
        ]
        rows.append(
            Row(
                name=name,
                equal=None
                if name in drawn
                else sum(
                    all(one.token_ids == plain[clip][0].token_ids for one in runs) for clip, runs in by_clip.items()
                ),
                clips=len(by_clip),
                tau=tau([length for c in counters for length in c["accepted_lengths"]]),
                tokens_per_target_pass=sum(c["emitted"] - 1 for c in counters) / passes if passes else None,
                kept=sum(c["visual_tokens_kept"] for c in counters) / seen if seen else None,
                tokens_per_s=median(rates),
                first=_spread(first),
                decode=_spread(decode),
                end_to_end=_spread(whole),
                model=predicted(_flat(by_clip), _flat(plain)),
                run_length=accepted / runs_of if runs_of else None,
                acceptance_rate=accepted / drafted if drafted else None,
                rate_spread=(min(rates), max(rates)),
                context=fmean(shown) if shown else None,
                also=tuple((also or {}).get(name, ())),
                retention=fmean(shares) if (shares := _retentions(by_clip)) else None,
                accepted_by_target=(judged or {}).get(name),
                place=ranked[name],
                tokens=fmean(len(run.token_ids) for run in _flat(by_clip)),
                end_to_end_raw=_spread(raw),
            )
        )
    return rows


def by_other_draws(profiles: Mapping[str, Profile], baseline: str) -> tuple[str, ...]:
    """Lossless methods that draw tokens as the baseline does, and need not draw the same ones.

    Equal seeds give equal tokens where both are plain decoding's (``Profile.token_for_token``).
    """
    plain = profiles[baseline]
    return tuple(
        name
        for name, one in profiles.items()
        if name != baseline
        and plain.generate.temperature > 0
        and _distribution(one) == _distribution(plain)
        and not (one.token_for_token and plain.token_for_token and one.generate.seed == plain.generate.seed)
    )


def _distribution(profile: Profile) -> tuple[object, ...]:
    """What, beside the target and the clip, decides from which distributions tokens are drawn."""
    return profile.video, profile.lossy, profile.generate.model_dump(exclude={"seed"})


def speed_ups(runs: Sequence[Caption], plain: Sequence[Caption]) -> tuple[float, float, float]:
    """First token, decode and end to end of one clip: medians over a method's repeats against plain decoding's.

    End to end is plain decoding's over the method's time at plain decoding's number of tokens; 0, as of decode, where
    a text of one token gives no rate.
    """
    tokens = len(plain[0].token_ids)
    whole = median(math.inf if (time := time_at_length(run, tokens)) is None else time for run in runs)
    return (
        _time(plain, "time_to_first_token") / _time(runs, "time_to_first_token"),
        _rate(runs) / _rate(plain),
        _time(plain, "end_to_end") / whole,
    )


def _retentions(by_clip: Mapping[str, Sequence[Caption]]) -> list[float]:
    shares = [one.lossy["retention"] for one in _flat(by_clip) if one.lossy]
    return [share for share in shares if share is not None]


def _flat(by_clip: Mapping[str, Sequence[Caption]]) -> list[Caption]:
    return [one for runs in by_clip.values() for one in runs]


def _time(runs: Sequence[Caption], name: str) -> float:
    return median(run.timings[name] for run in runs)


def _rate(runs: Sequence[Caption]) -> float:
    return median(decode_rate(run) or 0.0 for run in runs)


def _spread(values: Sequence[float]) -> tuple[float, float, float]:
    return median(values), min(values), max(values)


def machine(device: torch.device) -> dict[str, Any]:
    """What the figures depend on."""
    import transformers

    processor = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.is_file():
        names = [line.partition(":")[2].strip() for line in cpuinfo.read_text().splitlines() if "model name" in line]
        processor = names[0] if names else processor
    return {
        "vidspec": __version__,
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "python": platform.python_version(),
        "processor": processor,
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else str(device),
    }
