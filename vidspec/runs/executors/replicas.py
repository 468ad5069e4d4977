"""Executor with several captioners on this machine, each in its own process on its own devices."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from vidspec.process import Child, ChildEnded, spawn, wait
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
    from vidspec.config.run_spec import RunSpec

__all__ = ["ReplicaExecutor"]

#: Seconds for a replica without jobs to exit by itself.
EXIT_SECONDS = 10.0


class ReplicaExecutor(WorkerExecutor):
    """One child process per group of devices."""

    def __init__(self, factory: CaptionerFactory, spec: RunSpec, groups: Sequence[DeviceGroup]) -> None:
        super().__init__(factory, spec, groups)
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
