"""Decides what is left to do of a run that may have been begun before. Captions nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from vidspec.dataset.identity import Content, clip_id, content_of
from vidspec.dataset.job import Job, Outcome
from vidspec.dataset.journal import Stored
from vidspec.dataset.outputs import ONE_CLIP, Output
from vidspec.dataset.records import LIFTED, Settings
from vidspec.errors import OutputError
from vidspec.events.record import failed

__all__ = ["Remaining", "left", "plan"]


@dataclass
class Remaining:
    """What is to be done, and what an earlier run did.

    Attributes:
        jobs: clips with something left to do.
        contents: the content of each clip before it is read, by the number of its job.
        captioned, failed: clips that an earlier run finished.
        reused: clips whose caption was taken over from the same content under another name.
        unkept: clips whose caption cannot be kept, and so is not made.
    """

    jobs: list[Job] = field(default_factory=list)
    contents: dict[int, Content] = field(default_factory=dict)
    captioned: int = 0
    failed: int = 0
    reused: int = 0
    unkept: list[Outcome] = field(default_factory=list)


def left(parts: Mapping[int | None, Stored], content: Content, *, segmented: bool, retry: bool) -> set[int] | None:
    """What of a clip counts as done: a set of segments (empty for nothing), or None if nothing is left to do.

    Args:
        parts: its records under the same settings, by segment.
        content: of the file now; records of another content do not count.
        segmented: whether the clip is captioned in segments, or asked several things.
        retry: whether error records count as not done.
    """
    parts = {key: one for key, one in parts.items() if one.content.same(content) and not (retry and one.failed)}
    if None in parts:  # the whole clip, or a clip that could not be cut
        return None
    if not segmented or not parts:
        return set()
    done = {key for key in parts if key is not None}
    return None if len(done) == next(iter(parts.values())).segments else done


def plan(
    jobs: Sequence[Job], output: Output, settings: Settings, *, checksum: bool = False, retry: bool = False
) -> Remaining:
    """What is left of a run over ``jobs`` into ``output``.

    Args:
        jobs: the clips, each once; they are numbered here.
        output: knows the records of earlier runs; takes those of reused captions.
        settings: how clips are captioned.
        checksum: tell content by hash instead of size and time; a clip that was renamed keeps its caption.
        retry: try clips again that failed.
    """
    made = Remaining()
    for number, job in enumerate(jobs, start=1):
        job = replace(job, number=number)
        try:
            _planned(made, job, output, settings, checksum=checksum, retry=retry)
        except OutputError as error:
            if error.kind != ONE_CLIP:
                raise
            made.unkept.append(Outcome(failed(job.path, error, profile=settings.name), error, job))
    return made


def _planned(made: Remaining, job: Job, output: Output, settings: Settings, *, checksum: bool, retry: bool) -> None:
    """Enter one clip into the plan."""
    content = content_of(job.path, checksum=checksum)
    name = settings.of(job)
    parts = output.parts(job, name)
    segmented = settings.config.segment is not None or settings.config.questions_of(job) is not None
    done = left(parts, content, segmented=segmented, retry=retry)
    if done is None:
        output.earlier(job, name)
        of_these = any(stored.failed for stored in parts.values())
        made.failed += of_these
        made.captioned += not of_these
        return
    output.check(job)
    if not done and content.sha256 is not None and _taken_over(job, output, name, content):
        made.reused += 1
        return
    captions = {one: output.read(job, parts[one]).get("caption") for one in done}
    made.contents[job.number] = content
    made.jobs.append(replace(job, done=captions))


def _taken_over(job: Job, output: Output, settings: str, content: Content) -> bool:
    """Write the caption of the same bytes under this name too, if there is one for the same part."""
    record = output.same_content(job, content.sha256 or "", settings)
    if record is None:
        return False
    part = {**{key: record.get(key) for key in LIFTED}, **record["job"]}  # a lean record says it beside the job
    if (part.get("start"), part.get("end")) != (job.start, job.end):
        return False
    known = {key: value for key, value in content._asdict().items() if value is not None}
    own = {"id": job.id, "columns": dict(job.columns) or None}
    about = {key: value for key, value in {**part, **known, **own}.items() if value is not None}
    about["clip"] = clip_id(job)
    video = {**record["video"], "path": job.path} if "path" in record["video"] else record["video"]
    record = {key: value for key, value in record.items() if key not in LIFTED}
    output.add(job, {**record, "path": job.path, "video": video, "job": about})
    return True
