"""The executor that captions in this process, with the next clips read in others."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing

from vidspec.dataset.feed import Feed, helping, reader_count
from vidspec.dataset.reader import Reader
from vidspec.dataset.run import Captions, run
from vidspec.dataset.work import How, Outcome, Task
from vidspec.events.observer import Observer

__all__ = ["outcomes", "readers_for"]


def readers_for(how: How, clips: int) -> list[Reader]:
    """As many readers as so many clips are worth, none of them started."""
    return [Reader(how.timeout) for _ in range(reader_count(how, clips))]


def outcomes(
    captioner: Captions,
    tasks: Iterable[Task],
    how: How,
    observer: Observer | None = None,
    readers: Sequence[Reader] | None = None,
) -> Iterator[Outcome]:
    """Caption ``tasks``, several at once; their frames are read by processes that can be killed.

    ``readers`` may have been started before; they are closed in the end.
    """
    tasks = list(tasks)
    prepare, refuse, hears = helping(captioner)
    if how.baseline or (len(tasks) < 2 and how.segment is None):
        prepare = None  # it would be missing from times that are compared, and there is nothing to do it beside
    elif (beside := getattr(captioner, "look_beside", None)) is not None:
        beside()
    with closing(Feed(tasks, how, readers or readers_for(how, len(tasks)), prepare, refuse, hears)) as feed:
        yield from run(captioner, feed, how, observer)
