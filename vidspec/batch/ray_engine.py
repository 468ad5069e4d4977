"""The engine of captioners on a Ray cluster: one actor for each group of devices, given clips by Ray's ActorPool."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from importlib import import_module
from typing import Any

from vidspec.batch.pool import Factory, Group, Worker, crashed
from vidspec.batch.work import How, Outcome, Task
from vidspec.errors import DeviceError, UsageError

__all__ = ["connected", "ray_outcomes"]

#: Clips that an actor has at once: one to read ahead while it captions the other.
IN_FLIGHT = 2


class _Actor:
    """A captioner in an actor; two of its calls run at once."""

    def __init__(self, factory: Factory, how: How, group: Group) -> None:
        self.refused: Exception | None = None
        try:
            self.worker = Worker(factory, how, group)
        except Exception as error:  # Ray would bury it in the story of an actor that died
            self.refused = error

    def ready(self) -> Exception | None:
        """Why there is no captioner, or None."""
        return self.refused

    def work(self, task: Task) -> tuple[int, list[Outcome] | Exception]:
        """The number of the task and its outcomes, or the bug that it met."""
        try:
            return task.number, self.worker.work(task)
        except Exception as error:
            return task.number, error


def connected(address: str | None = None) -> Any:
    """Ray itself, connected: to ``address``, or to a new cluster on this machine that ends with this process.

    Raises:
        UsageError: Ray is not installed.
        DeviceError: there is no cluster at ``address``.
    """
    try:
        ray: Any = import_module("ray")
    except ImportError as error:
        raise UsageError(f"--engine ray needs Ray ({error})", hint="pip install 'vidspec[ray]'") from None
    if not ray.is_initialized():
        try:
            ray.init(address=address, logging_level=logging.WARNING)
        except (ConnectionError, ValueError, RuntimeError) as error:
            raise DeviceError(f"no Ray cluster at {address or 'this machine'}: {_first_line(error)}") from None
    return ray


def ray_outcomes(
    factory: Factory, tasks: Iterable[Task], how: How, groups: Sequence[Group], *, address: str | None = None
) -> Iterator[Outcome]:
    """Caption ``tasks`` by one actor for each of ``groups``; outcomes come as clips are finished, in any order.

    Ray starts an actor that died again and repeats once what it was doing. A clip whose actor died both times is
    tried again at the end, alone, so that it cannot take others with it; then it fails. Clips are read on the machines
    of the actors, by the paths they have here.

    Raises:
        VidspecError: an actor cannot load its models.
    """
    ray = connected(address)
    died = import_module("ray.exceptions").RayActorError
    todo = list(tasks)
    actors = [_actor(ray, factory, how, group) for group in groups[: max(1, len(todo))]]
    try:
        for refused in ray.get([actor.ready.remote() for actor in actors]):
            if refused is not None:
                raise refused
        suspects: list[Task] = []
        for task, answer in _answers(ray, actors, todo):
            if isinstance(answer, died):
                suspects.append(task)
            else:
                yield from answer
        for suspect in suspects:
            for task, answer in _answers(ray, actors[:1], [suspect]):
                if isinstance(answer, died):
                    yield crashed(task, factory.profile.get("name"), _first_line(answer))
                else:
                    yield from answer
    finally:
        for actor in actors:
            ray.kill(actor)


def _actor(ray: Any, factory: Factory, how: How, group: Group) -> Any:
    kind = ray.remote(
        num_cpus=group.threads or 1,
        num_gpus=group.gpus,
        max_restarts=-1,
        max_task_retries=1,
        max_concurrency=IN_FLIGHT,
    )(_Actor)
    return kind.remote(factory, how, group)


def _answers(ray: Any, actors: Sequence[Any], tasks: Sequence[Task]) -> Iterator[tuple[Task, Any]]:
    """Each task with its outcomes, or with the RayActorError that it ended in; raises what a bug raised."""
    died = import_module("ray.exceptions").RayActorError
    pool = import_module("ray.util").ActorPool(list(actors) * IN_FLIGHT)
    by_number = {task.number: task for task in tasks}
    futures: dict[Any, Task] = {}

    def begin(actor: Any, task: Task) -> Any:
        future = actor.work.remote(task)
        futures[future] = task
        return future

    for task in tasks:
        pool.submit(begin, task)
    while pool.has_next():
        try:
            number, answer = pool.get_next_unordered()
        except died as error:
            # The pool does not say whose error it is; it comes once for each that ended so, thus any of them will do.
            future = next(one for one in futures if _ended(ray, one, died))
            yield futures.pop(future), error
            continue
        if isinstance(answer, Exception):
            raise answer
        del futures[next(future for future, task in futures.items() if task.number == number)]
        yield by_number[number], answer


def _ended(ray: Any, future: Any, died: type[Exception]) -> bool:
    if not ray.wait([future], timeout=0)[0]:
        return False
    try:
        ray.get(future)
    except died:
        return True
    return False


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__
