"""A run over many clips: what an earlier run left to do, and outcomes of an executor as records, counts and events.

Knows no model and no terminal.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain

from vidspec.dataset.containers import shard_members
from vidspec.dataset.interruption import uninterrupted
from vidspec.dataset.job import Job, JobResult
from vidspec.dataset.journal import JournalEntry
from vidspec.dataset.outputs import ONE_CLIP, Output
from vidspec.dataset.parts import PartOutput
from vidspec.dataset.records import LIFTED, FileContent, SettingsDigest, clip_id, content_of, raw_caption, record_of
from vidspec.dataset.run import exit_code
from vidspec.errors import OutputError, UsageError, VideoError
from vidspec.events.record import failed_caption
from vidspec.events.tally import Tally

__all__ = ["Executor", "Remaining", "ResultListener", "plan_run", "plan_shards", "remaining_parts", "run_plan"]

#: Turns jobs into outcomes, in any order, each as soon as it is known; closing the iterator ends its work.
Executor = Callable[[Iterable[Job]], Iterator[JobResult]]


@dataclass
class Remaining:
    """What is to be done, and what an earlier run did.

    Attributes:
        jobs: clips with something left to do.
        undrawn: those of shards instead, which are found while they are drawn; None for none.
        contents: the content of each clip before it is read, by the number of its job; none of those in shards.
        captioned, failed: clips that an earlier run finished.
        kept: clips whose files were edited or no run wrote: they are not captioned.
        reused: clips whose caption was taken over from the same content under another name.
        unkept: clips whose caption cannot be kept, and so is not made.
    """

    jobs: list[Job] = field(default_factory=list)
    undrawn: Iterator[Job] | None = None
    contents: dict[int, FileContent] = field(default_factory=dict)
    captioned: int = 0
    failed: int = 0
    kept: int = 0
    reused: int = 0
    unkept: list[JobResult] = field(default_factory=list)

    @property
    def left(self) -> bool:
        """Whether there is a clip to caption."""
        return bool(self.jobs or self.undrawn)


def remaining_parts(
    parts: Mapping[int | None, JournalEntry], content: FileContent, *, segmented: bool, retry: bool
) -> set[int] | None:
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


def plan_run(
    jobs: Sequence[Job],
    output: Output,
    settings: SettingsDigest,
    *,
    checksum: bool = False,
    retry: bool = False,
    at: int = 1,
) -> Remaining:
    """What is left of a run over ``jobs`` into ``output``.

    Args:
        jobs: the clips, each once; they are numbered here.
        output: knows the records of earlier runs; takes those of reused captions.
        settings: how clips are captioned.
        checksum: tell content by hash instead of size and time; a clip that was renamed keeps its caption.
        retry: try clips again that failed.
        at: the number of the first clip.
    """
    made = Remaining()
    for number, job in enumerate(jobs, start=at):
        job = replace(job, number=number)
        try:
            _planned(made, job, output, settings, checksum=checksum, retry=retry)
        except OutputError as error:
            if error.kind != ONE_CLIP:
                raise
            made.unkept.append(JobResult(failed_caption(job.path, error, profile=settings.name), error, job))
    return made


def plan_shards(
    shards: Sequence[Job],
    output: PartOutput,
    settings: SettingsDigest,
    tally: Tally,
    column: str | None,
    *,
    retry: bool,
) -> Remaining:
    """What is left of a run over shards: each is opened when all clips of those before it are drawn.

    A shard that cannot be read is a clip that has failed. The first clip is drawn at once.

    Args:
        shards: as jobs.
        output: knows which parts are finished.
        settings: how clips are captioned.
        tally: counts clips as they are found.
        column: of Parquet files.
        retry: try clips again that failed.

    Raises:
        UsageError: parts were made with other settings; or the first shard's column is not clear.
    """
    for shard in shards:
        if (part := output.finished.get(shard.path)) is None:
            continue
        if set(part.settings) - {settings.of(shard)}:
            message = f"{output.name(shard.path)}: was made with other settings"
            raise UsageError(message, hint="--overwrite, or another --output-dir")
        tally.total += part.clips
        tally.earlier += part.clips - part.failed
        tally.earlier_failed += part.failed

    def found() -> Iterator[Job]:
        number = 1
        for shard in (shard for shard in shards if shard.path not in output.finished):
            try:
                jobs = shard_members(shard, column, settings.config.fetch)
                output.begin(shard.path)
                one = plan_run(jobs, output, settings, retry=retry, at=number)
                output.expect(shard.path, jobs, one.jobs, settings.of(shard))
            except (VideoError, UsageError, OutputError) as error:
                if error.kind == OutputError.kind or (isinstance(error, UsageError) and number == 1):
                    raise
                jobs, one = [shard], Remaining([replace(shard, number=number, error=error)])
            tally.total += len(jobs)
            tally.earlier += one.captioned
            tally.earlier_failed += one.failed
            number += len(jobs)
            yield from one.jobs

    jobs = found()
    first = next(jobs, None)
    undrawn = None if first is None else chain((first,), jobs)
    return Remaining(undrawn=undrawn, captioned=tally.earlier, failed=tally.earlier_failed)


def _planned(
    made: Remaining, job: Job, output: Output, settings: SettingsDigest, *, checksum: bool, retry: bool
) -> None:
    """Enter one clip into the plan."""
    content = content_of(job.path, job.source, checksum=checksum)
    name = settings.of(job)
    parts = output.parts(job, name)
    segmented = settings.config.segment is not None or settings.config.questions_of(job) is not None
    done = remaining_parts(parts, content, segmented=segmented, retry=retry)
    if done is None:
        output.restore(job, name)
        of_these = any(stored.failed for stored in parts.values())
        made.failed += of_these
        made.captioned += not of_these
        return
    output.check(job)
    if output.leaves(job):
        made.kept += 1
        return
    if not done and content.sha256 is not None and _taken_over(job, output, name, content):
        made.reused += 1
        return
    captions = {one: raw_caption(parts[one].record()) for one in done}
    made.contents[job.number] = content
    made.jobs.append(replace(job, done=captions))


def _taken_over(job: Job, output: Output, settings: str, content: FileContent) -> bool:
    """Write the caption of the same bytes under this name too, if there is one for the same part."""
    stored = output.same_content(job, content.sha256 or "", settings)
    if stored is None:
        return False
    record = stored.record()
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


class ResultListener:
    """Gets the outcomes of a run; this one does nothing with them."""

    def result(self, outcome: JobResult, tally: Tally) -> None:
        """A clip or segment is captioned or has failed, and its record is kept."""

    def ended(self, tally: Tally) -> None:
        """Nothing more happens."""


def run_plan(
    plan: Remaining,
    engine: Executor,
    output: Output,
    settings: SettingsDigest,
    tally: Tally,
    listeners: Iterable[ResultListener] = (),
    *,
    max_failures: int | None = None,
) -> int:
    """Caption what ``plan`` leaves; returns the exit code (see ``vidspec.dataset.run.exit_code``).

    Args:
        plan, settings: what to do, and how.
        engine: does it.
        output: keeps a record before listeners get it. A clip whose record it cannot keep has failed; the run ends
            where it can keep no more.
        tally: counts; its ``stopped`` says why the run ended early.
        listeners: get each outcome, and the end.
        max_failures: the run ends with this many failed clips.
    """
    listeners = tuple(listeners)
    codes: set[int] = set()  # and not the errors themselves, whose tracebacks hold the frames of their clips
    outcomes = engine(plan.undrawn or plan.jobs)
    try:
        for outcome in chain(plan.unkept, outcomes):
            try:
                with uninterrupted():  # what is kept is counted
                    outcome = _kept(outcome, plan, output, settings)
                    tally.add(outcome.job.number, outcome.caption, last=outcome.job.is_last)
                    tally.unkept += not _is_kept(outcome, output)
            except OutputError as error:
                tally.stopped = str(error)
                codes.add(error.exit_code)
                break
            codes.add(exit_code([outcome.error]))
            for listener in listeners:
                listener.result(outcome, tally)
            if max_failures is not None and tally.failed >= max_failures and tally.done < tally.total:
                tally.stopped = f"{tally.failed} failed, as many as --max-failures allows"
                break
    finally:
        close = getattr(outcomes, "close", None)
        if close is not None:
            close()
        for listener in listeners:
            listener.ended(tally)
    return max(codes, default=0)


def _is_kept(outcome: JobResult, output: Output) -> bool:
    """Whether there is a record of an outcome: not where it could not be written, nor of a shard without a part."""
    return not (
        isinstance(outcome.error, OutputError) or (isinstance(output, PartOutput) and outcome.job.shard is None)
    )


def _kept(outcome: JobResult, plan: Remaining, output: Output, settings: SettingsDigest) -> JobResult:
    """Give a record to ``output``; the outcome, or that it could not be kept.

    Raises:
        OutputError: nothing can be kept any more.
    """
    job = outcome.job
    if isinstance(outcome.error, OutputError):  # it was known before
        return outcome
    try:
        content = plan.contents.get(job.number) or content_of(job.path, job.source)  # the latter in shards
        output.add(job.planned_job, record_of(outcome, settings, content))
    except OutputError as error:
        if error.kind != ONE_CLIP:
            raise
        return JobResult(failed_caption(job.path, error, profile=outcome.caption.profile), error, job)
    return outcome
