"""The engine that captions in this process, with the next clips read in another."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from vidspec.batch.ahead import ahead, works_of
from vidspec.batch.reader import Reader
from vidspec.batch.run import Captions, Observer, run
from vidspec.batch.work import How, Outcome, Task

__all__ = ["outcomes"]


def outcomes(
    captioner: Captions, tasks: Iterable[Task], how: How, observer: Observer | None = None
) -> Iterator[Outcome]:
    """Caption ``tasks`` one after the other.

    A single whole clip without a time limit is read in this process; all others by one that can be killed.
    """
    tasks = list(tasks)
    if how.segment is None and how.timeout is None and (how.ahead == 0 or len(tasks) < 2):
        yield from run(captioner, (work for task in tasks for work in works_of(task, how, None)), how, observer)
        return
    reader = Reader(how.timeout)
    prepare = getattr(captioner, "prepare", None)  # a captioner may have it
    if how.ahead == 0:
        try:
            yield from run(captioner, (work for task in tasks for work in works_of(task, how, reader)), how, observer)
        finally:
            reader.close()
        return
    works = ahead(tasks, how, reader, prepare)
    try:
        yield from run(captioner, works, how, observer)
    finally:
        works.close()  # type: ignore[attr-defined]
