"""Captions jobs in this process, with clips read ahead in others: the executor of a run, and of each worker."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from contextlib import closing
from typing import TYPE_CHECKING

from vidspec.events.observer import RunObserver
from vidspec.runs.feed import Feed, reader_count
from vidspec.runs.job import Job
from vidspec.runs.reader import ClipReader
from vidspec.runs.run import caption_jobs

if TYPE_CHECKING:
    from vidspec.captioner import Captioner
    from vidspec.config.run_spec import RunSpec
    from vidspec.config.schema import Profile

__all__ = ["caption_locally", "readers_for"]


def readers_for(spec: RunSpec, profile: Profile, clips: int | None) -> list[ClipReader]:
    """Return the readers for a run over ``clips`` clips (None if unknown), not yet started."""
    return [ClipReader(spec.timeout, profile.video.stall) for _ in range(reader_count(spec, clips))]


def caption_locally(
    captioner: Captioner,
    jobs: Iterable[Job],
    spec: RunSpec,
    observer: RunObserver | None = None,
    readers: Sequence[ClipReader] | None = None,
    on_begin: Callable[[Job], None] = lambda job: None,
    *,
    vision_worker: bool = True,
    total: int = 1,
) -> Iterator[Job]:
    """Caption ``jobs``, several at once, with frames from reader processes that can be killed.

    Args:
        captioner: captions them.
        jobs: the clips.
        spec: the run.
        observer: receives events and results.
        readers: may be started already; they are closed at the end.
        on_begin: called with each job that the captioner takes.
        vision_worker: run vision ahead of need in a process of its own.
        total: number of clips in the run, for the observer.
    """
    clips, inputs, profile = (
        len(jobs) if isinstance(jobs, Sized) else None,
        captioner.client.inputs,
        captioner.client.profile,
    )
    lone = clips is not None and clips < 2 and spec.segment is None  # no other clip to overlap it with
    prepare = None if lone or spec.baseline else inputs.vision.prepare  # compared times must include it
    if prepare is not None and vision_worker:
        inputs.vision.start_worker()
    readers = readers or readers_for(spec, profile, clips)
    with closing(Feed(jobs, spec, profile, readers, prepare, inputs.refuse, inputs.max_sound_s, inputs.gpu)) as feed:
        yield from caption_jobs(captioner, feed, spec, observer, on_begin, total=total)
