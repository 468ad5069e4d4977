"""Reads clips ahead of need, several at once: jobs in, jobs with frames out as they are ready, in bounded memory."""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

from vidspec.dataset.containers import ShardFiles
from vidspec.dataset.job import Job, JobConfig
from vidspec.events.wake import WakeEvent

if TYPE_CHECKING:
    from vidspec.dataset.reader import ClipReader
    from vidspec.video.base import Clip

__all__ = ["MAX_BYTES", "Feed", "Prepare", "Refuse", "cores", "feed_support", "reader_count"]

#: Does a captioner's preprocessing of a clip in advance; returns the bytes of memory that its result takes.
Prepare: TypeAlias = "Callable[[Clip], int]"
#: Raises where a captioner cannot take a clip: path, prompt (None for the profile's), frames, their height and width.
Refuse: TypeAlias = "Callable[[str, str | None, int, int, int], None]"
#: Bytes of main memory that all clips together may take until the models have seen them.
MAX_BYTES = 1 << 30
#: Processes that read; beyond these a disk is rarely faster, and each may take the memory of a hard clip.
MAX_READERS = 8


def feed_support(
    captioner: object, config: JobConfig
) -> tuple[Prepare | None, Refuse | None, float | None, int | None]:
    """What a captioner may have for a :class:`Feed`: ``prepare``, ``refuse``, how much sound it takes, and its GPU."""
    prepare = None if config.baseline else getattr(captioner, "prepare", None)  # compared times must not lack it
    refuse, sound, gpu = (getattr(captioner, name, None) for name in ("refuse", "max_sound_s", "gpu"))
    return prepare, refuse, sound, gpu


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def reader_count(config: JobConfig, clips: int | None = None) -> int:
    """How many readers a run over so many clips is worth; None where that is not known.

    Where clips are captioned one after the other there is one, so that they come in their order.
    """
    if config.batch == 1 or (clips is not None and clips < 2 and config.segment is None):
        return 1
    return max(2, min(MAX_READERS, cores() // 2))


class Feed:
    """What is left of ``jobs``, cut into segments if asked, each with its frames or the error that reading it gave.

    A thread for each reader reads while fewer than ``config.ahead`` parts wait to be taken, and all that were neither
    :meth:`seen` nor :meth:`finished` take less than ``max_bytes``; a clip of any size is read when there is no other.
    What is being read counts as much as the largest clip before. Parts come in the order in which they become ready;
    with one reader that is the order of the jobs. Of a clip whose segments are captioned one after the other, several
    readers read the segment after next when one is finished: other clips are not held up by that.

    Args:
        jobs: the clips; each is drawn when there is room for it, never two at a time. Drawing may wait.
        config: the run.
        readers: read frames and segments; closed with the feed.
        prepare: the captioner's preprocessing, done here so that it need not be done later; what goes wrong in it will
            go wrong again there, and is reported then.
        refuse: the captioner's objections to a clip, found out before it is decoded.
        max_audio_s: seconds of sound that are read with the frames at most; None for none.
        gpu: number of the one that hardware decodes on, if it is NVIDIA's; None for the first.
        max_bytes: of frames and what was prepared from them.

    Attributes:
        wake: is set when a part has become ready, or :attr:`over` may have changed.
    """

    def __init__(
        self,
        jobs: Iterable[Job],
        config: JobConfig,
        readers: Sequence[ClipReader],
        prepare: Prepare | None = None,
        refuse: Refuse | None = None,
        max_audio_s: float | None = None,
        gpu: int | None = None,
        *,
        max_bytes: int = MAX_BYTES,
    ) -> None:
        self.config, self.wake = config, WakeEvent()
        self._video = {**config.video, "sound": max_audio_s, "gpu": gpu}
        self._jobs, self._prepare, self._refuse, self._max_bytes = iter(jobs), prepare, refuse, max_bytes
        self._readers, self._in_order, self._files = readers, len(readers) == 1, ShardFiles(config.fetch)
        self._changed = threading.Condition()
        self._drawing = self._drawn = self._closed = False
        self._busy = 0  # threads that read or cut
        self._unread: deque[Job] = deque()
        self._following: dict[int, deque[Job]] = {}  # segments that are read when others are finished, by clip
        self._ready: deque[Job] = deque()
        self._bytes: dict[tuple[int, int | None], int] = {}
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
    def nbytes(self) -> int:
        """Bytes of all that the models have not seen."""
        return sum(self._bytes.values())

    def take(self) -> Job | None:
        """The next part; None if none is ready. Never waits.

        Raises:
            BaseException: what a bug raised where it was read.
        """
        with self._changed:
            if self._bug is not None:
                raise self._bug
            self._changed.notify_all()
            return self._ready.popleft() if self._ready else None

    def mark_encoded(self, job: Job) -> None:
        """The models have seen a part that was taken; its frames, and what was made of them ahead, are gone."""
        with self._changed:
            self._bytes.pop((job.number, job.segment), None)
            self._changed.notify_all()

    def release(self, job: Job) -> None:
        """A part that was taken is captioned, or has failed; its memory is free."""
        with self._changed:
            self._bytes.pop((job.number, job.segment), None)
            if following := self._following.pop(job.number, None):
                self._unread.appendleft(following.popleft())
                if following:
                    self._following[job.number] = following
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
        self._files.close()

    @property
    def _drained(self) -> bool:
        return self._drawn and not (self._busy or self._unread or self._following)

    def _room(self) -> bool:
        if self._busy + len(self._ready) >= max(1, self.config.ahead):
            return False
        return not self._bytes or self.nbytes + self._largest <= self._max_bytes

    def _run(self, reader: ClipReader) -> None:
        try:
            while (job := self._next()) is not None:
                segments: list[Job] = []
                ready: Job | None = None
                size = 0
                if job.error is not None:
                    ready = job
                elif self.config.segment is None or job.segment is not None:
                    ready, size = self._read(job, reader)
                else:
                    try:
                        segments = self._cut(job, reader, self.config.segment)
                    except Exception as error:
                        ready = replace(job, error=error)
                with self._changed:
                    self._busy -= 1
                    self._bytes[job.number, job.segment] = size
                    if ready is None:
                        del self._bytes[job.number, job.segment]
                    elif not self._closed:
                        self._ready.append(ready)
                    self._enter(segments)
                    self._largest = max(self._largest, size)
                    self._changed.notify_all()
                self.wake.set()
        except BaseException as error:  # the next take raises it
            with self._changed:
                self._bug = error
                self._changed.notify_all()
        self.wake.set()

    def _next(self) -> Job | None:
        """A job to read or to cut; None when there will be no more."""
        with self._changed:
            while True:
                self._changed.wait_for(self._may_go_on)
                if self._closed or self._bug is not None or self._drained:
                    return None
                if self._unread:
                    job = self._unread.popleft()
                    self._bytes[job.number, job.segment] = self._largest
                    self._busy += 1
                    return job
                self._drawing = True
                self._changed.release()
                try:
                    drawn = next(self._jobs, None)
                finally:
                    self._changed.acquire()
                    self._drawing = False
                    self._changed.notify_all()
                if drawn is None:
                    self._drawn = True
                else:
                    self._unread.append(drawn)

    def _may_go_on(self) -> bool:
        if self._closed or self._bug is not None or self._drained:
            return True
        return bool(self._unread or not (self._drawing or self._drawn)) and self._room()

    def _enter(self, segments: Sequence[Job]) -> None:
        """Segments of one clip that are to be read."""
        if segments[2:] and self.config.one_by_one(segments[0]) and not self._in_order:
            self._unread.extend(segments[:2])
            self._following[segments[0].number] = deque(segments[2:])
        else:
            self._unread.extend(segments)

    def _cut(self, job: Job, reader: ClipReader, segment: float | str) -> list[Job]:
        """The segments of a clip that are left."""
        with self._files.local(job.path, job.source) as file:
            found = reader.segments(file, segment, job.start, job.end)
        return [
            replace(job, start=start, end=end, segment=number, segments=len(found), planned=job)
            for number, (start, end) in enumerate(found)
            if number not in job.done
        ]

    def _read(self, job: Job, reader: ClipReader) -> tuple[Job, int]:
        """A job with its frames, or with the error that reading them gave; and the bytes that it takes."""
        check = partial(self._refuse, job.path, job.prompt) if self._refuse is not None else None
        began = time.monotonic()
        job = replace(job, planned=job.planned_job, timeout=self.config.timeout)
        try:
            with self._files.local(job.path, job.source) as file:
                clip = reader.read(file, job.start, job.end, self._video, check)
        except Exception as error:
            return replace(job, error=error, spent=time.monotonic() - began), 0
        read = replace(job, clip=clip, spent=time.monotonic() - began)
        if not (self.config.baseline or self.config.verify or self.config.questions_of(job)):  # which need frames later
            again = partial(_read_again, job, self._video, self.config)
            read = replace(read, reread=again)
        if clip is None:
            return read, 0
        size = clip.nbytes
        if self._prepare is not None:
            with suppress(Exception):
                size += self._prepare(clip)
        return read, size


def _read_again(job: Job, video: Mapping[str, object], config: JobConfig) -> Clip:
    from vidspec.dataset.reader import ClipReader

    files, reader = ShardFiles(config.fetch), ClipReader(config.timeout, config.stall)
    with closing(files), closing(reader), files.local(job.path, job.source) as file:
        return reader.read(file, job.start, job.end, video)
