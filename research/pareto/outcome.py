"""Speed-up against quality of every method of a run, and the Pareto frontier. Reads results, runs nothing.

A record with ``quality_only`` was made without valid times, so it has none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from research.compare import DRAWS, MIN_CLIPS
from research.judging import accepted_shares
from research.pareto.quality import LEVEL, Estimate, Quality, median, quality
from research.world.scoring import Statement
from vidspec.bench.results import restore_caption
from vidspec.bench.rows import speed_ups
from vidspec.bench.tables import bullets, cell, heading, spread, table
from vidspec.config.labels import DRAFT
from vidspec.errors import OutputError
from vidspec.events.record import Caption

#: Key of a stored record without valid times.
QUALITY_ONLY = "quality_only"
#: Settings key of methods whose token ids are not compared, as they sample other tokens by design.
DRAWN = "by_other_draws"
#: Settings key of further labels of methods that were measured under one.
ALSO = "also"
ALONE = "draft alone"
#: Kinds of methods, by what they change: nothing; the rule; the target's visual tokens; the model that writes.
KINDS = ("lossless", "loose", "lossy", ALONE)


@dataclass(frozen=True)
class Speed:
    """Speed-ups over the baseline on the same clips: medians over ``clips``, above 1 if the method is faster."""

    clips: int
    first: Estimate
    decode: Estimate
    end_to_end: Estimate


@dataclass(frozen=True)
class Method:
    """One contender.

    Attributes:
        name: its label.
        kind: one of :data:`KINDS`.
        quality: over all clips.
        speed: over the timed clips; None if there are none.
        accepted_by_target: metric A of ParallelVLM's Table 2, pooled over tokens; None if not measured.
        worth: retention, or ROUGE-L in a run without ground truth.
        frontier: True if no other method is at least as fast and as good, and better in one of the two. The draft
            alone is a reference and excluded: it does not reproduce the target.
        also: other labels of the same method.
    """

    name: str
    kind: str
    quality: Quality
    speed: Speed | None
    accepted_by_target: float | None
    worth: Estimate | None
    frontier: bool = False
    also: tuple[str, ...] = ()


@dataclass(frozen=True)
class Outcome:
    """All methods, the baseline first; ``worth`` names the quality metric; facts of the machine."""

    methods: tuple[Method, ...]
    worth: str
    machine: dict[str, Any]

    @property
    def baseline(self) -> str:
        return self.methods[0].name

    def to_dict(self) -> dict[str, Any]:
        """Return JSON values."""
        methods = [asdict(one) for one in self.methods]
        return {"baseline": self.baseline, "worth": self.worth, "machine": self.machine, "methods": methods}


def outcome(results: Mapping[str, Any]) -> Outcome:
    """Summarise a results file as returned by ``read_results``.

    Raises:
        OutputError: the first contender, the baseline, has no record.
    """
    settings = results.get("settings", {})
    names = list(settings.get("profiles", ()))
    truth = {clip: Statement(**facts) for clip, facts in settings.get("truth", {}).items()}
    captions: dict[str, dict[str, Caption]] = {name: {} for name in names}
    timed: dict[str, dict[str, list[Caption]]] = {name: {} for name in names}
    for one in results["records"]:
        name, clip = one.get("contender"), one["path"]
        if name not in captions:
            continue
        caption = restore_caption(one)
        captions[name].setdefault(clip, caption)
        if not one.get(QUALITY_ONLY):
            timed[name].setdefault(clip, []).append(caption)
    if not names or not captions[names[0]]:
        raise OutputError("the results hold no record of the baseline", hint="research.pareto --json makes them")
    accepted = accepted_shares(results["records"])
    speeds = _speeds({name: by_clip for name, by_clip in timed.items() if by_clip}, names[0])
    found = {name: quality(captions[name], captions[names[0]], truth) for name in names}
    for name in settings.get(DRAWN, ()):
        found[name] = (one := found[name]) and replace(one, identical=None)
    plain = found[names[0]]
    facts = plain is not None and plain.retention is not None
    methods = [
        Method(
            name,
            _kind(name, next(iter(captions[name].values()))),
            one,
            speeds.get(name),
            accepted.get(name),
            one.retention if facts else one.rouge_l,
            also=tuple(settings.get(ALSO, {}).get(name, ())),
        )
        for name, one in found.items()
        if one is not None
    ]
    best = frontier([_point(one) if one.kind != ALONE else None for one in methods])
    return Outcome(
        tuple(replace(one, frontier=index in best) for index, one in enumerate(methods)),
        "retention" if facts else "ROUGE-L",
        dict(results.get("machine", {})),
    )


def beaten_by_draft(found: Outcome) -> list[str]:
    """Return the methods that the draft alone, if present, equals or exceeds in both speed and quality."""
    draft = next((_point(one) for one in found.methods if one.kind == ALONE), None)
    if draft is None:
        return []
    rest = [(one.name, _point(one)) for one in found.methods if one.kind != ALONE]
    return [name for name, point in rest if point and draft[0] >= point[0] and draft[1] >= point[1]]


def _point(one: Method) -> tuple[float, float] | None:
    return (one.speed.decode.value, one.worth.value) if one.speed and one.worth else None


def frontier(points: Sequence[tuple[float, float] | None]) -> set[int]:
    """Return the indices of Pareto-optimal points (speed-up, quality)."""
    there = [(index, point) for index, point in enumerate(points) if point is not None]
    return {
        index
        for index, (fast, good) in there
        if not any(x >= fast and y >= good and (x > fast or y > good) for _, (x, y) in there)
    }


def _speeds(timed: Mapping[str, Mapping[str, Sequence[Caption]]], baseline: str) -> dict[str, Speed]:
    """Return speed-ups over the clips on which all timed contenders were timed, so that all share the same clips."""
    if baseline not in timed:
        return {}
    clips = [clip for clip in timed[baseline] if all(clip in by_clip for by_clip in timed.values())]
    if not clips:
        return {}
    found = {}
    for name, by_clip in timed.items():
        ratios = zip(*(speed_ups(by_clip[clip], timed[baseline][clip]) for clip in clips), strict=True)
        found[name] = Speed(len(clips), *(median(list(column)) for column in ratios))
    return found


def _kind(name: str, caption: Caption) -> str:
    if name == DRAFT:
        return ALONE
    if caption.lossless:
        return "lossless"
    return "lossy" if caption.loose is None else "loose"


def markdown(found: Outcome) -> str:
    """Return the table and a legend of its figures."""
    header = (
        f"{heading(one.also for one in found.methods)} | kind | clips | loose tokens | tau | mean tokens | "
        f"first token | decode | end to end | fact F1 | retention | ROUGE-L | edit distance | "
        f"same as {found.baseline} | accepted by target | frontier"
    )
    timed = next((one.speed.clips for one in found.methods if one.speed), 0)
    known = found.methods[0].quality.with_truth
    fewest = min([one.quality.clips for one in found.methods] + [timed] * bool(timed))
    notes = [
        f"In brackets {LEVEL:.0%} bootstrap intervals over clips, paired with {found.baseline}, {DRAWS} draws.",
        f"Speed-ups over {found.baseline}: medians over {timed} clips of one interleaved run."
        if timed
        else "No times: no clip was timed with all methods.",
        f"Facts of {known} clips with known truth, pooled; retention: F1 over that of {found.baseline}."
        if known
        else f"The truth of no clip is known: the frontier takes ROUGE-L against the captions of {found.baseline}.",
        f"ROUGE-L, edit distance (of tokens, over the longer length): against the captions of {found.baseline}.",
        "Accepted by target: share of the tokens that the target with its whole prompt would choose (ParallelVLM 5.1), "
        "on clips that were timed.",
        *(["Intervals over a handful of clips say little."] if fewest < MIN_CLIPS else []),
        f"Frontier: no other method is as fast in decoding and as good by {found.worth}, and better in one; "
        "the draft alone takes no part.",
    ]
    if beaten := beaten_by_draft(found):
        notes.append(f"The draft alone is at least as fast and as good as {', '.join(beaten)}.")
    return f"{table(header.split(' | '), map(_cells, found.methods))}\n{bullets(notes)}"


def _cells(one: Method) -> list[str]:
    found, speed = one.quality, one.speed
    times = (speed.first, speed.decode, speed.end_to_end) if speed else (None,) * 3
    return [
        " = ".join((one.name, *one.also)),
        one.kind,
        str(found.clips),
        cell(found.loose, ".1%"),
        cell(found.tau),
        cell(found.tokens, ".1f"),
        *(_interval(time, ".2f", "x") for time in times),
        *map(_interval, (found.f1, found.retention, found.rouge_l, found.edit_distance)),
        "in distribution" if found.identical is None else f"{found.identical:.0%}",
        cell(one.accepted_by_target, ".1%"),
        "yes" if one.frontier else "",
    ]


def _interval(estimate: Estimate | None, form: str = ".3f", unit: str = "") -> str:
    return spread((estimate.value, estimate.low, estimate.high) if estimate else None, form, unit)
