"""Captioners in other processes: how they are made, which clips they get, and which clip is to blame for an end."""

from __future__ import annotations

import os
import sys
import traceback
from collections import Counter, deque
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence, Sized
from contextlib import closing
from dataclasses import dataclass, field, replace
from importlib import import_module
from itertools import count
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol, TypeAlias

from vidspec.dataset.feed import Feed, feed_support, reader_count
from vidspec.dataset.job import Job, JobConfig, JobResult
from vidspec.dataset.reader import ClipReader
from vidspec.dataset.run import caption_jobs
from vidspec.errors import GenerationError, ModelError, VidspecError
from vidspec.events.record import failed_caption

if TYPE_CHECKING:
    from vidspec.captioner import Captioner

__all__ = [
    "ATTEMPTS",
    "CaptionerFactory",
    "DeviceGroup",
    "TaskQueue",
    "WorkerExit",
    "WorkerMessage",
    "WorkerPool",
    "run_on_workers",
    "serve_jobs",
]

#: How often a clip is given to a process before it is blamed for the process's end.
ATTEMPTS = 2


@dataclass(frozen=True)
class DeviceGroup:
    """What one captioner runs on.

    Attributes:
        visible: the GPUs it sees, as ``CUDA_VISIBLE_DEVICES`` names them; None for all.
        threads: for ``models.threads``; None to leave the profile's.
        gpus: how many a Ray actor asks for.
    """

    visible: str | None = None
    threads: int | None = None
    gpus: float = 0


@dataclass(frozen=True)
class CaptionerFactory:
    """Makes a captioner in another process; plain values that travel there.

    Attributes:
        profile: as nested plain values.
        maker: ``module:attribute`` of something with ``from_profile``.
    """

    profile: Mapping[str, object]
    maker: str = "vidspec.captioner:Captioner"

    def make(self, group: DeviceGroup) -> Captioner:
        """The captioner for ``group``, its models loaded.

        Raises:
            ModelError, DeviceError: as ``Captioner.from_profile``.
        """
        from vidspec.config import profiles

        if group.visible is not None:  # before CUDA looks; within the group devices count from 0
            os.environ["CUDA_VISIBLE_DEVICES"] = group.visible
        profile = profiles.parse(self.profile)
        if group.threads is not None:
            profile = profiles.override(profile, {"models.threads": group.threads})
        module, _, name = self.maker.partition(":")
        captioner: Captioner = getattr(import_module(module), name).from_profile(profile)
        return captioner


class WorkerExit(NamedTuple):
    """That a worker's process has ended, and how."""

    why: str


#: From a worker: it has room for a job, begins with one (or a part), has an outcome, or cannot go on.
WorkerMessage: TypeAlias = "Literal['more'] | Job | JobResult | Exception | WorkerExit"


class WorkerPool(Protocol):
    """Processes that :func:`serve_jobs`, by number, and how messages travel."""

    def start(self, group: DeviceGroup) -> int:
        """Start another one."""
        ...

    def send(self, worker: int, job: Job) -> None:
        """Give a job to one that asked for it; nothing happens where it has died since."""
        ...

    def receive(self) -> Iterable[tuple[int, WorkerMessage]]:
        """Wait for messages. :class:`WorkerExit` comes after all others of its worker."""
        ...

    def close(self, idle: Collection[int]) -> None:
        """End them all; those that are ``idle`` may end by themselves."""
        ...


def run_on_workers(
    workers: WorkerPool, factory: CaptionerFactory, jobs: Iterable[Job], groups: Sequence[DeviceGroup]
) -> Iterator[JobResult]:
    """Caption ``jobs`` by one worker for each of ``groups``; outcomes come as clips are finished, in any order.

    Each asks for the next job when it has room for it. One that dies is replaced, and what becomes of the clips it had
    is as :class:`TaskQueue` has it.

    Raises:
        VidspecError: a worker cannot load its models.
    """
    queue = TaskQueue(jobs, str(factory.profile.get("name")))
    running: dict[int, DeviceGroup] = {}
    ready: set[int] = set()
    idle: dict[int, None] = {}  # in the order in which they asked
    try:
        for group in groups if queue.count is None else groups[: max(1, queue.count)]:
            running[workers.start(group)] = group
        while not queue.over:
            for worker in list(idle):
                if (job := queue.take(worker)) is not None:
                    del idle[worker]
                    workers.send(worker, job)
            if queue.over:  # which only shows where a worker asks for what is behind the last job
                break
            for worker, message in workers.receive():
                if isinstance(message, Exception):
                    raise message
                if isinstance(message, WorkerExit):
                    if worker not in ready:
                        raise ModelError(f"a captioner's process ended while it loaded its models ({message.why})")
                    idle.pop(worker, None)
                    yield from queue.fail_worker(worker, message.why)
                    group = running.pop(worker)
                    if not queue.over:
                        running[workers.start(group)] = group
                    continue
                ready.add(worker)
                if isinstance(message, JobResult):
                    queue.mark_done(worker, message)
                    yield message
                elif isinstance(message, Job):
                    queue.mark_begun(worker, message)
                else:
                    idle[worker] = None
    finally:
        workers.close(idle if queue.over else ())


def serve_jobs(
    factory: CaptionerFactory,
    config: JobConfig,
    group: DeviceGroup,
    receive: Callable[[], Job | None],
    send: Callable[[WorkerMessage], None],
) -> None:
    """What a worker does: it loads a captioner and captions the jobs that it receives, until that is None.

    Args:
        factory, group: the captioner.
        config: the run.
        receive: waits for a job.
        send: may be called by several threads at once.
    """

    def jobs() -> Iterator[Job]:
        while True:
            send("more")
            job = receive()
            if job is None:
                return
            yield job

    try:
        captioner = factory.make(group)
        readers = [ClipReader(config.timeout, config.stall) for _ in range(reader_count(config))]
        with closing(Feed(jobs(), config, readers, *feed_support(captioner, config))) as feed:
            for outcome in caption_jobs(captioner, feed, config, on_begin=lambda job: send(job.without_frames())):
                send(_portable(outcome))
    except Exception as error:
        send(error)


def _portable(outcome: JobResult) -> JobResult:
    """``outcome`` without what cannot or need not leave a process: the trace, foreign exceptions."""
    error = outcome.error
    if error is not None and not isinstance(error, VidspecError):
        traceback.print_exception(error, file=sys.stderr)
        error = VidspecError(f"{type(error).__name__}: {error}", kind="internal")
    return JobResult(replace(outcome.caption, trace=None), error, outcome.job)


@dataclass
class _Assigned:
    """What a worker has: its jobs by number, and the parts that it is captioning."""

    jobs: dict[int, Job] = field(default_factory=dict)
    begun: dict[tuple[int, int | None], Job] = field(default_factory=dict)


class TaskQueue:
    """Gives jobs to workers that may die, and finds out which clip one died of.

    The clips that a worker was captioning when it died are tried once more. Those whose worker dies again, if there
    were several, are tried a last time, each alone in its worker after all others are done; the one that is alone when
    a worker dies again has failed. So has the segment of a film, which then goes on behind it.

    The clips of a shard go to one worker, which reads it from its beginning to its end; when no shard is left, the
    others help with those that are begun.

    Args:
        jobs: the clips; each is drawn when a worker has room for it, those of a shard together.
        profile: its name, for the records of those that failed.
    """

    def __init__(self, jobs: Iterable[Job], profile: str | None) -> None:
        self.profile = profile
        self.count = len(jobs) if isinstance(jobs, Sized) else None  #: of jobs, where that is known
        self._undrawn, self._numbers = iter(jobs), count(1)
        self._drawn = self.count == 0
        self._next: Job | None = None  # drawn with the shard before it
        self._waiting: deque[Job] = deque()
        self._shards: dict[Hashable, deque[Job]] = {}  # what is left of the shard that each worker is at
        self._alone: deque[Job] = deque()
        self._assigned: dict[Hashable, _Assigned] = {}
        self._ends: Counter[int] = Counter()

    @property
    def over(self) -> bool:
        """Whether all is done; what was not drawn yet shows with the next :meth:`take` only."""
        left = self._waiting or self._alone or any(self._shards.values()) or self._next or not self._drawn
        return not left and not any(one.jobs for one in self._assigned.values())

    def take(self, worker: Hashable) -> Job | None:
        """A job for a worker that has room; None if there is none for it now."""
        assigned = self._assigned.setdefault(worker, _Assigned())
        if any(job.run_alone for job in assigned.jobs.values()):
            return None
        if self._waiting:
            job = self._waiting.popleft()
        elif (drawn := self._of_shard(worker)) is not None:
            job = drawn
        elif self._alone and not assigned.jobs:
            job = self._alone.popleft()
        else:
            return None
        assigned.jobs[job.number] = job
        return job

    def _of_shard(self, worker: Hashable) -> Job | None:
        """The next clip of the worker's shard, of another that is begun by it, or of one that others are at."""
        mine = self._shards.setdefault(worker, deque())
        if not mine and (first := self._draw()) is not None:
            mine.append(first)
            while first.shard is not None and (job := self._draw()) is not None:
                if job.shard != first.shard:
                    self._next = job
                    break
                mine.append(job)
        mine = mine or max(self._shards.values(), key=len)
        return mine.popleft() if mine else None

    def _draw(self) -> Job | None:
        job, self._next = self._next, None
        if job is None and not self._drawn:
            job = next(self._undrawn, None)
            self._drawn = job is None or next(self._numbers) == self.count
        return job

    def mark_begun(self, worker: Hashable, job: Job) -> None:
        """A worker begins to caption a job, or a part of one."""
        self._assigned[worker].begun[job.number, job.segment] = job

    def mark_done(self, worker: Hashable, outcome: JobResult) -> None:
        """A job, or a part, is captioned, or has failed by itself."""
        assigned, job = self._assigned[worker], outcome.job
        assigned.begun.pop((job.number, job.segment), None)
        if job.is_last:
            del assigned.jobs[job.number]
        else:
            assigned.jobs[job.number] = _without(assigned.jobs[job.number], job, outcome.caption.caption)

    def fail_worker(self, worker: Hashable, why: str) -> list[JobResult]:
        """A worker has ended; the outcomes of those that have failed by that."""
        assigned = self._assigned.pop(worker, _Assigned())
        suspects = list(assigned.begun.values()) or list(assigned.jobs.values())
        suspected = {job.number for job in suspects}
        failures = []
        for number, job in reversed(assigned.jobs.items()):
            self._ends[number] += number in suspected
            if number not in suspected or self._ends[number] < ATTEMPTS:
                self._again(job)
            elif len(suspects) > 1:
                self._again(replace(job, run_alone=True))
            else:
                (part,) = suspects
                error = GenerationError(f"{part.path}: its captioner ended each time: {why}", kind="crashed")
                failures.append(JobResult(failed_caption(part.path, error, profile=self.profile), error, part))
                if not part.is_last:
                    self._ends[number] = 0
                    self._again(_without(job, part, None))
        return failures

    def _again(self, job: Job) -> None:
        (self._alone if job.run_alone else self._waiting).appendleft(job)


def _without(job: Job, part: Job, caption: str | None) -> Job:
    """A job with one part less to do."""
    assert part.segment is not None
    return replace(job, done={**job.done, part.segment: caption})
