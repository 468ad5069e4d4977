"""A whole bench: load, run interleaved, keep every record, sum up. Prints nothing but through ``say``."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from vidspec._version import __version__
from vidspec.bench import bandwidth
from vidspec.bench.interleaved import Contender, Row, by_other_draws, machine, run, summary
from vidspec.bench.judging import judge
from vidspec.bench.loaded import Loaded, Source
from vidspec.bench.markdown import markdown
from vidspec.bench.position_table import biases, block
from vidspec.bench.results import Results, accepted_shares
from vidspec.captioner import Captioner
from vidspec.embedded.samples import shipped
from vidspec.errors import UsageError
from vidspec.profile.profiles import Profile, same
from vidspec.pruning.position_bias import PositionBias
from vidspec.telling.record import Caption

__all__ = ["Bench", "Outcome", "fingerprint", "measure"]


@dataclass(frozen=True)
class Bench:
    """What is to be measured.

    Attributes:
        profiles: names or files; the first is the baseline. Those that are the same are one contender.
        clips: video files; the shipped samples if empty.
        repeats: of every clip.
        source: the models.
        threads: of torch on a CPU; as it chooses if None.
        peers: whether ``transformers``' own ways to generate take part.
        position_bias: whether it is measured where kept tokens lie.
        json: where records go, one by one.
        overwrite: begin that file anew.
    """

    profiles: Sequence[str]
    clips: Sequence[Path] = ()
    repeats: int = 3
    source: Source = field(default_factory=Source)
    threads: int | None = None
    peers: bool = True
    position_bias: bool = False
    json: Path | None = None
    overwrite: bool = False


@dataclass(frozen=True)
class Outcome:
    """What was measured: rows of the table, the table, facts of the machine, records by contender and clip."""

    rows: list[Row]
    table: str
    machine: dict[str, Any]
    records: dict[str, dict[str, list[Caption]]]
    position_bias: dict[str, PositionBias]


def measure(bench: Bench, say: Callable[[str], None] = lambda _: None) -> Outcome:
    """Run a bench; what the results file already holds is not measured again.

    Raises:
        VidspecError: of profiles, models, clips and the results file.
    """
    if bench.threads:
        torch.set_num_threads(bench.threads)
    clips = list(bench.clips) or shipped()
    if missing := [clip for clip in clips if not clip.is_file()]:
        raise UsageError(f"{missing[0]}: there is no such file")
    loaded = Loaded(bench.source)
    try:
        named = {name: loaded.captioner(name) for name in bench.profiles}
        also = same({name: one.profile for name, one in named.items()})
        named = {name: named[name] for name in also}  # what is the same is measured once
        contenders: dict[str, Contender] = dict(named)
        baseline = next(iter(contenders))
        settings = _settings(bench, clips, contenders)
        facts = machine(loaded.where.device)
        results = Results(bench.json, settings, facts, overwrite=bench.overwrite) if bench.json else None
        if results is not None and results.done:
            say(f"{bench.json}: continuing behind {len(results.done)} records; --overwrite begins anew")
        if bench.peers:
            contenders |= loaded.peers()
        if results is None:
            records = run(contenders, clips, bench.repeats, say)
        else:
            records = run(contenders, clips, bench.repeats, say, done=results.done, keep=results.add)
        stored = _stored(records) if results is None else results.stored
        judge(named, {str(clip): clip for clip in clips}, stored, say, results.rewrite if results else lambda: None)
        profiles = {name: one.profile for name, one in contenders.items() if isinstance(one, Captioner)}
        drawn = by_other_draws(profiles, baseline)
        rows = summary(records, baseline, drawn, also=also, judged=accepted_shares(stored))
        speed = bandwidth.copy_bandwidth(loaded.where.device)
        weights = bandwidth.pass_bytes(loaded.target)
        facts |= {"copy_GB_per_s": round(speed / 1e9, 2), "target_pass_MB": round(weights / 1e6, 2)}
        table = markdown(rows, baseline, lambda context: speed / bandwidth.pass_bytes(loaded.target, context))
        found = biases(contenders, clips, say) if bench.position_bias else {}
        if results is not None:
            results.machine |= facts
            bias = {"position_bias": block(found)} if bench.position_bias else {}
            results.finish(rows=[asdict(row) for row in rows], **bias)
        return Outcome(rows, table, facts, records, found)
    finally:
        loaded.close()


def fingerprint(profile: Profile) -> str:
    """What tells a profile from one of the same name that says something else."""
    return hashlib.sha256(profile.model_dump_json().encode()).hexdigest()[:16]


def _stored(records: dict[str, dict[str, list[Caption]]]) -> list[dict[str, Any]]:
    """What there is to judge, where no file holds it."""
    return [
        {"contender": name, "path": clip, "lossless": one.lossless, "token_ids": one.token_ids}
        for name, by_clip in records.items()
        for clip, runs in by_clip.items()
        for one in runs[:1]
    ]


def _settings(bench: Bench, clips: Sequence[Path], contenders: dict[str, Contender]) -> dict[str, Any]:
    """What two runs must share for their records to be one run's; more repeats may follow."""
    profiles = {name: fingerprint(one.profile) for name, one in contenders.items() if isinstance(one, Captioner)}
    return {
        "vidspec": __version__,
        **asdict(bench.source),
        "threads": bench.threads,
        "peers": bench.peers,
        "profiles": profiles,
        "clips": [[str(clip), clip.stat().st_size] for clip in clips],
    }
