"""What a run would do, and how long that may take. Looks at clips and earlier records; loads and writes nothing."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from vidspec.dataset.formats import span
from vidspec.dataset.job import Job, JobConfig
from vidspec.dataset.segments import fixed
from vidspec.errors import VideoError
from vidspec.events.record import Record

__all__ = ["Estimate", "Past", "Wanted", "estimate", "past", "wanted"]


class Past(NamedTuple):
    """What an earlier record says of its cost: ``seconds`` it took, for ``covered`` seconds of video."""

    seconds: float
    covered: float


def past(records: Iterable[Record], settings: Collection[str]) -> list[Past]:
    """Of captions under these settings with their times, each counted once however many outputs have it."""
    found = {}
    for record in records:
        job, seconds = record["job"], record.get("timings", {}).get("end_to_end")
        if job["settings"] in settings and record.get("error") is None and seconds is not None:
            start, end = span(record)
            found[job["clip"], job["settings"], job.get("segment")] = Past(seconds, end - start)
    return list(found.values())


@dataclass(frozen=True)
class Wanted:
    """What is to be captioned of a clip: ``seconds`` of it, in so many ``parts`` (None where scenes make them).

    ``error`` says why nothing can be.
    """

    job: Job
    seconds: float = 0.0
    parts: int | None = 1
    error: str | None = None


def wanted(job: Job, config: JobConfig) -> Wanted:
    """How much of a clip is left, from its index alone; scenes are not looked for."""
    from vidspec.video import probe

    try:
        duration = probe(job.path).duration_s
        start, end = job.start or 0.0, duration if job.end is None else min(job.end, duration)
        if end <= start:
            raise VideoError(f"{job.path}: has no frame at {start:g} s or later: it lasts {duration:.3f} s")
    except VideoError as error:
        return Wanted(job, error=str(error))
    if not isinstance(config.segment, float | int):
        return Wanted(job, end - start, 1 if config.segment is None else None)
    segments = [one for number, one in enumerate(fixed(config.segment, start, end)) if number not in job.done]
    return Wanted(job, sum(last - first for first, last in segments), len(segments))


class Estimate(NamedTuple):
    """``seconds`` that a run may take, None where nothing tells, and on what that rests."""

    seconds: float | None
    why: str


def estimate(left: Iterable[Wanted], earlier: Sequence[Past], *, by_length: bool) -> Estimate:
    """How long one captioner may need, from what earlier clips of the same settings took; loading is not in it.

    Args:
        left: what is to be captioned.
        earlier: what earlier records say.
        by_length: whether a clip's cost follows its length, as with frames per second or segments, or is the same.
    """
    todo = [one for one in left if one.error is None]
    if not earlier:
        return Estimate(None, "no earlier record here with these settings and times")
    spent, covered = sum(one.seconds for one in earlier), sum(one.covered for one in earlier)
    basis = f"{len(earlier)} earlier record{'s' if len(earlier) > 1 else ''} here"
    if not by_length:
        each = spent / len(earlier)
        return Estimate(each * len(todo), f"{basis}, {each:.2f} s for a clip")
    if covered <= 0:
        return Estimate(None, f"{basis} do not say how long their clips are")
    rate = spent / covered
    return Estimate(rate * sum(one.seconds for one in todo), f"{basis}, {rate:.2f} s for a second of video")
