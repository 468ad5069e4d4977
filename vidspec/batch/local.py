"""The engine that captions in this process, with the next clips read in another."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from vidspec.batch.ahead import ahead, helping, works_of
from vidspec.batch.reader import Reader
from vidspec.batch.run import Captions, Observer, run
from vidspec.batch.work import How, Outcome, Task

__all__ = ["Reader", "outcomes"]


def outcomes(
    captioner: Captions,
    tasks: Iterable[Task],
    how: How,
    observer: Observer | None = None,
    reader: Reader | None = None,
) -> Iterator[Outcome]:
    """Caption ``tasks`` one after the other; their frames are read by a process that can be killed.

    ``reader`` may have been started before; it is closed in the end.
    """
    tasks = list(tasks)
    reader = reader or Reader(how.timeout)
    prepare, refuse = helping(captioner)
    if how.ahead == 0 or (len(tasks) < 2 and how.segment is None):
        in_turn = (work for task in tasks for work in works_of(task, how, reader, None, refuse))
        try:
            yield from run(captioner, in_turn, how, observer)
        finally:
            reader.close()
        return
    works = ahead(tasks, how, reader, prepare, refuse)
    try:
        yield from run(captioner, works, how, observer)
    finally:
        works.close()  # type: ignore[attr-defined]
