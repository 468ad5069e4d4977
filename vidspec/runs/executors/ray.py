"""Executor on a Ray cluster: one captioner actor per group of devices."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Sequence
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, NamedTuple

from vidspec.errors import DeviceError, UsageError, option, reason_of
from vidspec.runs.executors.base import (
    CaptionerFactory,
    DeviceGroup,
    WorkerExecutor,
    WorkerExit,
    WorkerMessage,
    serve_jobs,
)
from vidspec.runs.job import Job

if TYPE_CHECKING:
    from ray import ObjectRef
    from ray.actor import ActorHandle
    from ray.util.queue import Queue

    from vidspec.config.run_spec import RunSpec

__all__ = ["RayExecutor", "connect_ray"]


def connect_ray(address: str | None = None) -> ModuleType:
    """Connect Ray to ``address``, or to a new local cluster that ends with this process, and return the module.

    Raises:
        UsageError: Ray is not installed.
        DeviceError: there is no cluster at ``address``, or a new one does not start in time (Ray waits 30 seconds).
    """
    try:
        ray = import_module("ray")
    except ImportError as error:
        raise UsageError(f"{option('engine', 'ray')} needs Ray ({error})", hint="pip install ray") from None
    if not ray.is_initialized():
        try:
            ray.init(address=address, logging_level=logging.WARNING)
        except Exception as error:  # of a slow start Ray raises a plain one
            hint = (
                f"{option('replicas')} alone uses this machine without Ray"
                if address is None
                else "set RAY_AUTH_MODE=token if the cluster has tokens"
            )
            raise DeviceError(f"no Ray cluster at {address or 'this machine'}: {reason_of(error)}", hint=hint) from None
    return ray


class RayExecutor(WorkerExecutor):
    """One actor per group of devices, each with a job queue, and one message queue for all.

    The actors read the clips under the same paths as here.
    """

    def __init__(self, factory: CaptionerFactory, spec: RunSpec, groups: Sequence[DeviceGroup]) -> None:
        super().__init__(factory, spec, groups)
        self.ray = connect_ray(spec.address)
        self._messages = self._make_queue()
        self._pending_message = self._request_message()
        self._actors: list[ActorHandle[_Actor]] = []
        self._jobs: list[Queue] = []
        self._running: dict[ObjectRef[None], int] = {}

    def _make_queue(self) -> Queue:
        from ray.util.queue import Queue

        return Queue(actor_options={"num_cpus": 0})

    def _request_message(self) -> ObjectRef[tuple[int, WorkerMessage]]:
        """Return a reference to the next message, to wait for together with ends of actors."""
        queue = self._messages.actor
        assert not isinstance(queue, type)
        next_message: ObjectRef[tuple[int, WorkerMessage]] = queue.get.remote(None)
        return next_message

    def start(self, group: DeviceGroup) -> int:
        worker, jobs = len(self._actors), self._make_queue()
        actor = self.ray.remote(num_cpus=group.threads or 1, num_gpus=group.gpus)(_Actor).remote()
        self._actors.append(actor)
        self._jobs.append(jobs)
        channel = _QueueChannel(worker, jobs, self._messages)
        self._running[actor.work.remote(channel, self.factory, self.spec, group)] = worker
        return worker

    def send(self, worker: int, job: Job) -> None:
        self._jobs[worker].put(job)

    def receive(self) -> Iterator[tuple[int, WorkerMessage]]:
        (ended,), _ = self.ray.wait([self._pending_message, *self._running])
        if ended == self._pending_message:
            yield self.ray.get(ended)
            self._pending_message = self._request_message()
            return
        worker = self._running.pop(ended)
        try:
            self.ray.get(ended)
        except self.ray.exceptions.RayActorError as error:
            self._messages.put((worker, WorkerExit(reason_of(error))))  # after its earlier messages

    def close(self, idle: Collection[int]) -> None:
        for actor in [*self._actors, *(queue.actor for queue in [*self._jobs, self._messages])]:
            self.ray.kill(actor)


class _Actor:
    """Ray actor with one captioner, which does what a replica does."""

    def work(self, channel: _QueueChannel, factory: CaptionerFactory, spec: RunSpec, group: DeviceGroup) -> None:
        """Caption the jobs of a queue until the run ends."""
        serve_jobs(channel, factory, spec, group)


class _QueueChannel(NamedTuple):
    """An actor's end of the two queues."""

    worker: int
    jobs: Queue
    messages: Queue

    def receive(self) -> Job | None:
        job: Job | None = self.jobs.get()
        return job

    def send(self, message: WorkerMessage) -> None:
        self.messages.put((self.worker, message))
