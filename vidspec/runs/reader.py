"""Read clips in another process, which can be killed when it hangs and replaced when it dies."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, cast

from vidspec.bounds import STALL
from vidspec.errors import DescriptorError, VideoError
from vidspec.process import Child, ChildEnded, spawn
from vidspec.runs.read_worker import (
    MOST_MEMORY,
    CutRequest,
    LargePictures,
    PlannedFrames,
    ReadRequest,
    WriteRequest,
    read_clips,
)

if TYPE_CHECKING:
    from vidspec.video.base import Clip
    from vidspec.video.cutting import CutKind
    from vidspec.video.reading import CheckFrameCount

__all__ = ["ClipReader"]

#: Attempts to start the process for a clip: one that dies during start has not read the clip.
STARTS = 2
#: Bytes per pixel for decoding a picture: several reference pictures, and two or three RGB copies.
PIXEL_BYTES = 32


class MemoryBudget:
    """Memory budget for large pictures, shared by this process's readers; a request above the total runs alone."""

    def __init__(self, most: int) -> None:
        self.most, self.taken = most, 0
        self._changed = threading.Condition()

    @contextmanager
    def share(self) -> Iterator[Callable[[int], None]]:
        """Provide a function that reserves bytes, once, blocking until they are free; released on exit."""
        taken_here = 0

        def take(size: int) -> None:
            nonlocal taken_here
            with self._changed:
                if not taken_here:
                    self._changed.wait_for(lambda: not self.taken or self.taken + size <= self.most)
                    taken_here = size
                    self.taken += size

        try:
            yield take
        finally:
            with self._changed:
                self.taken -= taken_here
                self._changed.notify_all()


_BUDGET = MemoryBudget(MOST_MEMORY)


class _Planned(Exception):
    """The frames of a clip are known and not wanted."""


class ClipReader:
    """Reader process for one clip at a time; started by :meth:`start`, or with the first clip.

    Its memory is limited (see ``vidspec.runs.read_worker``), and frames are scaled down to fit
    ``vidspec.video.reading.MOST_BYTES``.

    Args:
        timeout: seconds per request after which the process is killed; None for no limit.
        stall: seconds without a packet or frame after which the process is killed.
        most_pixels: pixels of a picture above which a file is refused; None for what fits into memory.
    """

    def __init__(self, timeout: float | None = None, stall: float = STALL, most_pixels: int | None = None) -> None:
        self.timeout, self.stall, self.most_pixels = timeout, stall, most_pixels
        self._child: Child | None = None
        self._closed = self._interrupted = False
        self._ready = False
        self._start_lock = threading.RLock()

    def start(self) -> Child:
        """Start the process, unless it runs, without waiting until it is ready; return it."""
        with self._start_lock:
            if self._closed:
                raise RuntimeError("the reader is closed")
            if self._child is None:
                self._ready = False
                self._child = spawn(read_clips, name="vidspec reader")
            return self._child

    def read(
        self,
        path: str,
        start: float | None,
        end: float | None,
        video: Mapping[str, Any],
        check: CheckFrameCount | None = None,
    ) -> Clip:
        """Read a clip as ``vidspec.video.read`` does.

        Raises:
            VideoError: as there; also of kind ``timeout`` or ``stalled``, and ``crashed`` if the process died of the
                clip or could not start.
            Exception: any exception of ``check``.
        """
        deadline = self._deadline(path)
        with _BUDGET.share() as take:
            answer = self._ask(path, ReadRequest(path, start, end, video, check is not None), deadline)
            while isinstance(answer, (PlannedFrames, LargePictures)):
                try:
                    if isinstance(answer, LargePictures):
                        if self.most_pixels is not None and answer.pixels > self.most_pixels:
                            raise VideoError(
                                f"{path}: has pictures of {answer.pixels} pixels, more than {self.most_pixels}",
                                kind="too_large",
                            )
                        began = time.monotonic()
                        take(answer.pixels * PIXEL_BYTES)
                        deadline += time.monotonic() - began
                    elif check is not None:
                        check(*answer)
                except BaseException:
                    with suppress(VideoError):
                        self._send(path, False)
                    raise
                answer = self._ask(path, True, deadline)
        return cast("Clip", answer)

    def require_frames(self, path: str, start: float | None, end: float | None, video: Mapping[str, Any]) -> None:
        """Refuse a file as :meth:`read` does, as far as can be told before frames are decoded."""

        def stop(frames: int, height: int, width: int) -> None:
            raise _Planned

        with suppress(_Planned):
            self.read(path, start, end, video, stop)

    def segments(
        self, path: str, segment: float | str, start: float | None, end: float | None
    ) -> list[tuple[float, float]]:
        """Cut a clip as ``vidspec.runs.segments.cut_clip`` does; raises as :meth:`read` does."""
        answer = self._ask(path, CutRequest(path, segment, start, end), self._deadline(path))
        return cast("list[tuple[float, float]]", answer)

    def write_segment(self, path: str, start: float, end: float, out: str, *, allow_damaged: bool) -> CutKind:
        """Write a segment to the file ``out`` as ``write_part`` does; raises as that and :meth:`read` do."""
        answer = self._ask(path, WriteRequest(path, start, end, out, allow_damaged), self._deadline(path))
        return cast("CutKind", answer)

    def interrupt(self) -> None:
        """End the request that another thread waits for, as if the process had crashed; call :meth:`restart` then."""
        self._interrupted = True
        if (child := self._child) is not None:
            child.kill()

    def restart(self) -> None:
        """Start a new process after :meth:`interrupt`, without waiting for it."""
        with self._start_lock:
            self._interrupted = False
            self._drop()
            self.start()

    def close(self) -> None:
        """Kill the process; a pending request fails."""
        self._closed = True
        if (child := self._child) is not None:
            child.kill()  # unblocks a thread that waits for its start
        with self._start_lock:  # otherwise a process started now would leak
            self._drop()

    def _deadline(self, path: str) -> float:
        """Return the deadline of a request that begins now, once the process has started."""
        self._ready_child(path)
        return math.inf if self.timeout is None else time.monotonic() + self.timeout

    def _send(self, path: str, message: object) -> Child:
        child = self._ready_child(path)
        try:
            child.send(message)
        except ChildEnded as ended:
            raise self._crash(path, ended) from None
        return child

    def _ask(self, path: str, message: object, deadline: float) -> object:
        """Send a message and return the answer; a process that gives none in time is killed."""
        child = self._send(path, message)
        try:
            answer = child.receive(deadline, self.stall)
        except ChildEnded as ended:
            raise self._crash(path, ended) from None
        except DescriptorError:
            raise DescriptorError.of_clip(path) from None
        except TimeoutError:
            late = time.monotonic() >= deadline
            self._drop()
            if late:
                problem, kind, hint = f"not read within {self.timeout:g} s", "timeout", "raise --timeout"
            else:
                problem = f"no packet and no frame came for {self.stall:g} s"
                kind, hint = "stalled", "raise --stall if the storage is slow"
            raise VideoError(f"{path}: {problem}", kind=kind, hint=hint) from None
        if isinstance(answer, Exception):
            try:
                raise answer
            finally:
                del answer  # its traceback refers to this frame: a cycle that keeps the caller's objects
        return answer

    def _crash(self, path: str, ended: ChildEnded) -> VideoError:
        """Forget the dead process, so that the next clip gets a new one, and return the error of this one."""
        self._drop()
        return VideoError(
            f"{path}: the process that read it ended ({ended.reason})",
            kind="crashed",
            hint="the file may be damaged; ffmpeg -i IN OUT rewrites it",
        )

    def _ready_child(self, path: str) -> Child:
        """Return the process, started and ready; its start does not count towards a clip's time."""
        reason = ""
        with self._start_lock:
            for _ in range(STARTS):
                try:
                    child = self.start()
                    if not self._ready:
                        child.receive()
                    self._ready = True
                    return child
                except ChildEnded as ended:
                    reason = ended.reason
                    self._drop()
                    if self._interrupted:
                        break
                except DescriptorError:
                    raise DescriptorError.of_clip(path) from None
        raise VideoError(
            f"{path}: the process that reads clips ended ({reason}) while it started, {STARTS} times",
            kind="crashed",
            hint="there may be too little memory; its messages are above",
        )

    def _drop(self) -> None:
        """End the process."""
        child, self._child = self._child, None
        if child is not None:
            child.end()
