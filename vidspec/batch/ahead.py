"""Reads the next clips while one is captioned: tasks in, works with frames out, in order and in bounded memory."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Protocol, TypeAlias

from vidspec.batch.work import How, Task, Work

if TYPE_CHECKING:
    from typing import Any

    from vidspec.video.base import Clip
    from vidspec.video.reading import Check

__all__ = ["MOST_BYTES", "Prepare", "Reads", "Refuse", "ahead", "helping", "works_of"]

#: Does a captioner's preprocessing of a clip in advance; returns the bytes of memory that its result takes.
Prepare: TypeAlias = "Callable[[Clip], int]"
#: Raises where a captioner cannot take a clip: path, prompt (None for the profile's), frames, their height and width.
Refuse: TypeAlias = "Callable[[str, str | None, int, int, int], None]"
#: Frames that wait may take this much memory; the next clip is read when they take less.
MOST_BYTES = 1 << 29


class Reads(Protocol):
    """What is needed of a ``Reader``."""

    def read(
        self, path: str, start: float | None, end: float | None, video: Any, check: Check | None = None
    ) -> Clip | None: ...

    def segments(
        self, path: str, segment: float | str, start: float | None, end: float | None
    ) -> list[tuple[float, float]]: ...

    def close(self) -> None: ...


def helping(captioner: object) -> tuple[Prepare | None, Refuse | None]:
    """What a captioner may have for :func:`works_of`: its ``prepare`` and its ``refuse``."""
    return getattr(captioner, "prepare", None), getattr(captioner, "refuse", None)


def works_of(
    task: Task, how: How, reader: Reads, prepare: Prepare | None = None, refuse: Refuse | None = None
) -> Iterator[Work]:
    """What is left of one task, each piece with its frames or with the error that reading it gave.

    Args:
        task: the clip.
        how: the run.
        reader: reads frames and segments.
        prepare: the captioner's preprocessing, done here so that it need not be done later; what goes wrong in it will
            go wrong again there, and is reported then.
        refuse: the captioner's objections to a clip, heard before it is decoded.
    """
    entry = task.entry
    whole = task.whole
    works = [whole]
    if how.segment is not None:
        try:
            found = reader.segments(entry.path, how.segment, entry.start, entry.end)
        except Exception as error:
            yield replace(whole, error=error)
            return
        works = [
            replace(whole, start=low, end=high, segment=number, segments=len(found), previous=task.done.get(number - 1))
            for number, (low, high) in enumerate(found)
            if number not in task.done
        ]
        works = [replace(work, last=work is works[-1]) for work in works]
    for work in works:
        check = partial(refuse, work.path, work.prompt) if refuse is not None else None
        began = time.monotonic()
        try:
            clip = reader.read(work.path, work.start, work.end, how.video, check)
        except Exception as error:
            yield replace(work, error=error, read_s=time.monotonic() - began)
            continue
        read_s = time.monotonic() - began
        held = 0 if clip is None else clip.frames.nbytes
        if clip is not None and prepare is not None:
            with suppress(Exception):
                held += prepare(clip)
        yield replace(work, clip=clip, read_s=read_s, held=held)


def ahead(
    tasks: Iterable[Task],
    how: How,
    reader: Reads,
    prepare: Prepare | None = None,
    refuse: Refuse | None = None,
    *,
    most_bytes: int = MOST_BYTES,
) -> Iterator[Work]:
    """The works of ``tasks`` in order, read by a thread that is at most ``how.ahead`` clips and ``most_bytes`` ahead.

    A clip of any size is read when nothing else waits. Closing the iterator ends the reading.
    """
    waiting: deque[Work | BaseException | None] = deque()
    changed = threading.Condition()
    stopped = False

    def full() -> bool:
        works = [work for work in waiting if isinstance(work, Work)]
        size = sum(work.held for work in works)
        return len(works) >= max(1, how.ahead) or (bool(works) and size >= most_bytes)

    def put(item: Work | BaseException | None) -> None:
        with changed:
            waiting.append(item)
            changed.notify_all()

    def fill() -> None:
        try:
            for task in tasks:
                for work in works_of(task, how, reader, prepare, refuse):
                    put(work)
                    with changed:
                        changed.wait_for(lambda: stopped or not full())
                    if stopped:
                        return
            put(None)
        except BaseException as error:  # the consumer raises it
            put(error)

    thread = threading.Thread(target=fill, name="read-ahead", daemon=True)
    thread.start()
    try:
        while True:
            with changed:
                changed.wait_for(lambda: bool(waiting))
                item = waiting.popleft()
                changed.notify_all()
            if item is None:
                return
            if isinstance(item, BaseException):
                raise item
            yield item
    finally:
        with changed:
            stopped = True
            changed.notify_all()
        reader.close()
        thread.join(timeout=10)
