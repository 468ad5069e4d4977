"""Executor with several captioners on this machine, each in its own process on its own devices."""

from __future__ import annotations

import multiprocessing
import os
import queue
import signal
import threading
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess

from vidspec.dataset.job import Job, JobConfig, JobResult
from vidspec.dataset.pool import CaptionerFactory, DeviceGroup, WorkerExit, WorkerMessage, run_on_workers, serve_jobs

__all__ = ["replica_outcomes"]


def replica_outcomes(
    factory: CaptionerFactory, jobs: Iterable[Job], config: JobConfig, groups: Sequence[DeviceGroup]
) -> Iterator[JobResult]:
    """Caption ``jobs`` with one process per group; see :func:`vidspec.dataset.pool.run_on_workers`."""
    return run_on_workers(_Replicas(factory, config), factory, jobs, groups)


class _Replicas:
    """Worker pool of processes connected by pipes."""

    def __init__(self, factory: CaptionerFactory, config: JobConfig) -> None:
        self.factory, self.config = factory, config
        self._running: dict[int, tuple[BaseProcess, Connection]] = {}
        self._started = 0

    def start(self, group: DeviceGroup) -> int:
        context = multiprocessing.get_context("spawn")  # a fork would inherit CUDA and torch's threads
        mine, theirs = context.Pipe()
        # Not a daemon: a captioner may have child processes. It exits when its pipe closes.
        process = context.Process(target=_run_worker, args=(theirs, self.factory, self.config, group))
        process.start()
        theirs.close()
        self._started += 1
        self._running[self._started] = process, mine
        return self._started

    def send(self, worker: int, job: Job | None) -> None:
        with suppress(OSError):  # it has died; receive() reports that next
            self._running[worker][1].send(job)

    def receive(self) -> Iterator[tuple[int, WorkerMessage]]:
        ready = wait([pipe for _, pipe in self._running.values()])
        for worker, (process, pipe) in list(self._running.items()):
            if pipe not in ready:
                continue
            try:
                yield worker, pipe.recv()
            except (EOFError, OSError):
                process.join()
                del self._running[worker]
                code = process.exitcode
                yield worker, WorkerExit(signal.Signals(-code).name if code and code < 0 else f"exit code {code}")

    def close(self, idle: Collection[int]) -> None:
        for worker, (process, _) in self._running.items():
            if worker in idle:
                self.send(worker, None)
            else:
                process.terminate()
        for process, pipe in self._running.values():
            process.join(10)
            pipe.close()
            if process.is_alive():
                process.kill()


def _run_worker(pipe: Connection, factory: CaptionerFactory, config: JobConfig, group: DeviceGroup) -> None:
    """Main function of a captioner process; exits at once when its pipe is closed."""
    for name in ("SIGINT", "SIGHUP"):  # from the terminal: the run stops its workers
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), signal.SIG_IGN)
    sending = threading.Lock()
    received: queue.SimpleQueue[Job | None] = queue.SimpleQueue()

    def send(message: WorkerMessage) -> None:
        with sending:
            pipe.send(message)

    def receive() -> None:
        try:
            while (job := pipe.recv()) is not None:
                received.put(job)
        except (EOFError, OSError):
            os._exit(1)
        received.put(None)

    threading.Thread(target=receive, daemon=True).start()
    serve_jobs(factory, config, group, received.get, send)
