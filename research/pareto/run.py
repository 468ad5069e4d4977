"""Measurements of ``research.pareto``: times on a few clips, quality on all; every record goes to a file."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import torch

from research.judging import judge
from research.pareto.outcome import ALSO, DRAWN, QUALITY_ONLY
from research.world.samples import HELD_OUT_SEED, draw, read_truth
from research.world.scoring import Statement
from vidspec._version import __version__
from vidspec.bench.loaded import LoadedModels, ModelSource
from vidspec.bench.machine import machine
from vidspec.bench.measure import ProfileContender, fingerprint
from vidspec.bench.results import ResultsFile, StoredKey, StoredRun, read_results, restore_caption
from vidspec.bench.rows import methods_with_other_draws
from vidspec.bench.turns import measure_in_turns
from vidspec.captioner import Captioner
from vidspec.config import profiles
from vidspec.config.labels import DRAFT
from vidspec.config.schema import Profile
from vidspec.embedded.samples import TRUTH
from vidspec.errors import UsageError
from vidspec.events.record import Caption


@dataclass(frozen=True)
class Pareto:
    """Options of a run.

    Attributes:
        contenders: labels, or ``draft`` for the draft model's own plain decoding; the first is the baseline.
        clips: video files; held-out clips if empty.
        source: the models.
        count: number of held-out clips.
        clips_dir: their folder; a temporary one if None.
        timed: number of clips to time, the first ones.
        repeats: of each timed clip.
        threads: torch threads on a CPU; torch's default if None.
        only: ``times`` or ``quality`` to measure one part.
        json: file of the records, written one by one.
        overwrite: start that file again.
    """

    contenders: Sequence[str]
    clips: Sequence[Path] = ()
    source: ModelSource = field(default_factory=ModelSource)
    count: int = 200
    clips_dir: Path | None = None
    timed: int = 24
    repeats: int = 3
    threads: int | None = None
    only: str | None = None
    json: Path | None = None
    overwrite: bool = False


class Shown(NamedTuple):
    """A clip: its path, and its facts if known."""

    path: Path
    facts: Statement | None


class Named:
    """A contender whose records have the clips' names, which omit the folder for drawn clips."""

    def __init__(self, captioner: Captioner, clips: Mapping[str, Shown]) -> None:
        self._contender, self.clips = ProfileContender(captioner), clips

    def __call__(self, name: str) -> Caption:
        return replace(self._contender(str(self.clips[name].path)), path=name)


def measure(asked: Pareto, say: Callable[[str], None] = lambda _: None) -> dict[str, Any]:
    """Run everything that the results file lacks.

    Returns:
        the results as ``read_results`` gives them.

    Raises:
        VidspecError: of profiles, models, clips and the results file.
    """
    if asked.threads:
        torch.set_num_threads(asked.threads)
    loaded = LoadedModels(asked.source)
    try:
        every = {name: _contender(loaded, name) for name in asked.contenders}
        also = profiles.group_equal_profiles({name: one.client.profile for name, one in every.items() if name != DRAFT})
        contenders = {name: one for name, one in every.items() if name == DRAFT or name in also}
        first = asked.contenders[0]
        if first == DRAFT or not contenders[first].client.profile.lossless:
            raise UsageError(f"{first}: the first profile is the baseline and must be lossless", hint="such as ar")
        with tempfile.TemporaryDirectory() as folder:
            clips = clips_of(asked, Path(folder), say)
            path = asked.json or Path(folder) / "results.json"
            stated = settings(asked, clips, {name: one.client.profile for name, one in contenders.items()}, also)
            results = ResultsFile(path, stated, _machine(asked, clips, contenders, loaded), overwrite=asked.overwrite)
            if results.stored:
                say(f"{path}: continuing after {len(results.stored)} records; --overwrite starts over")
            named = {name: Named(one, clips) for name, one in contenders.items()}
            if asked.only != "quality":
                timed, done = list(clips)[: asked.timed], _timed(results.stored)
                measure_in_turns(named, timed, asked.repeats, done=done, keep=results.add, say=say)
            if asked.only != "times":
                _quality(named, clips, results, say)
            judged = {name: one.path for name, one in list(clips.items())[: asked.timed]}
            judge(contenders, judged, results.stored, say, results.rewrite)
            return {"settings": results.settings, "machine": results.machine, "records": results.stored}
    finally:
        loaded.close()


def settings(
    asked: Pareto,
    clips: Mapping[str, Shown],
    used: Mapping[str, Profile],
    also: Mapping[str, Sequence[str]] = MappingProxyType({}),
) -> dict[str, Any]:
    """Return the settings that runs must share to continue one file, including the ground truth."""
    drawn = methods_with_other_draws(used, next(iter(used)))
    return {
        "vidspec": __version__,
        **asdict(asked.source),
        "threads": asked.threads,
        "profiles": {name: fingerprint(one) for name, one in used.items()},
        **({ALSO: others} if (others := {name: list(names) for name, names in also.items() if names}) else {}),
        **({DRAWN: list(drawn)} if drawn else {}),
        "clips": [[name, one.path.stat().st_size] for name, one in clips.items()],
        "truth": {name: asdict(one.facts) for name, one in clips.items() if one.facts is not None},
    }


def stripped(caption: Caption) -> Caption:
    """Return a record without times, for runs whose times are not valid."""
    return replace(caption, timings={}, speed={}, trace=None)


def _contender(loaded: LoadedModels, name: str) -> Captioner:
    if name != DRAFT:
        return loaded.captioner(name)
    if loaded.draft is None:
        raise UsageError(f"{DRAFT}: no draft was named", hint="name one with --draft, or choose --profiles without it")
    return Captioner(profiles.load("ar"), loaded.draft, None)


def clips_of(asked: Pareto, folder: Path, say: Callable[[str], None]) -> dict[str, Shown]:
    """Return clips by name: the path of a given clip, the file name of a drawn one.

    Args:
        asked: names clips, or the number to draw and their folder.
        folder: for drawn clips that are not kept.
        say: receives progress messages.

    Raises:
        UsageError: a named clip is missing, or the folder holds other clips than the held-out ones.
    """
    if asked.clips:
        if missing := [clip for clip in asked.clips if not clip.is_file()]:
            raise UsageError(f"{missing[0]}: there is no such file")
        known = {parent: read_truth(parent) for parent in {clip.parent for clip in asked.clips}}
        facts = {clip: known[clip.parent].get(clip.name) for clip in asked.clips}
        return {str(clip): Shown(clip, found[1] if found else None) for clip, found in facts.items()}
    out = asked.clips_dir or folder
    if not (out / TRUTH).exists():
        say(f"drawing {asked.count} clips into {out}")
        draw(out, asked.count, HELD_OUT_SEED)
    drawn = dict(list(read_truth(out).items())[: asked.count])
    rng = random.Random(HELD_OUT_SEED)
    if [seed for seed, _ in drawn.values()] != [rng.randrange(2**31) for _ in range(asked.count)]:
        raise UsageError(f"{out}: does not hold {asked.count} held-out clips", hint="name another --clips-dir")
    return {name: Shown(out / name, facts) for name, (_, facts) in drawn.items()}


def _machine(
    asked: Pareto, clips: Mapping[str, Shown], contenders: Iterable[str], loaded: LoadedModels
) -> dict[str, Any]:
    """Return facts of the machine for the file; the stored ones if this run adds no times."""
    if asked.json is not None and asked.json.exists() and asked.json.stat().st_size and not asked.overwrite:
        known = read_results(asked.json)
        done = _timed(known["records"])
        timed = list(clips)[: asked.timed]
        wanted = ((name, clip, turn) for name in contenders for clip in timed for turn in range(asked.repeats))
        if done and (asked.only == "quality" or all(key in done for key in wanted)):
            return dict(known.get("machine", {}))
    return machine(loaded.where.device)


def _timed(stored: Sequence[StoredRun]) -> dict[StoredKey, Caption]:
    return {
        (one["contender"], one["path"], one["repeat"]): restore_caption(one)
        for one in stored
        if not one.get(QUALITY_ONLY)
    }


def _quality(
    contenders: Mapping[str, Named], clips: Mapping[str, Shown], results: ResultsFile, say: Callable[[str], None]
) -> None:
    """Caption once every clip that a contender has not captioned yet."""
    done = {(one["contender"], one["path"]) for one in results.stored}
    for number, clip in enumerate(clips, 1):
        missing = [name for name in contenders if (name, clip) not in done]
        if missing:
            say(f"quality {number}/{len(clips)} {clip}")
        for name in missing:
            results.add((name, clip, 0), stripped(contenders[name](clip)), **{QUALITY_ONLY: True})
