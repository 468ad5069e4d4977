"""The executor of captioners on a Ray cluster: an actor for each group of devices, and one that deals the clips."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Iterator, Sequence
from importlib import import_module
from typing import Any

from vidspec.dataset.pool import Dealer, Factory, Group, portable_outcomes
from vidspec.dataset.work import How, Outcome, Task, Work
from vidspec.errors import DeviceError, UsageError

__all__ = ["connected", "ray_outcomes"]


class _Queue:
    """The clips of a run in an actor: captioners ask it for the next one when they have room, and bring what they made.

    Its methods wait, all at once.
    """

    def __init__(self, tasks: Sequence[Task], profile: str | None) -> None:
        self.dealer = Dealer(tasks, profile)
        self.outcomes: list[Outcome] = []
        self.gone: set[int] = set()
        self.changed = asyncio.Condition()

    async def deal(self, who: int) -> Task | None:
        """The next task of a captioner; None when all is done, or nobody is there to take it any more."""
        async with self.changed:
            while not (self.dealer.over or who in self.gone):
                if (task := self.dealer.deal(who)) is not None:
                    return task
                await self.changed.wait()
            return None

    async def told(self, who: int, what: Work | Outcome) -> None:
        """A captioner begins with a piece, or has finished one."""
        async with self.changed:
            if isinstance(what, Outcome):
                self.dealer.done(who, what)
                self.outcomes.append(what)
            else:
                self.dealer.begun(who, what)
            self.changed.notify_all()

    async def died(self, who: int, why: str) -> None:
        """A captioner has ended."""
        async with self.changed:
            self.gone.add(who)
            self.outcomes += self.dealer.died(who, why)
            self.changed.notify_all()

    async def finished(self) -> tuple[list[Outcome], bool]:
        """What has come since it was asked last, at least one unless all is done, and whether all is."""
        async with self.changed:
            await self.changed.wait_for(lambda: self.outcomes or self.dealer.over)
            found, self.outcomes = self.outcomes, []
            return found, self.dealer.over


class _Actor:
    """A captioner in an actor."""

    def __init__(self, factory: Factory, how: How, group: Group) -> None:
        self.how = how
        self.refused: Exception | None = None
        try:
            self.captioner = factory.make(group)
        except Exception as error:  # Ray would bury it in the story of an actor that died
            self.refused = error

    def ready(self) -> Exception | None:
        """Why there is no captioner, or None."""
        return self.refused

    def work(self, queue: Any, who: int) -> Exception | None:
        """Caption what the queue deals until there is nothing more; the bug that it met."""
        if self.refused is not None:
            return self.refused
        ray: Any = import_module("ray")

        def tasks() -> Iterator[Task]:
            while (task := ray.get(queue.deal.remote(who))) is not None:
                yield task

        def tell(what: Work | Outcome) -> None:
            ray.get(queue.told.remote(who, what))

        try:
            for outcome in portable_outcomes(self.captioner, tasks(), self.how, tell):
                tell(outcome)
        except Exception as error:
            return error
        return None


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

    Each asks a queue, an actor too, for the next task when it has room for it. An actor that dies is replaced, and what
    becomes of the clips it had is as :class:`~vidspec.dataset.pool.Dealer` has it. Clips are read by the actors, by the
    paths they have here.

    Raises:
        VidspecError: an actor cannot load its models.
    """
    ray = connected(address)
    died = import_module("ray.exceptions").RayActorError
    todo = list(tasks)
    queue = ray.remote(num_cpus=0)(_Queue).remote(todo, factory.profile.get("name"))
    actors = [_actor(ray, factory, how, group) for group in groups[: max(1, len(todo))]]
    try:
        for refused in ray.get([actor.ready.remote() for actor in actors]):
            if refused is not None:
                raise refused
        running = {actor.work.remote(queue, who): who for who, actor in enumerate(actors)}
        asked, over = queue.finished.remote(), not todo
        while not over:
            (ended,), _ = ray.wait([asked, *running])
            if ended == asked:
                found, over = ray.get(asked)
                yield from found
                asked = queue.finished.remote()
                continue
            who = running.pop(ended)
            try:
                if (bug := ray.get(ended)) is not None:
                    raise bug
            except died as error:
                ray.get(queue.died.remote(who, _first_line(error)))
                actors.append(_actor(ray, factory, how, groups[who % len(groups)]))
                running[actors[-1].work.remote(queue, len(actors) - 1)] = len(actors) - 1
    finally:
        for actor in [*actors, queue]:
            ray.kill(actor)


def _actor(ray: Any, factory: Factory, how: How, group: Group) -> Any:
    return ray.remote(num_cpus=group.threads or 1, num_gpus=group.gpus)(_Actor).remote(factory, how, group)


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__
