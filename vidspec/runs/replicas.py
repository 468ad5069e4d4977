"""Executor with several captioners on this machine, each in its own process on its own devices."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from vidspec.process import Child, ChildEnded, spawn, wait
from vidspec.runs.job import Job
from vidspec.runs.pool import CaptionerFactory, DeviceGroup, WorkerExit, WorkerMessage, run_on_workers, serve_jobs

if TYPE_CHECKING:
    from vidspec.config.run_spec import RunSpec

__all__ = ["replica_outcomes"]

#: Seconds for a replica without jobs to exit by itself.
EXIT_SECONDS = 10.0


def replica_outcomes(
    factory: CaptionerFactory, jobs: Iterable[Job], spec: RunSpec, groups: Sequence[DeviceGroup]
) -> Iterator[Job]:
    """Caption ``jobs`` with one process per group; see :func:`vidspec.runs.pool.run_on_workers`."""
    return run_on_workers(_Replicas(factory, spec), factory, jobs, groups)


class _Replicas:
    """Worker pool of child processes."""

    def __init__(self, factory: CaptionerFactory, spec: RunSpec) -> None:
        self.factory, self.spec = factory, spec
        self._running: dict[int, Child] = {}
        self._started = 0

    def start(self, group: DeviceGroup) -> int:
        visible = {} if group.visible is None else {"CUDA_VISIBLE_DEVICES": group.visible}  # counted from 0 there
        child = spawn(serve_jobs, self.factory, self.spec, group, name="vidspec replica", env=visible)
        self._started += 1
        self._running[self._started] = child
        return self._started

    def send(self, worker: int, job: Job | None) -> None:
        with suppress(ChildEnded):  # receive() reports that next
            self._running[worker].send(job)

    def receive(self) -> Iterator[tuple[int, WorkerMessage]]:
        ready = wait(list(self._running.values()))
        for worker, child in list(self._running.items()):
            if child not in ready:
                continue
            try:
                yield worker, child.receive()
            except ChildEnded as ended:
                del self._running[worker]
                yield worker, WorkerExit(ended.reason)

    def close(self, idle: Collection[int]) -> None:
        for worker, child in self._running.items():
            if worker in idle:
                self.send(worker, None)
            else:
                child.kill()
        for child in self._running.values():
            child.end(EXIT_SECONDS)
