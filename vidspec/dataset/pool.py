"""What captioners in other processes share: how they are made, which clips they get, and who is to blame for an end."""

from __future__ import annotations

import os
import sys
import traceback
from collections import Counter, deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from vidspec.dataset.feed import Feed, helping, reader_count
from vidspec.dataset.reader import Reader
from vidspec.dataset.run import Captions, run
from vidspec.dataset.work import How, Outcome, Task, Work
from vidspec.errors import GenerationError, VidspecError
from vidspec.events.record import failed

if TYPE_CHECKING:
    pass

__all__ = ["ATTEMPTS", "Dealer", "Factory", "Group", "portable_outcomes"]

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

        from vidspec.config import profiles

        if group.visible is not None:  # before CUDA looks; within the group devices count from 0
            os.environ["CUDA_VISIBLE_DEVICES"] = group.visible
        profile = profiles.parse(self.profile)
        if group.threads is not None:
            profile = profiles.override(profile, {"models.threads": group.threads})
        module, _, name = self.maker.partition(":")
        captioner: Captions = getattr(import_module(module), name).from_profile(profile)
        return captioner


def portable_outcomes(
    captioner: Captions, tasks: Iterable[Task], how: How, tell: Callable[[Work], None]
) -> Iterator[Outcome]:
    """The outcomes of ``tasks``, fit to travel.

    Args:
        captioner: captions several at once.
        tasks: drawn as there is room for them, by threads; may wait.
        how: the run.
        tell: is told what is about to be captioned.
    """
    readers = [Reader(how.timeout) for _ in range(reader_count(how))]
    with closing(Feed(tasks, how, readers, *helping(captioner))) as feed:
        yield from map(portable, run(captioner, feed, how, begun=lambda work: tell(replace(work, clip=None))))


def portable(outcome: Outcome) -> Outcome:
    """``outcome`` without what cannot or need not leave a process: the trace, foreign exceptions, frames."""
    error = outcome.error
    if error is not None and not isinstance(error, VidspecError):
        traceback.print_exception(error, file=sys.stderr)
        error = VidspecError(f"{type(error).__name__}: {error}", kind="internal")
    work = replace(outcome.work, clip=None, error=None)
    return Outcome(replace(outcome.caption, trace=None), error, work)


@dataclass
class _Hand:
    """What a captioner has: its tasks by number, and of those the pieces that it is captioning."""

    tasks: dict[int, Task] = field(default_factory=dict)
    begun: dict[tuple[int, int | None], Work] = field(default_factory=dict)


class Dealer:
    """Deals tasks to captioners that may die, and finds out which clip one died of.

    The clips that a captioner was captioning when it died are tried once more. Those whose captioner dies again, if
    there were several, are tried a last time, each alone in its captioner after all others are done; the one that is
    alone when a captioner dies again has failed. So has the segment of a film, which then goes on behind it.

    Args:
        tasks: the clips.
        profile: its name, for the records of those that failed.
    """

    def __init__(self, tasks: Iterable[Task], profile: str | None) -> None:
        self.profile = profile
        self._todo = deque(tasks)
        self._alone: deque[Task] = deque()
        self._hands: dict[Hashable, _Hand] = {}
        self._ends: Counter[int] = Counter()

    def __len__(self) -> int:
        """Tasks that nobody has."""
        return len(self._todo) + len(self._alone)

    @property
    def over(self) -> bool:
        """Whether all is done."""
        return not len(self) and not any(hand.tasks for hand in self._hands.values())

    def deal(self, who: Hashable) -> Task | None:
        """A task for a captioner that has room; None if there is none for it now."""
        hand = self._hands.setdefault(who, _Hand())
        if any(task.alone for task in hand.tasks.values()):
            return None
        if self._todo:
            task = self._todo.popleft()
        elif self._alone and not hand.tasks:
            task = self._alone.popleft()
        else:
            return None
        hand.tasks[task.number] = task
        return task

    def begun(self, who: Hashable, work: Work) -> None:
        """A captioner begins to caption a piece."""
        self._hands[who].begun[work.number, work.segment] = work

    def done(self, who: Hashable, outcome: Outcome) -> None:
        """A piece is captioned, or has failed by itself."""
        hand, work = self._hands[who], outcome.work
        hand.begun.pop((work.number, work.segment), None)
        if work.last:
            del hand.tasks[work.number]
        else:
            hand.tasks[work.number] = _without(hand.tasks[work.number], work, outcome.caption.caption)

    def died(self, who: Hashable, why: str) -> list[Outcome]:
        """A captioner has ended; the outcomes of those that have failed by that."""
        hand = self._hands.pop(who, _Hand())
        suspects = list(hand.begun.values()) or [task.whole for task in hand.tasks.values()]
        suspected = {work.number for work in suspects}
        failures = []
        for number, task in reversed(hand.tasks.items()):
            self._ends[number] += number in suspected
            if number not in suspected or self._ends[number] < ATTEMPTS:
                self._again(task)
            elif len(suspects) > 1:
                self._again(replace(task, alone=True))
            else:
                (work,) = suspects
                error = GenerationError(f"{work.path}: its captioner ended each time: {why}", kind="crashed")
                failures.append(Outcome(failed(work.path, error, profile=self.profile), error, work))
                if not work.last:
                    self._ends[number] = 0
                    self._again(_without(task, work, None))
        return failures

    def _again(self, task: Task) -> None:
        (self._alone if task.alone else self._todo).appendleft(task)


def _without(task: Task, work: Work, caption: str | None) -> Task:
    assert work.segment is not None
    return replace(task, done={**task.done, work.segment: caption})
