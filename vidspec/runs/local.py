"""Captions jobs in this process, with clips read ahead in others: the executor of a run, and of each worker."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from contextlib import closing
from typing import TYPE_CHECKING

from vidspec.events.observer import RunObserver
from vidspec.runs.feed import Feed, reader_count
from vidspec.runs.job import Job, JobConfig
from vidspec.runs.reader import ClipReader
from vidspec.runs.run import caption_jobs

if TYPE_CHECKING:
    from vidspec.captioner import Captioner

__all__ = ["caption_locally", "readers_for"]


def readers_for(config: JobConfig, clips: int | None) -> list[ClipReader]:
    """Return the readers for a run over ``clips`` clips (None if unknown), not yet started."""
    return [ClipReader(config.timeout, config.stall) for _ in range(reader_count(config, clips))]


def caption_locally(
    captioner: Captioner,
    jobs: Iterable[Job],
    config: JobConfig,
    observer: RunObserver | None = None,
    readers: Sequence[ClipReader] | None = None,
    on_begin: Callable[[Job], None] = lambda job: None,
    *,
    vision_worker: bool = True,
) -> Iterator[Job]:
    """Caption ``jobs``, several at once, with frames from reader processes that can be killed.

    Args:
        captioner: captions them.
        jobs: the clips.
        config: settings of the run.
        observer: receives events and results.
        readers: may be started already; they are closed at the end.
        on_begin: called with each job that the captioner takes.
        vision_worker: run vision ahead of need in a process of its own.
    """
    clips, inputs = len(jobs) if isinstance(jobs, Sized) else None, captioner.client.inputs
    lone = clips is not None and clips < 2 and config.segment is None  # no other clip to overlap it with
    prepare = None if lone or config.baseline else inputs.vision.prepare  # compared times must include it
    if prepare is not None and vision_worker:
        inputs.vision.start_worker()
    readers = readers or readers_for(config, clips)
    with closing(Feed(jobs, config, readers, prepare, inputs.refuse, inputs.max_sound_s, inputs.gpu)) as feed:
        yield from caption_jobs(captioner, feed, config, observer, on_begin)
