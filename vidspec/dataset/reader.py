"""Read clips in another process, which can be killed when it hangs and replaced when it dies."""

from __future__ import annotations

import json
import math
import mmap
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from vidspec import errors
from vidspec.bounds import STALL
from vidspec.dataset.read_worker import MOST_MEMORY
from vidspec.errors import VideoError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from vidspec.video.base import Clip
    from vidspec.video.reading import CheckFrameCount

__all__ = ["ClipReader"]

#: Attempts to start the process for a clip: one that dies during start has not read the clip.
STARTS = 2
#: Seconds for a process to exit after its pipe is closed.
EXIT_SECONDS = 5.0
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


class ClipReader:
    """Reader process for one clip at a time; started by :meth:`start`, or with the first clip.

    Its memory is limited (see ``vidspec.dataset.read_worker``), and frames are scaled down to fit
    ``vidspec.video.reading.MOST_BYTES``.

    Args:
        timeout: seconds per request after which the process is killed; None for no limit.
        stall: seconds without a packet or frame after which the process is killed.
    """

    def __init__(self, timeout: float | None = None, stall: float = STALL) -> None:
        self.timeout, self.stall = timeout, stall
        self._process: subprocess.Popen[bytes] | None = None
        self._closed = False
        self._ready = False
        self._start_lock = threading.Lock()

    def start(self) -> None:
        """Start the process without waiting for it, so that it is ready when the first clip comes."""
        with self._start_lock:
            self._start()

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
        import numpy as np

        from vidspec.video import Clip, SourceFacts

        with _ReadDeadline(self, path) as limit, _BUDGET.share() as take:
            request = {"op": "read", "path": path, "start": start, "end": end, **video, "check": check is not None}
            header = self._request(request, limit)
            while "planned" in header or "pixels" in header:
                try:
                    if "pixels" in header:
                        with limit.paused():
                            take(header["pixels"] * PIXEL_BYTES)
                    elif check is not None:
                        check(*header["planned"])
                except BaseException:
                    self._send({"op": "stop"}, limit)
                    raise
                header = self._request({"op": "go"}, limit)
            frames = self._receive_frames(header["memory"], tuple(header["shape"]), limit)
            timestamps = np.empty(len(frames), np.float64)
            sound = None if header["samples"] is None else np.empty(header["samples"], np.float32)
            for array in (timestamps,) if sound is None else (timestamps, sound):
                self._read_into(array.data.cast("B"), limit)
        facts = {**header["facts"], "damage": tuple(header["facts"]["damage"])}  # JSON has no tuples
        return Clip(frames, timestamps, SourceFacts(**facts), sound)

    def segments(
        self, path: str, segment: float | str, start: float | None, end: float | None
    ) -> list[tuple[float, float]]:
        """Cut a clip as ``vidspec.dataset.segments.cut_clip`` does; raises as :meth:`read` does."""
        with _ReadDeadline(self, path) as limit:
            header = self._request(
                {"op": "segments", "path": path, "segment": segment, "start": start, "end": end}, limit
            )
        return [(low, high) for low, high in header["segments"]]

    def close(self) -> None:
        """Kill the process; a pending request fails."""
        self._closed = True
        process = self._process
        if process is not None:
            process.kill()  # unblocks a thread that waits for its start
        with self._start_lock:  # otherwise a process started now would leak
            self._kill()

    def _receive_frames(self, memory: int | None, shape: tuple[int, ...], limit: _ReadDeadline) -> NDArray[np.uint8]:
        """Return the decoded frames: mapped shared memory, or a copy if memory is not shared."""
        import numpy as np

        if memory is None:
            frames = np.empty(shape, np.uint8)
            self._read_into(frames.data.cast("B"), limit)
            return frames
        try:
            with open(f"/proc/{self._ready_process(limit.path).pid}/fd/{memory}", "r+b") as file:
                mapped = mmap.mmap(file.fileno(), math.prod(shape))
        except OSError:
            raise limit.failure() from None
        self._send({"op": "go"}, limit)
        return np.frombuffer(mapped, np.uint8).reshape(shape)

    def _send(self, request: Mapping[str, Any], limit: _ReadDeadline) -> None:
        process = self._ready_process(limit.path)
        assert process.stdin is not None
        try:
            process.stdin.write(json.dumps(request).encode() + b"\n")
            process.stdin.flush()
        except OSError:
            raise limit.failure() from None

    def _request(self, request: Mapping[str, Any], limit: _ReadDeadline) -> dict[str, Any]:
        self._send(request, limit)
        while (header := self._read_header(limit)).get("alive"):
            pass
        if "error" in header:
            if header["class"] is None:
                raise RuntimeError(header["error"]["message"])
            raise getattr(errors, header["class"])(**header["error"])
        return header

    def _read_header(self, limit: _ReadDeadline) -> dict[str, Any]:
        length = bytearray(8)
        self._read_into(memoryview(length), limit)
        text = bytearray(int.from_bytes(length, "big"))
        self._read_into(memoryview(text), limit)
        header: dict[str, Any] = json.loads(text)
        return header

    def _read_into(self, buffer: memoryview, limit: _ReadDeadline) -> None:
        source: Any = self._process and self._process.stdout
        at = 0
        with limit.listening() as note_alive:
            while at < len(buffer):
                count = source.readinto(buffer[at:]) if source else 0
                if not count:
                    raise limit.failure()
                note_alive()
                at += count

    def _ready_process(self, path: str) -> subprocess.Popen[bytes]:
        """Return the process, started and ready; its start does not count towards a clip's time."""
        code = None
        with self._start_lock:
            for _ in range(STARTS):
                process = self._start()
                if not self._ready:
                    self._ready = bool(process.stdout and process.stdout.read(1))
                if self._ready:
                    return process
                code = self._kill(EXIT_SECONDS)
        raise VideoError(
            f"{path}: the process that reads clips ended {_describe_exit(code)} while it started, {STARTS} times",
            kind="crashed",
            hint="there may be too little memory; its own messages stand above",
        )

    def _start(self) -> subprocess.Popen[bytes]:
        if self._closed:
            raise RuntimeError("the reader is closed")
        if self._process is None:
            self._ready = False
            self._process = subprocess.Popen(
                [sys.executable, "-m", "vidspec.dataset.read_worker"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                bufsize=0,
                start_new_session=True,  # Ctrl-C goes to the run, which stops this process
            )
        return self._process

    def _kill(self, patience: float = 0.0) -> int | None:
        """Kill the process if it does not exit within ``patience`` seconds; return its exit code if it did."""
        process, self._process = self._process, None
        if process is None:
            return None
        code: int | None = None
        try:
            code = process.wait(patience)
        except subprocess.TimeoutExpired:
            process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()
        return code


class _ReadDeadline:
    """Watchdog of one request: kills the process on timeout or stall, and gives the reason for a missing answer."""

    def __init__(self, reader: ClipReader, path: str) -> None:
        self.reader, self.path = reader, path
        self._seconds_left = math.inf if reader.timeout is None else reader.timeout
        self._began = 0.0
        self._last_alive = math.inf  # time of the last sign of life; inf while not listening
        self._error: VideoError | None = None
        self._done = threading.Event()

    def __enter__(self) -> _ReadDeadline:
        self._start_watch()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Stop the clock within the block."""
        self._done.set()
        self._seconds_left = max(0.0, self._seconds_left - (time.monotonic() - self._began))
        yield
        self._start_watch()

    @contextmanager
    def listening(self) -> Iterator[Callable[[], None]]:
        """Watch for stalls within the block; the given function records a sign of life."""

        def note_alive() -> None:
            self._last_alive = time.monotonic()

        note_alive()
        try:
            yield note_alive
        finally:
            self._last_alive = math.inf

    def _start_watch(self) -> None:
        process = self.reader._ready_process(self.path)
        self._began, self._done = time.monotonic(), threading.Event()
        threading.Thread(target=self._watch, args=(process, self._done), name="watch", daemon=True).start()

    def _watch(self, process: subprocess.Popen[bytes], done: threading.Event) -> None:
        timeout, stall = self.reader.timeout, self.reader.stall
        deadline = self._began + self._seconds_left
        while not done.is_set():
            now = time.monotonic()
            stall_deadline = self._last_alive + stall
            if now >= min(deadline, stall_deadline):
                if deadline <= stall_deadline:
                    failure = f"not read within {timeout:g} s", "timeout", "raise --timeout"
                else:
                    failure = f"no packet and no frame came for {stall:g} s", "stalled", "of slow storage raise --stall"
                message, kind, hint = failure
                self._error = VideoError(f"{self.path}: {message}", kind=kind, hint=hint)
                process.kill()
                return
            done.wait(min(deadline - now, stall_deadline - now, stall))

    def failure(self) -> VideoError:
        """Clean up the dead process, so that the next clip gets a new one, and return the error."""
        code = self.reader._kill(EXIT_SECONDS)
        return self._error or VideoError(
            f"{self.path}: the process that read it ended {_describe_exit(code)}",
            kind="crashed",
            hint="the file may be damaged; ffmpeg -i IN OUT writes it anew",
        )


def _describe_exit(code: int | None) -> str:
    """Describe an exit code, to follow "ended"."""
    return f"by {signal.Signals(-code).name}" if code is not None and code < 0 else f"with exit code {code}"
