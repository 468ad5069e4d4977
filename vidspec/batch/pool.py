"""What captioners in other processes share: how they are made, and how one of them works through clips."""

from __future__ import annotations

import os
import sys
import threading
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from vidspec.batch.ahead import helping, works_of
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
        visible: the GPUs it sees, as ``CUDA_VISIBLE_DEVICES`` names them; None for all.
        threads: for ``models.threads``; None to leave the profile's.
        gpus: how many a Ray actor asks for.
    """

    visible: str | None = None
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

        if group.visible is not None:  # before CUDA looks; within the group devices count from 0
            os.environ["CUDA_VISIBLE_DEVICES"] = group.visible
        profile = profiles.parse(self.profile)
        if group.threads is not None:
            profile = profiles.override(profile, {"models.threads": group.threads})
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
                for work in works_of(task, self.how, reader, *helping(self.captioner)):
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
    path = task.entry.path
    error = GenerationError(f"{path}: its captioner ended each time: {why}", kind="crashed")
    return Outcome(failed(path, error, profile=profile), error, task.whole)


@dataclass
class Attempts:
    """Counts how often each task was begun."""

    _begun: dict[int, int] = field(default_factory=dict)

    def again(self, task: Task) -> bool:
        """Count an end that ``task`` may be to blame for; whether it may be tried again."""
        self._begun[task.number] = self._begun.get(task.number, 0) + 1
        return self._begun[task.number] < ATTEMPTS


def device_groups(replicas: str | None, profile: Any, *, ray: bool = False, address: str | None = None) -> list[Group]:
    """One group of devices for each captioner.

    A group has as many GPUs as the profile names (a draft on ``cuda:1`` makes it two); a target that ``device_map``
    splits has all there are, shared evenly.

    Args:
        replicas: a number, ``auto`` for one captioner on each group of GPUs (one in all without GPUs), or None for
            ``auto``.
        profile: a profile.
        ray: whether captioners are Ray actors: Ray then chooses the GPUs of each and hides the others.
        address: of the Ray cluster, whose GPUs count for ``auto``.

    Raises:
        UsageError: ``replicas`` is neither, or the profile places the target elsewhere than on a group's first GPU.
        DeviceError: more captioners are asked for than there are groups, on a machine that has GPUs.
    """
    wanted = None if replicas in (None, "auto") else _number(replicas)
    device = profile.models.device
    gpus = 0 if device in ("cpu", "mps") else (_ray_gpus(address) if ray else _gpus())
    size = _group_size(profile, gpus, wanted or 1)
    count = wanted or max(1, gpus // size)
    if count > 1 and device.startswith("cuda:") and device != "cuda:0":
        raise UsageError(f"--replicas {count}: models.device names one device, {device}", hint="--device cuda")
    if gpus:
        if count * size > gpus and (count > 1 or ray):
            each = f" of {size} each" if size > 1 else ""
            most = max(1, gpus // size)
            raise DeviceError(f"--replicas {count}{each}: there are {gpus} GPUs", hint=f"--replicas {most}")
        if ray:
            return [Group(gpus=size)] * count
        if count == 1:
            return [Group()]
        names = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
        names = names if len(names) >= gpus else [str(number) for number in range(gpus)]
        return [Group(visible=",".join(names[first : first + size])) for first in range(0, count * size, size)]
    if ray:
        return [Group(threads=profile.models.threads or 1)] * count
    threads = profile.models.threads or max(1, _cores() // count)
    return [Group(threads=threads)] * count


def _group_size(profile: Any, gpus: int, count: int) -> int:
    """GPUs of one captioner."""
    if profile.models.device_map is not None:
        return max(1, gpus // count)
    named = (profile.models.device, profile.models.draft_device, profile.workers.target, profile.workers.draft)
    return 1 + max((int(name.partition(":")[2] or 0) for name in named if name and name.startswith("cuda")), default=0)


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
