"""Read clips ahead of need, several at once: jobs in, jobs with frames out as they are ready, in bounded memory."""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

from vidspec.errors import VideoError
from vidspec.events.wake import WakeEvent
from vidspec.models.request import CaptionRequest
from vidspec.runs.allowance import fetch_limits
from vidspec.runs.job import Job, JobOptions, asked_of, is_one_by_one, questions_of
from vidspec.runs.sources.base import ClipOpener

if TYPE_CHECKING:
    from vidspec.config.run_spec import RunSpec
    from vidspec.config.schema import Profile
    from vidspec.runs.reader import ClipReader
    from vidspec.video.base import Clip
    from vidspec.video.reading import CheckFrameCount

__all__ = ["MAX_BYTES", "Feed", "PartInput", "Prepare", "Refuse", "cores", "reader_count"]

#: Preprocesses a clip for the captioner in advance; returns the bytes of memory that the result takes.
Prepare: TypeAlias = "Callable[[Clip], int]"
#: Raises if a captioner cannot take a clip: path, prompt (None for the profile's), frames, their height and width.
Refuse: TypeAlias = "Callable[[str, str | None, int, int, int], None]"
#: Bytes of main memory for all clips that the models have not encoded yet.
MAX_BYTES = 1 << 30
#: Maximum of reader processes; more rarely speed up a disk, and each may take the memory of a hard clip.
MAX_READERS = 8


def cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def reader_count(spec: RunSpec, clips: int | None = None) -> int:
    """Return the number of readers for a run over ``clips`` clips, None if unknown.

    If clips are captioned one at a time there is one reader, which keeps their order.
    """
    if spec.batch == 1 or (clips is not None and clips < 2 and spec.segment is None):
        return 1
    return max(2, min(MAX_READERS, cores() // 2))


@dataclass(slots=True, eq=False)
class PartInput:
    """A clip, or a part of it, as it has been read.

    Attributes:
        job: with the error of reading it, if there was one.
        request: what the captioner is asked about its frames; None after an error, and once the models need no frame.
        spans: start and end of all segments of its clip, in seconds; empty if it is not cut.
        alone: True once its reader has died with it: it is read again while no other reader reads.
    """

    job: Job
    request: CaptionRequest | None = None
    spans: Sequence[tuple[float, float]] = ()
    alone: bool = False


class Feed:
    """Reads the parts left of ``jobs``: clips or their segments, each with its frames or the error of reading it.

    One thread per reader reads while fewer than ``spec.ahead`` parts wait to be taken and all parts that are neither
    encoded (:meth:`mark_encoded`) nor released take less than ``max_bytes``; a clip of any size is read if there is no
    other. A part being read counts as much as the largest so far. Parts come in the order in which they become ready;
    with one reader that is the order of the jobs. If a clip's segments are captioned one after the other, several
    readers read the segment after next when one is released, so other clips are not delayed.

    A part whose reader died is tried once more, alone: memory that others took may have ended it. One reader is alone.

    Args:
        jobs: the clips; each is drawn when there is room for it, one at a time. Drawing may block.
        spec: the run.
        profile: of the captioner.
        readers: read frames and segments; closed with the feed.
        prepare: the captioner's preprocessing, done ahead; its errors are ignored here because they recur and are
            reported when the clip is captioned.
        refuse: the captioner's check of a clip before it is decoded.
        max_audio_s: maximum seconds of sound read with the frames; None for no sound.
        gpu: index of the NVIDIA GPU for hardware decoding; None for the first.
        max_bytes: limit of frames and preprocessed input.

    Attributes:
        wake: set when a part is ready, or :attr:`over` may have changed.
    """

    def __init__(
        self,
        jobs: Iterable[Job],
        spec: RunSpec,
        profile: Profile,
        readers: Sequence[ClipReader],
        prepare: Prepare | None = None,
        refuse: Refuse | None = None,
        max_audio_s: float | None = None,
        gpu: int | None = None,
        *,
        max_bytes: int = MAX_BYTES,
    ) -> None:
        self.spec, self.profile, self.wake = spec, profile, WakeEvent()
        self._video = {**profile.video.arguments, "sound": max_audio_s, "gpu": gpu}
        self._jobs, self._prepare, self._refuse, self._max_bytes = iter(jobs), prepare, refuse, max_bytes
        self._readers, self._in_order, self._files = readers, len(readers) == 1, ClipOpener(fetch_limits(spec))
        self._changed = threading.Condition()
        self._drawing = self._drawn = self._closed = False
        self._busy = 0  # threads that are reading or cutting
        self._unread: deque[PartInput] = deque()
        self._suspects: deque[PartInput] = deque()  # whose readers died
        self._alone = False  # True while one of these is read
        self._following: dict[int, deque[PartInput]] = {}  # segments read once others are released, by clip
        self._ready: deque[PartInput] = deque()
        self._bytes: dict[tuple[int, int | None], int] = {}
        self._largest = 0
        self._exception: BaseException | None = None
        self._threads = [
            threading.Thread(target=self._run, args=(reader,), name="feed", daemon=True) for reader in readers
        ]
        for thread in self._threads:
            thread.start()

    @property
    def over(self) -> bool:
        """True if no more parts will come."""
        with self._changed:
            return self._exception is None and self._drained and not self._ready

    @property
    def nbytes(self) -> int:
        """Bytes of all parts that the models have not encoded."""
        return sum(self._bytes.values())

    def take(self) -> PartInput | None:
        """Return the next part, or None if none is ready. Never blocks.

        Raises:
            BaseException: a bug's exception from a reading thread.
        """
        with self._changed:
            if self._exception is not None:
                raise self._exception
            self._changed.notify_all()
            return self._ready.popleft() if self._ready else None

    def mark_encoded(self, part: PartInput) -> None:
        """Free the frames and preprocessed input of a taken part that the models have encoded."""
        part.request, job = None, part.job
        with self._changed:
            self._bytes.pop((job.number, job.segment), None)
            self._changed.notify_all()

    def release(self, part: PartInput) -> None:
        """Release the memory of a taken part that is captioned or has failed."""
        part.request, job = None, part.job
        with self._changed:
            self._bytes.pop((job.number, job.segment), None)
            if following := self._following.pop(job.number, None):
                self._unread.appendleft(following.popleft())
                if following:
                    self._following[job.number] = following
            self._changed.notify_all()
        self.wake.set()

    def close(self) -> None:
        """Stop reading and close the readers."""
        with self._changed:
            self._closed = True
            self._ready.clear()
            self._changed.notify_all()
        for reader in self._readers:
            reader.close()
        patience = time.monotonic() + 0.5  # a thread may still be preprocessing a clip
        for thread in self._threads:
            thread.join(max(0.0, patience - time.monotonic()))
        self._files.close()

    @property
    def _drained(self) -> bool:
        return self._drawn and not (self._busy or self._unread or self._suspects or self._following)

    def _has_room(self) -> bool:
        if self._busy + len(self._ready) >= max(1, self.spec.ahead):
            return False
        return not self._bytes or self.nbytes + self._largest <= self._max_bytes

    def _run(self, reader: ClipReader) -> None:
        try:
            while (part := self._next_part()) is not None:
                job, segments, size = part.job, None, 0
                try:
                    if job.error is None and self.spec.segment is not None and job.segment is None:
                        segments = self._cut(job, reader)
                    elif job.error is None:
                        size = self._read(part, reader)
                except Exception as error:
                    job.error = error
                crashed = isinstance(job.error, VideoError) and job.error.kind == "crashed"
                with self._changed:
                    self._busy -= 1
                    self._alone &= not part.alone
                    self._bytes[job.number, job.segment] = size
                    if segments is not None:
                        del self._bytes[job.number, job.segment]
                        self._queue_segments(segments)
                    elif crashed and not (part.alone or self._in_order):
                        del self._bytes[job.number, job.segment]
                        job.error, part.alone = None, True
                        self._suspects.append(part)
                    elif not self._closed:
                        self._ready.append(part)
                    self._largest = max(self._largest, size)
                    self._changed.notify_all()
                self.wake.set()
        except BaseException as error:  # the next take raises it
            with self._changed:
                self._exception = error
                self._changed.notify_all()
        self.wake.set()

    def _next_part(self) -> PartInput | None:
        """Return a clip or part to read, or a clip to cut; None if there are no more."""
        with self._changed:
            while True:
                self._changed.wait_for(self._can_continue)
                if self._closed or self._exception is not None or self._drained:
                    return None
                if self._unread or self._suspects:
                    part = (self._suspects or self._unread).popleft()
                    self._alone = part.alone
                    self._bytes[part.job.number, part.job.segment] = self._largest
                    self._busy += 1
                    return part
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
                    self._unread.append(PartInput(drawn))

    def _can_continue(self) -> bool:
        if self._closed or self._exception is not None or self._drained:
            return True
        if self._suspects or self._alone:
            return self._busy == 0
        return bool(self._unread or not (self._drawing or self._drawn)) and self._has_room()

    def _queue_segments(self, segments: Sequence[PartInput]) -> None:
        """Queue the segments of one clip for reading."""
        if segments[2:] and is_one_by_one(segments[0].job, self.spec) and not self._in_order:
            self._unread.extend(segments[:2])
            self._following[segments[0].job.number] = deque(segments[2:])
        else:
            self._unread.extend(segments)

    def _cut(self, job: Job, reader: ClipReader) -> list[PartInput]:
        """Return the segments of a clip that are left."""
        with self._files.local(job) as file:
            spans = reader.segments(file, self.spec.segment or "scenes", job.start, job.end)
        left = [number for number in range(len(spans)) if number not in job.done]
        return [PartInput(job.part(number, len(spans), *spans[number]), spans=spans) for number in left]

    def _read(self, part: PartInput, reader: ClipReader) -> int:
        """Read the frames of a part; return its size in bytes."""
        job, own, began = part.job, part.job.options or JobOptions(), time.monotonic()
        prompt = asked_of(job, self.profile)
        check = partial(self._refuse, job.path, prompt) if self._refuse is not None else None
        clip = _read_clip(self._files, reader, self._video, job, check)
        reread = None
        if not (self.spec.baseline or self.spec.verify or questions_of(job, self.spec)):  # these reuse frames
            reread = partial(_read_again, self.spec, self.profile.video.stall, self._video, job)
        part.request = CaptionRequest(
            job.path,
            clip,
            prompt,
            own.system,
            job.start,
            job.end,
            spent=time.monotonic() - began,
            earlier=own.earlier,
            reread=reread,
            generate=own.generate,
        )
        if clip is None:
            return 0
        size = clip.nbytes
        if self._prepare is not None:
            with suppress(Exception):
                size += self._prepare(clip)
        return size


def _read_again(spec: RunSpec, stall: float, video: Mapping[str, object], job: Job) -> Clip:
    from vidspec.runs.reader import ClipReader

    files, reader = ClipOpener(fetch_limits(spec)), ClipReader(spec.timeout, stall)
    with closing(files), closing(reader):
        return _read_clip(files, reader, video, job)


def _read_clip(
    files: ClipOpener,
    reader: ClipReader,
    video: Mapping[str, object],
    job: Job,
    check: CheckFrameCount | None = None,
) -> Clip:
    """Return the frames of a clip; one of a shard has its own name, not that of the file it was copied to."""
    with files.local(job) as file:
        own = {} if job.options is None else job.options.video
        clip = reader.read(file, job.start, job.end, {**video, **own}, check)
    if job.source is None or clip is None:
        return clip
    return replace(clip, facts=replace(clip.facts, path=job.path))
