"""Reads clips ahead of need, several at once: tasks in, works with frames out as they are ready, in bounded memory."""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Protocol, TypeAlias

from vidspec.dataset.work import How, Task, Work
from vidspec.events.wake import WakeEvent

if TYPE_CHECKING:
    from typing import Any

    from vidspec.video.base import Clip
    from vidspec.video.reading import Check

__all__ = ["MOST_BYTES", "Feed", "Prepare", "Reads", "Refuse", "helping", "reader_count"]

#: Does a captioner's preprocessing of a clip in advance; returns the bytes of memory that its result takes.
Prepare: TypeAlias = "Callable[[Clip], int]"
#: Raises where a captioner cannot take a clip: path, prompt (None for the profile's), frames, their height and width.
Refuse: TypeAlias = "Callable[[str, str | None, int, int, int], None]"
#: Bytes that all clips together may take from their reading to their captions.
MOST_BYTES = 1 << 30
#: Processes that read; beyond these a disk is rarely faster, and each may take the memory of a hard clip.
MOST_READERS = 8


class Reads(Protocol):
    """What is needed of a ``Reader``."""

    def read(
        self, path: str, start: float | None, end: float | None, video: Any, check: Check | None = None
    ) -> Clip | None: ...

    def segments(
        self, path: str, segment: float | str, start: float | None, end: float | None
    ) -> list[tuple[float, float]]: ...

    def close(self) -> None: ...


def helping(captioner: object) -> tuple[Prepare | None, Refuse | None, float | None]:
    """What a captioner may have for a :class:`Feed`: its ``prepare``, its ``refuse``, and how much it ``hears``."""
    return getattr(captioner, "prepare", None), getattr(captioner, "refuse", None), getattr(captioner, "hears", None)


def reader_count(how: How, clips: int | None = None) -> int:
    """How many readers a run over so many clips is worth; None where that is not known.

    Where clips are captioned one after the other there is one, so that they come in their order.
    """
    if how.batch == 1 or (clips is not None and clips < 2 and how.segment is None):
        return 1
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(2, min(MOST_READERS, cores // 2))


class Feed:
    """What is left of ``tasks``, each piece with its frames or with the error that reading it gave.

    A thread for each reader reads while fewer than ``how.ahead`` pieces wait to be taken, and all that were not
    :meth:`finished` take less than ``most_bytes``; a clip of any size is read when there is no other. What is being
    read counts as much as the largest clip before. Pieces come in the order in which they become ready; with one reader
    that is the order of the tasks. With ``how.context`` a segment comes when the one before it is finished, and knows
    its caption; others are not held up by that.

    Args:
        tasks: the clips; each is drawn when there is room for it, never two at a time. It may wait.
        how: the run.
        readers: read frames and segments; closed with the feed.
        prepare: the captioner's preprocessing, done here so that it need not be done later; what goes wrong in it will
            go wrong again there, and is reported then.
        refuse: the captioner's objections to a clip, heard before it is decoded.
        hears: seconds of sound that are read with the frames at most; None for none.
        most_bytes: of frames and what was prepared from them.

    Attributes:
        wake: is set when a piece has become ready, or :attr:`over` may have changed.
    """

    def __init__(
        self,
        tasks: Iterable[Task],
        how: How,
        readers: Sequence[Reads],
        prepare: Prepare | None = None,
        refuse: Refuse | None = None,
        hears: float | None = None,
        *,
        most_bytes: int = MOST_BYTES,
    ) -> None:
        self.how, self.wake = how, WakeEvent()
        self._video = {**how.video, "sound": hears}
        self._tasks, self._prepare, self._refuse, self._most = iter(tasks), prepare, refuse, most_bytes
        self._readers, self._in_turn = readers, len(readers) == 1
        self._changed = threading.Condition()
        self._drawing = self._drawn = self._closed = False
        self._busy = 0  # tasks and pieces that threads are at
        self._coming: deque[Work] = deque()  # to be read
        self._later: dict[int, deque[Work]] = {}  # to be read when the segment before it was taken, by task
        self._ready: list[Work] = []
        self._taken: set[int] = set()  # tasks whose next segment waits for the one that was taken
        self._captions: dict[int, tuple[int | None, str | None]] = {}  # of their last finished segment
        self._held: dict[tuple[int, int | None], int] = {}
        self._largest = 0
        self._bug: BaseException | None = None
        self._threads = [
            threading.Thread(target=self._run, args=(reader,), name="feed", daemon=True) for reader in readers
        ]
        for thread in self._threads:
            thread.start()

    @property
    def over(self) -> bool:
        """Whether nothing more will come."""
        with self._changed:
            return self._bug is None and self._drained and not self._ready

    @property
    def held(self) -> int:
        """Bytes of all that is not finished."""
        return sum(self._held.values())

    def take(self) -> Work | None:
        """The next piece; None if none is ready. Never waits.

        Raises:
            BaseException: what a bug raised where it was read.
        """
        with self._changed:
            if self._bug is not None:
                raise self._bug
            for work in self._ready[:1] if self._in_turn else self._ready:
                if not self._waits(work):
                    self._ready.remove(work)
                    break
            else:
                return None
            if self._follows(work):
                self._taken.add(work.number)
                before, caption = self._captions.pop(work.number, (None, None))
                if before is not None and before == work.after == (work.segment or 0) - 1:
                    work = replace(work, previous=caption)
                if self._later.get(work.number):
                    self._coming.appendleft(self._later[work.number].popleft())
                else:
                    self._later.pop(work.number, None)
            self._changed.notify_all()
            return work

    def finished(self, work: Work, caption: str | None) -> None:
        """A piece that was taken is captioned, or has failed (None); its memory is free."""
        with self._changed:
            self._held.pop((work.number, work.segment), None)
            if self._follows(work):
                self._taken.discard(work.number)
                if not work.last:
                    self._captions[work.number] = work.segment, caption
            self._changed.notify_all()
        self.wake.set()

    def close(self) -> None:
        """End the reading, whatever it is at."""
        with self._changed:
            self._closed = True
            self._ready.clear()
            self._changed.notify_all()
        for reader in self._readers:
            reader.close()
        patience = time.monotonic() + 0.5  # a thread that prepares a clip ends with that, or with this process
        for thread in self._threads:
            thread.join(max(0.0, patience - time.monotonic()))

    @property
    def _drained(self) -> bool:
        return self._drawn and not (self._busy or self._coming or self._later)

    def _follows(self, work: Work) -> bool:
        """Whether the segments of a clip come one after the other."""
        return work.segment is not None and (self.how.context or work.alone)

    def _waits(self, work: Work) -> bool:
        return work.number in self._taken and self._follows(work)

    def _room(self) -> bool:
        waiting = self._busy + sum(not self._waits(work) for work in self._ready)
        return waiting < max(1, self.how.ahead) and (not self._held or self.held + self._largest <= self._most)

    def _run(self, reader: Reads) -> None:
        try:
            while (found := self._next()) is not None:
                works, ready = ([], self._read(found, reader)) if isinstance(found, Work) else self._cut(found, reader)
                with self._changed:
                    self._busy -= 1
                    self._enter(works)
                    if ready is not None:
                        size = ready.held
                        self._held[ready.number, ready.segment] = size
                        self._largest = max(self._largest, size)
                        if not self._closed:
                            self._ready.append(ready)
                    self._changed.notify_all()
                self.wake.set()
        except BaseException as error:  # who takes the next piece raises it
            with self._changed:
                self._bug = error
                self._changed.notify_all()
        self.wake.set()

    def _next(self) -> Task | Work | None:
        """A piece to read, or else a task to cut; None when there will be no more."""
        with self._changed:
            while True:
                self._changed.wait_for(self._stirring)
                if self._closed or self._bug is not None or self._drained:
                    return None
                if self._coming:
                    work = self._coming.popleft()
                    self._held[work.number, work.segment] = self._largest
                    self._busy += 1
                    return work
                self._drawing = True
                self._changed.release()
                try:
                    task = next(self._tasks, None)
                finally:
                    self._changed.acquire()
                    self._drawing = False
                    self._changed.notify_all()
                if task is None:
                    self._drawn = True
                elif self.how.segment is None:
                    self._coming.append(task.whole)
                else:
                    self._busy += 1
                    return task

    def _stirring(self) -> bool:
        if self._closed or self._bug is not None or self._drained:
            return True
        return bool(self._coming or not (self._drawing or self._drawn)) and self._room()

    def _enter(self, works: Sequence[Work]) -> None:
        """Pieces of one task that are to be read."""
        if works and self._follows(works[0]) and not self._in_turn:
            self._coming.append(works[0])
            if works[1:]:
                self._later[works[0].number] = deque(works[1:])
        else:
            self._coming.extend(works)

    def _cut(self, task: Task, reader: Reads) -> tuple[list[Work], Work | None]:
        """The segments of a task that are left, or the task as a whole with the error that cutting it gave."""
        entry, whole, segment = task.entry, task.whole, self.how.segment
        assert segment is not None
        try:
            found = reader.segments(entry.path, segment, entry.start, entry.end)
        except Exception as error:
            return [], replace(whole, error=error)
        works: list[Work] = []
        for number, (low, high) in enumerate(found):
            if number not in task.done:
                after = works[-1].segment if works else None
                previous = task.done.get(number - 1)
                part = replace(whole, start=low, end=high, segment=number, segments=len(found), last=False)
                works.append(replace(part, previous=previous, after=after))
        return [replace(work, last=work is works[-1]) for work in works], None

    def _read(self, work: Work, reader: Reads) -> Work:
        check = partial(self._refuse, work.path, work.prompt) if self._refuse is not None else None
        began = time.monotonic()
        try:
            clip = reader.read(work.path, work.start, work.end, self._video, check)
        except Exception as error:
            return replace(work, error=error, read_s=time.monotonic() - began)
        read_s = time.monotonic() - began
        held = 0 if clip is None else clip.nbytes
        if clip is not None and self._prepare is not None:
            with suppress(Exception):
                held += self._prepare(clip)
        return replace(work, clip=clip, read_s=read_s, held=held)
