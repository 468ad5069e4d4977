"""The engine of several captioners on this machine, each a process of its own on its own devices."""

from __future__ import annotations

import multiprocessing
import signal
import threading
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

from vidspec.batch.pool import Attempts, Factory, Group, Worker, crashed
from vidspec.batch.work import How, Outcome, Task
from vidspec.errors import ModelError

__all__ = ["replica_outcomes"]

#: Clips that a process has at once: one to read ahead while it captions the other.
IN_FLIGHT = 2


@dataclass
class _Replica:
    group: Group
    process: BaseProcess
    pipe: Connection
    ready: bool = False
    captioning: int | None = None
    tasks: dict[int, Task] = field(default_factory=dict)


def replica_outcomes(factory: Factory, tasks: Iterable[Task], how: How, groups: Sequence[Group]) -> Iterator[Outcome]:
    """Caption ``tasks`` by one process for each of ``groups``; outcomes come as clips are finished, in any order.

    A process that dies is replaced, and the clips it had are tried once more; a clip whose process dies again fails.

    Raises:
        VidspecError: a process cannot load its models.
    """
    todo = deque(tasks)
    attempts = Attempts()
    groups = list(groups)[: max(1, len(todo))]
    replicas = [_started(factory, how, group) for group in groups]
    try:
        while todo or any(replica.tasks for replica in replicas):
            for replica in replicas:
                while todo and replica.ready and len(replica.tasks) < IN_FLIGHT:
                    task = todo.popleft()
                    replica.tasks[task.number] = task
                    replica.pipe.send(task)
            for pipe in wait([replica.pipe for replica in replicas]):
                replica = next(one for one in replicas if one.pipe is pipe)
                try:
                    number, answer = replica.pipe.recv()
                except (EOFError, OSError):
                    replicas.remove(replica)
                    if not replica.ready:
                        replica.process.join()
                        raise ModelError(
                            f"a captioner's process ended while it loaded its models ({_ending(replica)})"
                        ) from None
                    replica.process.join()
                    for task in reversed(list(replica.tasks.values())):
                        guilty = replica.captioning in (None, task.number)  # the other only waited for its turn
                        if not guilty or attempts.again(task):
                            todo.appendleft(task)
                        else:
                            yield crashed(task, factory.profile.get("name"), _ending(replica))
                    replicas.append(_started(factory, how, replica.group))
                    continue
                if number is None:
                    if isinstance(answer, Exception):
                        raise answer
                    replica.ready = True
                elif isinstance(answer, Exception):
                    raise answer
                elif answer is None:
                    replica.captioning = number
                else:
                    del replica.tasks[number]
                    if replica.captioning == number:
                        replica.captioning = None
                    yield from answer
    finally:
        for replica in replicas:
            replica.pipe.close()  # an idle process ends by itself
            if replica.tasks or not replica.ready:
                replica.process.terminate()
        for replica in replicas:
            replica.process.join(10)
            if replica.process.is_alive():
                replica.process.kill()


def _started(factory: Factory, how: How, group: Group) -> _Replica:
    context = multiprocessing.get_context("spawn")  # a fork would inherit CUDA and the threads of torch
    mine, theirs = context.Pipe()
    # No daemon: a captioner may have processes of its own. It ends when its pipe does.
    process = context.Process(target=_serve, args=(theirs, factory, how, group))
    process.start()
    theirs.close()
    return _Replica(group, process, mine)


def _ending(replica: _Replica) -> str:
    code = replica.process.exitcode
    return signal.Signals(-code).name if code is not None and code < 0 else f"exit code {code}"


def _serve(pipe: Connection, factory: Factory, how: How, group: Group) -> None:
    """The process of one captioner: tasks in, outcomes out, until its pipe is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the run decides when it ends
    sending = threading.Lock()

    def send(number: int | None, answer: Any) -> None:
        with sending:
            pipe.send((number, answer))

    try:
        worker = Worker(factory, how, group)
    except Exception as error:
        send(None, error)
        return
    send(None, "ready")

    def work(task: Task) -> None:
        try:
            send(task.number, worker.work(task, lambda: send(task.number, None)))
        except Exception as error:
            send(task.number, error)

    with ThreadPoolExecutor(IN_FLIGHT) as threads:
        while True:
            try:
                task = pipe.recv()
            except (EOFError, OSError):
                break
            threads.submit(work, task)
