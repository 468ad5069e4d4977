"""The executor of several captioners on this machine, each a process of its own on its own devices."""

from __future__ import annotations

import multiprocessing
import os
import queue
import signal
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

from vidspec.dataset.pool import Dealer, Factory, Group, portable_outcomes
from vidspec.dataset.work import How, Outcome, Task, Work
from vidspec.errors import ModelError

__all__ = ["replica_outcomes"]

READY, MORE = "ready", "more"


@dataclass(eq=False)
class _Replica:
    """``asking`` is whether it has room for a task and waits for one."""

    group: Group
    process: BaseProcess
    pipe: Connection
    ready: bool = False
    asking: bool = False


def replica_outcomes(factory: Factory, tasks: Iterable[Task], how: How, groups: Sequence[Group]) -> Iterator[Outcome]:
    """Caption ``tasks`` by one process for each of ``groups``; outcomes come as clips are finished, in any order.

    Each asks for the next task when it has room for it. A process that dies is replaced, and what becomes of the clips
    it had is as :class:`~vidspec.dataset.pool.Dealer` has it.

    Raises:
        VidspecError: a process cannot load its models.
    """
    dealer = Dealer(tasks, factory.profile.get("name"))
    replicas = [_started(factory, how, group) for group in list(groups)[: max(1, len(dealer))]]
    try:
        while not dealer.over:
            for replica in replicas:
                if replica.asking and (task := dealer.deal(replica)) is not None:
                    replica.asking = False
                    with suppress(OSError):  # it has died, which is heard of next
                        replica.pipe.send(task)
            for pipe in wait([replica.pipe for replica in replicas]):
                replica = next(one for one in replicas if one.pipe is pipe)
                try:
                    said = replica.pipe.recv()
                except (EOFError, OSError):
                    replicas.remove(replica)
                    replica.process.join()
                    if not replica.ready:
                        raise ModelError(
                            f"a captioner's process ended while it loaded its models ({_ending(replica)})"
                        ) from None
                    yield from dealer.died(replica, _ending(replica))
                    replicas.append(_started(factory, how, replica.group))
                    continue
                if isinstance(said, Exception):
                    raise said
                if isinstance(said, Outcome):
                    dealer.done(replica, said)
                    yield said
                elif isinstance(said, Work):
                    dealer.begun(replica, said)
                else:
                    replica.ready, replica.asking = True, said == MORE
    finally:
        for replica in replicas:
            if dealer.over and replica.asking:
                with suppress(OSError):
                    replica.pipe.send(None)
            else:
                replica.process.terminate()
        for replica in replicas:
            replica.process.join(10)
            replica.pipe.close()
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
    """The process of one captioner: tasks in, outcomes out, until it is given None or nobody is there any more."""
    for name in ("SIGINT", "SIGHUP"):  # a terminal's: the run decides when it ends
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), signal.SIG_IGN)
    sending = threading.Lock()
    given: queue.SimpleQueue[Task | None] = queue.SimpleQueue()

    def send(what: Any) -> None:
        with sending:
            pipe.send(what)

    def receive() -> None:
        try:
            while (task := pipe.recv()) is not None:
                given.put(task)
        except (EOFError, OSError):
            os._exit(1)
        given.put(None)

    def tasks() -> Iterator[Task]:
        while True:
            send(MORE)
            task = given.get()
            if task is None:
                return
            yield task

    try:
        captioner = factory.make(group)
        send(READY)
        threading.Thread(target=receive, daemon=True).start()
        for outcome in portable_outcomes(captioner, tasks(), how, send):
            send(outcome)
    except Exception as error:
        send(error)
