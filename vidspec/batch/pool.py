"""What captioners in other processes share: how they are made, and how one of them works through clips."""

from __future__ import annotations

import os
import sys
import threading
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from vidspec.batch.ahead import works_of
from vidspec.batch.reader import Reader
from vidspec.batch.run import Captions, run
from vidspec.batch.work import How, Outcome, Task, Work
from vidspec.errors import DeviceError, GenerationError, UsageError, VidspecError
from vidspec.record import failed

__all__ = ["ATTEMPTS", "Attempts", "Factory", "Group", "Worker", "crashed", "device_groups"]

#: How often a clip is given to a process before it is blamed for the process's end.
ATTEMPTS = 2


@dataclass(frozen=True)
class Group:
    """What one captioner runs on.

    Attributes:
        device: for ``models.device``; None to leave the profile's.
        threads: for ``models.threads``; None to leave the profile's.
        gpus: how many a Ray actor asks for.
    """

    device: str | None = None
    threads: int | None = None
    gpus: float = 0


@dataclass(frozen=True)
class Factory:
    """Makes a captioner in another process; plain values that travel there.

    Attributes:
        profile: as nested plain values.
        maker: ``module:attribute`` of something with ``from_profile``.
    """

    profile: Mapping[str, Any]
    maker: str = "vidspec.captioner:Captioner"

    def make(self, group: Group) -> Captions:
        """The captioner for ``group``, its models loaded.

        Raises:
            ModelError, DeviceError: as ``Captioner.from_profile``.
        """
        from importlib import import_module

        from vidspec import profiles

        profile = profiles.parse(self.profile)
        changes = {"models.device": group.device, "models.threads": group.threads}
        profile = profiles.override(profile, {key: value for key, value in changes.items() if value is not None})
        module, _, name = self.maker.partition(":")
        captioner: Captions = getattr(import_module(module), name).from_profile(profile)
        return captioner


class Worker:
    """Works through clips in its own process; two threads may, one reading a clip while the other captions one."""

    def __init__(self, factory: Factory, how: How, group: Group) -> None:
        self.how = how
        self.captioner = factory.make(group)
        self._captioning = threading.Lock()
        self._readers: list[Reader] = [Reader(how.timeout), Reader(how.timeout)]
        self._free = threading.Semaphore(len(self._readers))
        self._taking = threading.Lock()

    def work(self, task: Task, begins: Callable[[], None] = lambda: None) -> list[Outcome]:
        """The outcomes of one clip, fit to travel; calls ``begins`` when it is read and its captioning starts."""
        with self._free:
            with self._taking:
                reader = self._readers.pop()
            try:
                outcomes: list[Outcome] = []
                for work in works_of(task, self.how, reader, getattr(self.captioner, "prepare", None)):
                    with self._captioning:
                        begins()
                        before = outcomes[-1].caption.caption if outcomes else None
                        outcomes += map(portable, run(self.captioner, [_following(work, before)], self.how))
                return outcomes
            finally:
                with self._taking:
                    self._readers.append(reader)


def _following(work: Work, previous: str | None) -> Work:
    return replace(work, previous=previous) if previous is not None else work


def portable(outcome: Outcome) -> Outcome:
    """``outcome`` without what cannot or need not leave a process: the trace, foreign exceptions, frames."""
    error = outcome.error
    if error is not None and not isinstance(error, VidspecError):
        traceback.print_exception(error, file=sys.stderr)
        error = VidspecError(f"{type(error).__name__}: {error}", kind="internal")
    work = replace(outcome.work, clip=None, error=None)
    return Outcome(replace(outcome.caption, trace=None), error, work)


def crashed(task: Task, profile: str | None, why: str) -> Outcome:
    """The outcome of a clip whose process ended every time."""
    entry = task.entry
    error = GenerationError(f"{entry.path}: its captioner ended each time: {why}", kind="crashed")
    work = Work(entry.path, entry.start, entry.end, entry.prompt, entry=entry, number=task.number)
    return Outcome(failed(entry.path, error, profile=profile), error, work)


@dataclass
class Attempts:
    """Counts how often each task was begun."""

    _begun: dict[int, int] = field(default_factory=dict)

    def again(self, task: Task) -> bool:
        """Count an end that ``task`` may be to blame for; whether it may be tried again."""
        self._begun[task.number] = self._begun.get(task.number, 0) + 1
        return self._begun[task.number] < ATTEMPTS


def device_groups(replicas: str | None, profile: Any, *, ray: bool = False, address: str | None = None) -> list[Group]:
    """One group for each captioner.

    Args:
        replicas: a number, ``auto`` for one captioner on each GPU (one in all without GPUs), or None for ``auto``.
        profile: a profile; its device must leave the choice open if there are several captioners.
        ray: whether captioners are Ray actors: Ray then gives each its GPU and hides the others.
        address: of the Ray cluster, whose GPUs count for ``auto``.

    Raises:
        UsageError: ``replicas`` is neither, or the profile names one device for several captioners.
        DeviceError: more captioners are asked for than there are GPUs, on a machine that has some.
    """
    wanted = None if replicas in (None, "auto") else _number(replicas)
    device = profile.models.device
    gpus = 0 if device in ("cpu", "mps") else (_ray_gpus(address) if ray else _gpus())
    count = wanted or max(1, gpus)
    if count > 1 and device.startswith("cuda:"):
        raise UsageError(f"--replicas {count}: models.device names one device, {device}", hint="--device cuda")
    if gpus:
        if count > gpus:
            raise DeviceError(f"--replicas {count}: there are {gpus} GPUs", hint=f"--replicas {gpus}")
        if ray:
            return [Group("cuda", gpus=1)] * count
        return [Group(f"cuda:{number}") for number in range(count)] if count > 1 else [Group()]
    if ray:
        return [Group(threads=profile.models.threads or 1)] * count
    threads = profile.models.threads or max(1, _cores() // count)
    return [Group(threads=threads)] * count


def _number(text: str | None) -> int:
    if text is None or not text.isdigit() or int(text) < 1:
        raise UsageError(f"--replicas {text}: must be a number or auto")
    return int(text)


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _gpus() -> int:
    import torch

    return torch.cuda.device_count() if torch.cuda.is_available() else 0


def _ray_gpus(address: str | None) -> int:
    from vidspec.batch.ray_engine import connected

    return int(connected(address).cluster_resources().get("GPU", 0))
