"""Process that reads clips for another process: ``python -m vidspec.dataset.read_worker``. Loads no model.

It sends one byte when it is ready. Requests are JSON lines on standard input. An answer is the length of a header
(8 bytes, big endian), the header as JSON, and for frames the bytes of their timestamps and of their sound. Frames are
decoded into shared memory, file descriptor ``memory`` of this process, which stays open until ``go`` confirms that the
parent has mapped it; on systems without such memory the bytes of the frames come before the others.

During a request, headers ``alive`` report that packets or frames were read since the previous one.

If a request sets ``check``, the first header is ``planned`` (number, height and width of the frames), and the process
waits for ``go`` or ``stop``. It also waits after a header ``pixels``, sent before pictures of more than :data:`LARGE`
pixels are decoded. The process exits as soon as its standard input closes, so it never outlives its run.

The memory that a decoder needs for a file is unknown beforehand: the process limits itself to :data:`MOST_MEMORY`
above its use when ready. A file that needs more gives an error or ends this process, but never harms the machine.
"""

from __future__ import annotations

import json
import math
import mmap
import os
import queue
import sys
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any, BinaryIO

from vidspec import memory
from vidspec.video.progress import steps

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = ["LARGE", "MOST_MEMORY", "main"]

#: Pixels of a picture above which readers take turns: about 2560 x 1600.
LARGE = 1 << 22

#: Bytes for decoding: eight copies of a 10-bit 8K picture, and frames in unshared memory.
MOST_MEMORY = 5 << 28

#: Seconds between reports of progress.
REPORT_S = 0.2


def main() -> None:
    """Serve requests until standard input ends."""
    # Libraries that print must not corrupt the answers: redirect them to standard error.
    answers = _Answers(os.fdopen(os.dup(1), "wb"))
    os.dup2(2, 1)
    import vidspec.dataset.segments
    import vidspec.video.reading  # noqa: F401  needed by every request

    memory.limit_memory(MOST_MEMORY)
    answers.ready()
    requests: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=_read_requests, args=(sys.stdin.buffer, requests), daemon=True).start()
    while True:
        with suppress(_Stopped):
            request = json.loads(requests.get())
            answers.begin()
            _handle_request(request, requests, answers)


class _Answers:
    """Writes answers to the parent process, and progress reports from a thread."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._lock = threading.Condition()
        self._reporting = False

    def ready(self) -> None:
        """Signal that requests can be sent."""
        self._file.write(b"!")
        self._file.flush()
        threading.Thread(target=self._report_progress, daemon=True).start()

    def begin(self) -> None:
        """Report progress until the last answer to this request."""
        with self._lock:
            self._reporting = True
            self._lock.notify_all()

    def write(self, header: dict[str, Any], payload: tuple[Any, ...] = (), *, last: bool = False) -> None:
        """Write an answer; no report comes after the ``last`` one."""
        with self._lock:
            self._reporting = self._reporting and not last
            self._write_header(header)
            for array in payload:
                self._file.write(memoryview(array).cast("B"))
            self._file.flush()

    def _write_header(self, header: dict[str, Any]) -> None:
        text = json.dumps(header).encode()
        self._file.write(len(text).to_bytes(8, "big") + text)

    def _report_progress(self) -> None:
        reported = 0
        with self._lock, suppress(BrokenPipeError):  # the parent is gone; this process is about to end
            while True:
                self._lock.wait_for(lambda: self._reporting)
                now = steps()
                if now != reported:
                    reported = now
                    self._write_header({"alive": True})
                    self._file.flush()
                self._lock.wait(REPORT_S)


class _Stopped(Exception):
    """The parent rejected the planned work."""


def _read_requests(source: BinaryIO, requests: queue.SimpleQueue[bytes]) -> None:
    for line in source:
        requests.put(line)
    os._exit(0)


def _handle_request(request: dict[str, Any], requests: queue.SimpleQueue[bytes], answers: _Answers) -> None:
    from dataclasses import asdict

    import numpy as np

    from vidspec import video
    from vidspec.dataset.segments import cut_clip
    from vidspec.errors import VidspecError
    from vidspec.video.reading import MOST_BYTES

    def confirm(**header: Any) -> None:
        answers.write(header)
        if json.loads(requests.get())["op"] != "go":
            raise _Stopped

    def planned(frames: int, height: int, width: int) -> None:
        confirm(planned=(frames, height, width))

    def admit(pixels: int) -> None:
        if pixels > LARGE:
            confirm(pixels=pixels)

    payload: tuple[Any, ...] = ()
    shared: list[_Shared] = []

    def allocate(shape: tuple[int, ...]) -> NDArray[np.uint8]:
        shared[:] = [_Shared(shape)]
        return shared[0].array

    try:
        if request.pop("op") == "segments":
            header: dict[str, Any] = {"segments": cut_clip(**request)}
        else:
            check = planned if request.pop("check") else None
            allocator = allocate if hasattr(os, "memfd_create") else None
            clip = video.read(**request, most_bytes=MOST_BYTES, check=check, admit=admit, allocate=allocator)
            samples = None if clip.sound is None else len(clip.sound)
            descriptor = next((one.file.fileno() for one in shared if one.array is clip.frames), None)
            header = {"shape": clip.frames.shape, "samples": samples, "facts": asdict(clip.facts), "memory": descriptor}
            payload = () if descriptor is not None else (clip.frames,)
            payload += (np.ascontiguousarray(clip.timestamps), *(() if clip.sound is None else (clip.sound,)))
    except VidspecError as error:
        fields = {"message": error.message, "hint": error.hint, "kind": error.kind, "stage": error.stage}
        header = {"error": fields, "class": type(error).__name__}
    except _Stopped:
        raise
    except Exception as error:  # a bug, marked by a null class
        header = {"error": {"message": f"{type(error).__name__}: {error}"}, "class": None}
    answers.write(header, payload, last=True)
    if header.get("memory") is not None:
        requests.get()


class _Shared:
    """A byte array in shared memory, and the memory's file, which lives as long as this object."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        import numpy as np

        self.file = os.fdopen(os.memfd_create("vidspec frames"), "r+b")
        self.file.truncate(math.prod(shape))
        self.array = np.frombuffer(mmap.mmap(self.file.fileno(), math.prod(shape)), np.uint8).reshape(shape)


if __name__ == "__main__":
    try:
        main()
    except BrokenPipeError:  # the parent is gone
        os._exit(0)
