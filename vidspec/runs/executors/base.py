"""Captioners in other processes: creation, job distribution, and attribution of crashes to clips."""

from __future__ import annotations

import sys
import traceback
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass, field, replace
from importlib import import_module
from itertools import count
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol, TypeAlias

from vidspec.errors import GenerationError, ModelError, VidspecError
from vidspec.runs.executors.local import caption_locally
from vidspec.runs.job import Job

if TYPE_CHECKING:
    from vidspec.captioner import Captioner
    from vidspec.config.run_spec import RunSpec

__all__ = [
    "ATTEMPTS",
    "CaptionerFactory",
    "DeviceGroup",
    "Executor",
    "JobBegun",
    "JobChannel",
    "TaskQueue",
    "WorkerExecutor",
    "WorkerExit",
    "WorkerMessage",
    "serve_jobs",
]

#: Captions jobs: yields them, or their parts, with their results, in any order; closing the iterator stops the work.
Executor: TypeAlias = Callable[[Iterable[Job]], Iterator[Job]]
#: Attempts of a clip before it is blamed for the end of its worker.
ATTEMPTS = 2


@dataclass(frozen=True)
class DeviceGroup:
    """Devices of one captioner.

    Attributes:
        visible: its ``CUDA_VISIBLE_DEVICES``; None for all GPUs.
        threads: override of ``models.threads``; None for the profile's.
        gpus: number of GPUs that a Ray actor requests.
    """

    visible: str | None = None
    threads: int | None = None
    gpus: float = 0


@dataclass(frozen=True)
class CaptionerFactory:
    """Creates a captioner in another process; plain values that can be pickled.

    Attributes:
        profile: the profile as nested plain values.
        maker: ``module:attribute`` of a class with ``from_profile``.
    """

    profile: Mapping[str, object]
    maker: str = "vidspec.captioner:Captioner"

    def make(self, group: DeviceGroup) -> Captioner:
        """Return a captioner for ``group`` with its models loaded.

        Raises:
            ModelError, DeviceError: as ``Captioner.from_profile``.
        """
        from vidspec.config import profiles

        profile = profiles.parse(self.profile)
        if group.threads is not None:
            profile = profiles.override(profile, {"models.threads": group.threads})
        module, _, name = self.maker.partition(":")
        captioner: Captioner = getattr(import_module(module), name).from_profile(profile)
        return captioner


class JobBegun(NamedTuple):
    """Message: a worker captions a job, or a part of it."""

    job: Job


class WorkerExit(NamedTuple):
    """Message: a worker's process has ended, with the exit status."""

    why: str


#: From a worker: ready for a job, started one, one with its result, a fatal error, or the end of its process.
WorkerMessage: TypeAlias = "Literal['more'] | JobBegun | Job | Exception | WorkerExit"


class JobChannel(Protocol):
    """A worker's end of the transport: a process's channel, or queues of Ray."""

    def receive(self) -> Job | None:
        """Wait for a job; None at the end."""
        ...

    def send(self, message: WorkerMessage) -> None:
        """Send a message; callable from any thread."""
        ...


class WorkerExecutor(ABC):
    """Executor with a captioner in each of several processes, workers that run :func:`serve_jobs`.

    Subclasses start them, addressed by number, and transport their messages.

    Args:
        factory: creates the captioners.
        spec: the run.
        groups: devices of each captioner.
    """

    def __init__(self, factory: CaptionerFactory, spec: RunSpec, groups: Sequence[DeviceGroup]) -> None:
        self.factory, self.spec, self.groups = factory, spec, groups

    @abstractmethod
    def start(self, group: DeviceGroup) -> int:
        """Start a worker and return its number."""

    @abstractmethod
    def send(self, worker: int, job: Job) -> None:
        """Send a job to a worker that requested one; no effect if it has died since."""

    @abstractmethod
    def receive(self) -> Iterable[tuple[int, WorkerMessage]]:
        """Wait for messages. :class:`WorkerExit` comes after all others of its worker."""

    @abstractmethod
    def close(self, idle: Collection[int]) -> None:
        """Stop all workers; those that are ``idle`` may exit by themselves."""

    def __call__(self, jobs: Iterable[Job]) -> Iterator[Job]:
        """Caption ``jobs`` with one worker per group; yield each with its result, in any order.

        Each worker requests a job when it has room. A dead worker is replaced; :class:`TaskQueue` decides about its
        clips.

        Raises:
            VidspecError: a worker cannot load its models.
        """
        queue = TaskQueue(jobs, str(self.factory.profile.get("name")))
        running: dict[int, DeviceGroup] = {}
        ready: set[int] = set()
        idle: dict[int, None] = {}  # in order of request
        try:
            for group in self.groups if queue.count is None else self.groups[: max(1, queue.count)]:
                running[self.start(group)] = group
            while not queue.over:
                for worker in list(idle):
                    if (job := queue.take(worker)) is not None:
                        del idle[worker]
                        self.send(worker, job)
                if queue.over:  # known only after a worker requests more than the last job
                    break
                for worker, message in self.receive():
                    if isinstance(message, Exception):
                        raise message
                    if isinstance(message, WorkerExit):
                        if worker not in ready:
                            raise ModelError(f"a captioner's process ended while it loaded its models ({message.why})")
                        idle.pop(worker, None)
                        yield from queue.fail_worker(worker, message.why)
                        group = running.pop(worker)
                        if not queue.over:
                            running[self.start(group)] = group
                        continue
                    ready.add(worker)
                    if isinstance(message, Job):
                        queue.mark_done(worker, message)
                        yield message
                    elif isinstance(message, JobBegun):
                        queue.mark_begun(worker, message.job)
                    else:
                        idle[worker] = None
        finally:
            self.close(idle if queue.over else ())


def serve_jobs(channel: JobChannel, factory: CaptionerFactory, spec: RunSpec, group: DeviceGroup) -> None:
    """Run a worker: load a captioner and caption the received jobs until None comes.

    Args:
        channel: brings jobs and takes messages.
        factory: creates the captioner.
        spec: the run.
        group: devices of the captioner.
    """

    def jobs() -> Iterator[Job]:
        while True:
            channel.send("more")
            job = channel.receive()
            if job is None:
                return
            yield job

    try:
        captioner = factory.make(group)
        begun = lambda job: channel.send(JobBegun(job))  # noqa: E731
        for job in caption_locally(captioner, jobs(), spec, on_begin=begun, vision_worker=False):
            channel.send(_portable(job))
    except Exception as error:
        channel.send(error)


def _portable(job: Job) -> Job:
    """Drop the trace of a result, and convert a foreign exception, for another process."""
    job.result = replace(job.caption, trace=None)
    if job.error is not None and not isinstance(job.error, VidspecError):
        traceback.print_exception(job.error, file=sys.stderr)
        job.error = VidspecError.of(job.error)
    return job


@dataclass
class _Assigned:
    """State of a worker: its jobs by number, and the parts that it is captioning."""

    jobs: dict[int, Job] = field(default_factory=dict)
    begun: dict[tuple[int, int | None], Job] = field(default_factory=dict)


class TaskQueue:
    """Assigns jobs to workers that may die, and identifies the clip that crashes them.

    Clips being captioned when their worker dies are retried once. If several are on a worker that dies again, each is
    tried a last time alone on a worker, after all others are done; one that is alone when its worker dies again has
    failed. In a clip with segments only the segment fails, and the rest continues after it.

    The clips of a shard go to one worker, which reads it from beginning to end; when no shard is left, the other
    workers take clips of shards in progress.

    Args:
        jobs: the clips; each is drawn when a worker has room for it, those of a shard together.
        profile: name of the profile, for records of failed clips.
    """

    def __init__(self, jobs: Iterable[Job], profile: str | None) -> None:
        self.profile = profile
        self.count = len(jobs) if isinstance(jobs, Sized) else None  #: number of jobs; None if unknown
        self._undrawn, self._numbers = iter(jobs), count(1)
        self._drawn = self.count == 0
        self._next: Job | None = None  # first job after a shard, drawn with it
        self._waiting: deque[Job] = deque()
        self._shards: dict[Hashable, deque[Job]] = {}  # rest of each worker's current shard
        self._solo: deque[Job] = deque()
        self._assigned: dict[Hashable, _Assigned] = {}

    @property
    def over(self) -> bool:
        """True if all jobs are done; jobs not drawn yet are only seen by the next :meth:`take`."""
        left = self._waiting or self._solo or any(self._shards.values()) or self._next or not self._drawn
        return not left and not any(one.jobs for one in self._assigned.values())

    def take(self, worker: Hashable) -> Job | None:
        """Return a job for a worker with room; None if there is none for it now."""
        assigned = self._assigned.setdefault(worker, _Assigned())
        if any(job.run_alone for job in assigned.jobs.values()):
            return None
        if self._waiting:
            job = self._waiting.popleft()
        elif (drawn := self._next_of_shard(worker)) is not None:
            job = drawn
        elif self._solo and not assigned.jobs:
            job = self._solo.popleft()
        else:
            return None
        assigned.jobs[job.number] = job
        return job

    def _next_of_shard(self, worker: Hashable) -> Job | None:
        """Return the next clip of the worker's shard, of a new shard, or of another worker's shard, in this order."""
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
        """Mark a job or part as being captioned by a worker."""
        self._assigned[worker].begun[job.number, job.segment] = job

    def mark_done(self, worker: Hashable, part: Job) -> None:
        """Mark a job or part as captioned or failed, with its worker alive."""
        assigned = self._assigned[worker]
        assigned.begun.pop((part.number, part.segment), None)
        if part.is_last:
            del assigned.jobs[part.number]
        else:
            _mark_part_done(assigned.jobs[part.number], part)

    def fail_worker(self, worker: Hashable, why: str) -> list[Job]:
        """Remove a dead worker; requeue its jobs and return those, or their parts, that fail with it."""
        assigned = self._assigned.pop(worker, _Assigned())
        suspects = list(assigned.begun.values()) or list(assigned.jobs.values())
        suspected = {job.number for job in suspects}
        failures = []
        for number, job in reversed(assigned.jobs.items()):
            job.crashes += number in suspected
            if number in suspected and job.crashes >= ATTEMPTS:
                if len(suspects) == 1:
                    (part,) = suspects
                    error = GenerationError(f"{part.path}: its captioner ended each time: {why}", kind="crashed")
                    failures.append(part.fail(error, self.profile))
                    if part.is_last:
                        continue
                    job.crashes = 0
                    _mark_part_done(job, part)
                else:
                    job.run_alone = True
            self._requeue(job)
        return failures

    def _requeue(self, job: Job) -> None:
        (self._solo if job.run_alone else self._waiting).appendleft(job)


def _mark_part_done(job: Job, part: Job) -> None:
    """Note the caption of a part, None if it failed; it is not captioned again."""
    assert part.segment is not None
    job.done = {**job.done, part.segment: part.caption.text_about_video}
