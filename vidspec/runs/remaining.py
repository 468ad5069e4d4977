"""A run over many clips: the work left by an earlier run, and executor results as records, counts and events.

Knows no model and no terminal.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import wait
from contextlib import contextmanager
from itertools import chain, filterfalse
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from vidspec.errors import LostOutputError, OutputError, UsageError, VideoError, option
from vidspec.events.observer import ClipPart, RunObserver
from vidspec.events.tally import Tally
from vidspec.runs.allowance import fetch_limits
from vidspec.runs.executors.base import Executor
from vidspec.runs.job import Job, named_fields, questions_of
from vidspec.runs.renderers import ONE_CLIP, PendingFile
from vidspec.runs.rendering import check_template
from vidspec.runs.run import exit_code
from vidspec.runs.run_store import RunStore
from vidspec.runs.sources.base import shard_members
from vidspec.runs.store.journal_lines import JournalEntry
from vidspec.runs.store.records import FileContent, content_of, raw_caption, record_of, rendered_record, settings_digest
from vidspec.signals import defer_signals

if TYPE_CHECKING:
    from vidspec.config.run_spec import RunSpec
    from vidspec.config.schema import Profile

#: Clips with parts left to caption; an iterator finds those of shards as they are drawn.
RemainingJobs: TypeAlias = list[Job] | Iterator[Job]
#: The most results whose record is written and whose files are not yet.
MOST_PENDING = 16


def remaining_parts(
    parts: Mapping[int | None, JournalEntry],
    content: FileContent,
    *,
    segmented: bool,
    retry: bool,
    summary: bool = False,
) -> set[int] | None:
    """Return the finished segments of a clip (empty if none), or None if nothing is left to do.

    Args:
        parts: records of the clip under the same settings, by segment.
        content: current content of the file; records of other content do not count.
        segmented: True if the clip is captioned in segments or by several questions.
        retry: True if error records count as not done.
        summary: True if the last segment's record has a summary of all, so that it is never done before another.
    """
    parts = {key: one for key, one in parts.items() if one.content.same(content) and not (retry and one.failed)}
    if None in parts:  # the whole clip, or a clip that could not be cut
        return None
    if not segmented or not parts:
        return set()
    done = {key for key in parts if key is not None}
    segments = next(iter(parts.values())).segments
    if len(done) == segments:
        return None
    return done - {segments - 1} if summary and segments is not None else done


def plan_clips(
    jobs: Sequence[Job], store: RunStore, spec: RunSpec, profile: Profile, tally: Tally, at: int = 1
) -> list[Job]:
    """Return the clips left of a run over ``jobs`` into ``store``; one whose caption could not be written has an error.

    Args:
        jobs: unique clips; they are numbered here.
        store: holds the records of earlier runs.
        spec: the run.
        profile: of its captioner.
        tally: counts the clips that are done, or skipped because their files are kept.
        at: number of the first clip.
    """
    left = []
    for number, job in enumerate(jobs, start=at):
        job.number = number
        try:
            if not _plan_job(job, store, spec, profile, tally):
                continue
        except OutputError as error:
            if error.kind != ONE_CLIP:
                raise
            job.error = error
        left.append(job)
    return left


def is_left(jobs: RemainingJobs) -> bool:
    """Return True if there is a clip to caption."""
    return not isinstance(jobs, list) or not all(map(_is_unwritable, jobs))


def _is_unwritable(job: Job) -> bool:
    return isinstance(job.error, OutputError)


def plan_shards(shards: Sequence[Job], store: RunStore, spec: RunSpec, profile: Profile, tally: Tally) -> RemainingJobs:
    """Return the clips left of a run over shards, opening each shard after all clips of those before are drawn.

    A shard that cannot be read counts as one failed clip. The first clip is drawn immediately.

    Args:
        shards: the shards, as jobs.
        store: knows the finished parts.
        spec: the run.
        profile: of its captioner.
        tally: counts clips as they are found.

    Raises:
        UsageError: parts were made with other settings, or the first shard's column is ambiguous.
    """
    files = store.part_files
    assert files is not None
    limits, names = fetch_limits(spec), named_fields(spec, profile)
    for shard in shards:
        if (part := files.finished_part(shard, settings_digest(shard, spec, profile))) is None:
            continue
        tally.total += part.clips
        tally.earlier += part.clips - part.failed
        tally.earlier_failed += part.failed

    def draw_clips() -> Iterator[Job]:
        number = 1
        for shard in (shard for shard in shards if shard.path not in files.finished):
            try:
                jobs = shard_members(shard, spec.column, limits, names)
                if number == 1 and spec.template is not None:
                    check_template(spec.template, option("template"), {key for job in jobs for key in job.fields})
                files.begin(shard)
                counts = Tally()
                left = plan_clips(jobs, store, spec, profile, counts, number)
                files.set_clips(shard, jobs, left, settings_digest(shard, spec, profile))
            except (VideoError, UsageError, OutputError) as error:
                if error.kind == OutputError.kind or (isinstance(error, UsageError) and number == 1):
                    raise
                shard.number, shard.error = number, error
                jobs, left, counts = [shard], [shard], Tally()
            tally.total += len(jobs)
            tally.earlier += counts.earlier
            tally.earlier_failed += counts.earlier_failed
            number += len(jobs)
            yield from left

    jobs = draw_clips()
    first = next(jobs, None)
    return [] if first is None else chain((first,), jobs)


def _plan_job(job: Job, store: RunStore, spec: RunSpec, profile: Profile, tally: Tally) -> bool:
    """Return True if a clip is left, and add what is known of it; False if it needs no captioning."""
    job.content = content_of(job.path, job.source, checksum=spec.checksum)
    name = settings_digest(job, spec, profile)
    parts = store.captions.parts(job, name)
    leaves = not parts and store.leaves(job)
    if not parts and not leaves:
        parts = _rendered_parts(job, store, spec, profile, name)
    segmented = spec.segment is not None or questions_of(job, spec) is not None
    done = remaining_parts(parts, job.content, segmented=segmented, retry=spec.retry_failed, summary=spec.summary)
    if done is None:
        store.restore(job, name)
        any_failed = any(entry.failed for entry in parts.values())
        tally.earlier_failed += any_failed
        tally.earlier += not any_failed
        return False
    store.check(job)
    if leaves or (parts and store.leaves(job)):
        tally.kept += 1
        return False
    texts = {number: store.captions.own_text(job.part(number, parts[number].segments or 1)) for number in done}
    job.done = {n: raw_caption(parts[n].record()) if text is None else text for n, text in texts.items()}
    if spec.existing == "use":  # else the text beside it in its shard
        job.existing = store.captions.own_text(job, replaced=True) or job.existing or ""
    return True


def _rendered_parts(
    job: Job, store: RunStore, spec: RunSpec, profile: Profile, settings: str
) -> Mapping[int | None, JournalEntry]:
    """Return the records of a clip made with another template, rendered in this run's; empty if there are none.

    Not where the template is part of what a model is asked: with a limit, or with the text that was there.
    """
    if spec.limit is not None or spec.existing == "use":
        return {}

    def settings_with(template: str | None) -> str:
        return settings_digest(job, spec.model_copy(update={"template": template}), profile)

    store.captions.render_earlier(
        job, settings, settings_with, lambda record: rendered_record(record, job, spec, settings)
    )
    return store.captions.parts(job, settings)


def caption_remaining(
    jobs: RemainingJobs,
    executor: Executor,
    store: RunStore,
    spec: RunSpec,
    profile: Profile,
    tally: Tally,
    observer: RunObserver,
    codes: set[int],
) -> Generator[Job, None, None]:
    """Caption clips; yield each with its result, after its record was written, and drop that.

    Args:
        jobs: the clips left.
        executor: of the jobs.
        store: writes each record before the observer gets the result. A clip whose record cannot be written counts as
            failed; the run ends once nothing can be written any more.
        spec: the run.
        profile: of its captioner.
        tally: counts; ``stopped`` is set to the reason of an early end.
        observer: receives each result, and the end.
        codes: gets the exit code of each result (see ``vidspec.runs.run.exit_code``); errors are not kept, for
            their tracebacks hold frames.
    """
    unwritable: list[Job] = []
    max_failures = 1 if spec.fail_fast else spec.max_failures
    if isinstance(jobs, list):
        unwritable, jobs = [*filter(_is_unwritable, jobs)], [*filterfalse(_is_unwritable, jobs)]
    captioned = executor(jobs)
    failed = (one.fail(one.error, profile.name) for one in unwritable if one.error is not None)
    recorded: deque[_Recorded] = deque()
    try:
        for job in _with_pending(chain(failed, captioned), recorded, tally):
            shown: list[Job] = []
            try:
                with defer_signals():  # a written record is also counted
                    if job is not None:
                        recorded.append(_Recorded(job, _write_record(job, store, spec, profile)))
                    while recorded and recorded[0].is_ready:
                        one, pending = recorded.popleft()
                        with _failing(one):
                            if pending is not None:
                                pending.show()
                        shown.append(one)
                        tally.add(one.number, one.caption, last=one.is_last)
                        tally.unkept += isinstance(one.error, OutputError) or not store.keeps(one)
            except OutputError as error:
                tally.stopped = str(error)
                codes.add(LostOutputError.exit_code)
                break
            for one in shown:
                codes.add(exit_code([one.error]))
                observer.result(one.caption, one.error, ClipPart(one.start, one.end, one.segment, one.segments), tally)
                yield one
                one.result = one.error = None  # the plan keeps the job for its place
            if max_failures is not None and tally.failed >= max_failures and tally.done < tally.total:
                tally.stopped = f"{tally.failed} failed, as many as --max-failures allows"
    finally:
        close = getattr(captioned, "close", None)
        if close is not None:
            close()
        observer.ended(tally)


class _Recorded(NamedTuple):
    """A captioned job whose record is written, and a file of it that is shown later."""

    job: Job
    pending: PendingFile | None

    @property
    def is_ready(self) -> bool:
        return self.pending is None or self.pending.written.done()

    def wait(self) -> None:
        """Wait until it is ready, or for Ctrl-C."""
        if self.pending is not None:
            wait([self.pending.written])


def _with_pending(captioned: Iterable[Job], recorded: deque[_Recorded], tally: Tally) -> Iterator[Job | None]:
    """Yield jobs until the run is stopped, then None each time that the first recorded one is ready."""
    for job in captioned:
        yield job
        if tally.stopped is not None:
            break
        if len(recorded) > MOST_PENDING:
            recorded[0].wait()
    while recorded:
        recorded[0].wait()
        yield None


def _write_record(job: Job, store: RunStore, spec: RunSpec, profile: Profile) -> PendingFile | None:
    """Write a record to ``store``, and return a file that is shown later; the job has failed if it cannot be written.

    Raises:
        OutputError: nothing can be written any more.
    """
    with _failing(job):
        if not isinstance(job.error, OutputError):  # found while planning
            content = job.content or content_of(job.path, job.source)  # of a shard that cannot be read
            return store.add(job.planned_job, record_of(job, spec, profile, content))
    return None


@contextmanager
def _failing(job: Job) -> Iterator[None]:
    """Let a job fail by an error in the block that concerns its files alone."""
    try:
        yield
    except OutputError as error:
        if error.kind != ONE_CLIP:
            raise
        job.fail(error, job.caption.profile)
