"""Preview of a run and its estimated time, from clips and earlier records. Loads no model and writes nothing."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from vidspec.errors import VideoError
from vidspec.events.record import RecordDict
from vidspec.runs.formats.base import time_range
from vidspec.runs.job import Job, JobConfig
from vidspec.runs.segments import fixed_segments

__all__ = ["EarlierCost", "PlannedClip", "RunEstimate", "earlier_costs", "estimate_run", "planned_clip"]


class EarlierCost(NamedTuple):
    """Cost of an earlier record: ``seconds`` it took for ``covered`` seconds of video."""

    seconds: float
    covered: float


def earlier_costs(records: Iterable[RecordDict], settings: Collection[str]) -> list[EarlierCost]:
    """Return the costs of timed captions under these settings, each caption once even if several outputs have it."""
    costs = {}
    for record in records:
        job, seconds = record["job"], record.get("timings", {}).get("end_to_end")
        if job["settings"] in settings and record.get("error") is None and seconds is not None:
            start, end = time_range(record)
            costs[job["clip"], job["settings"], job.get("segment")] = EarlierCost(seconds, end - start)
    return list(costs.values())


@dataclass(frozen=True)
class PlannedClip:
    """Part of a clip left to caption: ``seconds`` of video in ``parts`` parts.

    ``seconds`` is None for a clip in a shard, which is not opened; ``parts`` if they follow from scenes or the length.

    ``error`` is the reason if it cannot be captioned.
    """

    seconds: float | None = 0.0
    parts: int | None = 1
    error: str | None = None


def planned_clip(job: Job, config: JobConfig) -> PlannedClip:
    """Return the part of a clip that is left, from its index alone; scenes are not detected."""
    from vidspec.video import probe

    if job.source is not None:
        return PlannedClip(None, 1 if config.segment is None else None, None if job.error is None else str(job.error))
    try:
        duration = probe(job.path).duration_s
        start, end = job.start or 0.0, duration if job.end is None else min(job.end, duration)
        if end <= start:
            raise VideoError(f"{job.path}: has no frame at {start:g} s or later: it lasts {duration:.3f} s")
    except VideoError as error:
        return PlannedClip(error=str(error))
    if not isinstance(config.segment, float | int):
        return PlannedClip(end - start, 1 if config.segment is None else None)
    segments = [one for number, one in enumerate(fixed_segments(config.segment, start, end)) if number not in job.done]
    return PlannedClip(sum(last - first for first, last in segments), len(segments))


class RunEstimate(NamedTuple):
    """Estimated ``seconds`` of a run (None if unknown), and the basis of the estimate."""

    seconds: float | None
    why: str


def estimate_run(left: Iterable[PlannedClip], earlier: Sequence[EarlierCost], *, by_length: bool) -> RunEstimate:
    """Estimate the time of one captioner from earlier clips with the same settings, without model loading.

    Args:
        left: clips left to caption.
        earlier: costs of earlier records.
        by_length: True if cost is proportional to length, as with frames per second or segments; False if constant.
    """
    todo = [one for one in left if one.error is None]
    if not earlier:
        return RunEstimate(None, "no earlier record here with these settings and times")
    lengths = [one.seconds for one in todo if one.seconds is not None]
    spent, covered = sum(one.seconds for one in earlier), sum(one.covered for one in earlier)
    basis = f"{len(earlier)} earlier record{'s' if len(earlier) > 1 else ''} here"
    if not by_length:
        each = spent / len(earlier)
        return RunEstimate(each * len(todo), f"{basis}, {each:.2f} s for a clip")
    if len(lengths) < len(todo):
        return RunEstimate(None, "the lengths of clips in shards are not known")
    if covered <= 0:
        return RunEstimate(None, f"{basis} do not say how long their clips are")
    rate = spent / covered
    return RunEstimate(rate * sum(lengths), f"{basis}, {rate:.2f} s for a second of video")
