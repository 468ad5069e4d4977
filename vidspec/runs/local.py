"""Executor that captions in this process, with clips read ahead in other processes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence, Sized
from contextlib import closing
from typing import TYPE_CHECKING

from vidspec.events.observer import RunObserver
from vidspec.runs.feed import Feed, feed_support, reader_count
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
) -> Iterator[Job]:
    """Caption ``jobs``, several at once, with frames from reader processes that can be killed.

    ``readers`` may be started already; they are closed at the end.
    """
    few = isinstance(jobs, Sized) and len(jobs) < 2
    inputs = captioner.client.inputs
    prepare, refuse, max_audio_s, gpu = feed_support(inputs, config)
    if few and config.segment is None:
        prepare = None  # no other clip to overlap it with
    elif prepare is not None:
        inputs.vision.start_worker()
    readers = readers or readers_for(config, len(jobs) if isinstance(jobs, Sized) else None)
    with closing(Feed(jobs, config, readers, prepare, refuse, max_audio_s, gpu)) as feed:
        yield from caption_jobs(captioner, feed, config, observer)
