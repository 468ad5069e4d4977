"""Runs a whole bench: load, run interleaved, keep every record, summarise. Prints only through ``say``."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch

from vidspec._version import __version__
from vidspec.bench import bandwidth
from vidspec.bench.interleaved import ProfileContender, machine, run, turn_label
from vidspec.bench.judging import judge
from vidspec.bench.loaded import LoadedModels, ModelSource
from vidspec.bench.outside import ExternalPeer
from vidspec.bench.peers import Contender
from vidspec.bench.results import ResultsFile, accepted_shares
from vidspec.bench.rows import BenchRow, Records, bench_rows, markdown, methods_with_other_draws
from vidspec.captioner import Captioner
from vidspec.config.profiles import Profile, group_equal_profiles
from vidspec.embedded.samples import shipped
from vidspec.errors import UsageError
from vidspec.events.record import Caption

__all__ = ["Bench", "BenchResult", "fingerprint", "measure"]


@dataclass(frozen=True)
class Bench:
    """Settings of a bench.

    Attributes:
        profiles: names or files; the first is the baseline. Equal ones are one contender.
        clips: video files; the shipped samples if empty.
        repeats: of every clip.
        source: the models.
        threads: of torch on a CPU; torch's default if None.
        peers: include ``generate`` of ``transformers``.
        outside: interpreters of peers of :data:`~vidspec.bench.outside.OUTSIDE`, by name.
        json: file for the records, written one by one.
        overwrite: start that file from scratch.
        turns: of a dialogue about each clip; the profiles' own prompt if empty. Each turn is measured by itself.
    """

    profiles: Sequence[str]
    clips: Sequence[Path] = ()
    repeats: int = 3
    source: ModelSource = field(default_factory=ModelSource)
    threads: int | None = None
    peers: bool = True
    outside: Mapping[str, str] = field(default_factory=dict)
    json: Path | None = None
    overwrite: bool = False
    turns: tuple[str, ...] = ()


@dataclass(frozen=True)
class BenchResult:
    """Result of a bench: rows of the tables, the tables, facts about the machine, records by contender and clip.

    ``left`` has the reason for each peer that was left out.
    """

    rows: list[BenchRow]
    table: str
    machine: dict[str, object]
    records: dict[str, dict[str, list[Caption]]]
    left: dict[str, str] = field(default_factory=dict)


def measure(bench: Bench, say: Callable[[str], None] = lambda _: None) -> BenchResult:
    """Run a bench; records already in the results file are not measured again.

    Raises:
        VidspecError: of profiles, models, clips and the results file.
    """
    if bench.threads:
        torch.set_num_threads(bench.threads)
    clips = list(bench.clips) or shipped()
    if missing := [clip for clip in clips if not clip.is_file()]:
        raise UsageError(f"{missing[0]}: there is no such file")
    loaded = LoadedModels(bench.source)
    outside: dict[str, ExternalPeer] = {}
    try:
        named = {name: loaded.captioner(name) for name in bench.profiles}
        also = group_equal_profiles({name: one.profile for name, one in named.items()})
        named = {name: named[name] for name in also}  # equal profiles are measured once
        contenders: dict[str, Contender] = {
            turn_label(name, turn): ProfileContender(one, bench.turns[: turn + 1])
            for turn in range(max(1, len(bench.turns)))
            for name, one in named.items()
        }
        baseline = next(iter(contenders))
        settings = _settings(bench, clips, contenders)
        facts = machine(loaded.where.device)
        results = ResultsFile(bench.json, settings, facts, overwrite=bench.overwrite)
        if results.done:
            say(f"{bench.json}: continuing behind {len(results.done)} records; --overwrite begins anew")
        first = named[baseline].profile
        if bench.peers:
            contenders |= loaded.peers(first)
        outside = loaded.external_peers(bench.outside, first)
        contenders |= outside
        left: dict[str, str] = {}
        records = run(
            contenders, clips, bench.repeats, say, done=results.done, keep=results.add, leave=left.__setitem__
        )
        facts |= {f"peer {name}": one.facts for name, one in outside.items() if one.facts}
        if not bench.turns:
            judge(named, {str(clip): clip for clip in clips}, results.stored, say, results.rewrite)
        by_turn = _summaries(bench, named, records, baseline, also, accepted_shares(results.stored))
        rows = [row for one in by_turn for row in one]
        speed = bandwidth.copy_bandwidth(loaded.where.device)
        weights = bandwidth.pass_bytes(loaded.target)
        facts |= {"copy_GB_per_s": round(speed / 1e9, 2), "target_pass_MB": round(weights / 1e6, 2)}
        facts["target_entry_bytes"] = bandwidth.kv_bytes(loaded.target)

        def limit(context: float) -> float:
            return speed / bandwidth.pass_bytes(loaded.target, context)

        table = "\n\n".join(markdown(one, one[0].name, limit, left) for one in by_turn)
        results.machine |= facts
        results.finish(rows=[asdict(row) for row in rows], left_out=left)
        return BenchResult(rows, table, facts, records, left)
    finally:
        for peer in outside.values():
            peer.close()
        loaded.close()


def fingerprint(profile: Profile) -> str:
    """Return a digest of a profile's settings, to distinguish profiles of the same name."""
    return hashlib.sha256(profile.model_dump_json().encode()).hexdigest()[:16]


def _summaries(
    bench: Bench,
    named: Mapping[str, Captioner],
    records: Records,
    baseline: str,
    also: Mapping[str, Sequence[str]],
    shares: Mapping[str, float],
) -> list[list[BenchRow]]:
    """Return the rows of the bench, or of each turn of its dialogues."""
    drawn = methods_with_other_draws({name: one.profile for name, one in named.items()}, baseline)
    if not bench.turns:
        return [bench_rows(records, baseline, drawn, also=also, judged=shares)]

    def rows(turn: int) -> list[BenchRow]:
        part = {turn_label(name, turn): records[turn_label(name, turn)] for name in named}
        others = {turn_label(name, turn): [turn_label(one, turn) for one in more] for name, more in also.items()}
        return bench_rows(part, turn_label(baseline, turn), [turn_label(one, turn) for one in drawn], also=others)

    return [rows(turn) for turn in range(len(bench.turns))]


def _settings(bench: Bench, clips: Sequence[Path], contenders: dict[str, Contender]) -> dict[str, object]:
    """Return the settings that must match to continue a results file; repeats may differ."""
    profiles = {name: fingerprint(one.profile) for name, one in contenders.items() if isinstance(one, ProfileContender)}
    return {
        "vidspec": __version__,
        **asdict(bench.source),
        "threads": bench.threads,
        "peers": bench.peers,
        "outside": sorted(bench.outside),
        "profiles": profiles,
        "clips": [[str(clip), clip.stat().st_size] for clip in clips],
        **({"turns": list(bench.turns)} if bench.turns else {}),
    }
