"""Process that reads clips for another process. Loads no model.

It sends one message when it is ready, then answers a :class:`ReadRequest` with the clip, a :class:`CutRequest` with the
segments, a :class:`WriteRequest` when the segment is written, or any with an error. Frames are decoded into shared
memory. Packets and frames that are read count as heartbeats.

Before the answer it may send :class:`PlannedFrames`, if the request sets ``check``, or :class:`LargePictures`, before
pictures of more than :data:`LARGE` pixels are decoded; it goes on with True and gives the request up with False.

The memory that a decoder needs for a file is unknown beforehand: the process limits itself to :data:`MOST_MEMORY`
above its use when ready. A file that needs more gives an error or ends this process, but never harms the machine.
"""

from __future__ import annotations

import gc
import math
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from vidspec import garbage, memory
from vidspec.channel import Channel, SharedBlock, has_no_descriptor
from vidspec.errors import DescriptorError, VidspecError
from vidspec.video.progress import steps

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from vidspec.video.base import Clip
    from vidspec.video.cutting import CutKind

__all__ = [
    "LARGE",
    "MOST_MEMORY",
    "CutRequest",
    "LargePictures",
    "PlannedFrames",
    "ReadRequest",
    "WriteRequest",
    "read_clips",
]

#: Pixels of a picture above which readers take turns: about 2560 x 1600.
LARGE = 1 << 22

#: Bytes for decoding: eight copies of a 10-bit 8K picture, and frames in unshared memory.
MOST_MEMORY = 5 << 28


class ReadRequest(NamedTuple):
    """Read a clip with the options ``video`` of ``vidspec.video.read``."""

    path: str
    start: float | None
    end: float | None
    video: Mapping[str, Any]
    check: bool


class CutRequest(NamedTuple):
    """Cut a clip, as ``vidspec.runs.segments.cut_clip`` does."""

    path: str
    segment: float | str
    start: float | None
    end: float | None


class WriteRequest(NamedTuple):
    """Write a segment to the file ``out``, as ``vidspec.video.cutting.write_part`` does."""

    path: str
    start: float
    end: float
    out: str
    allow_damaged: bool


class PlannedFrames(NamedTuple):
    """Number and size of the frames that are about to be decoded."""

    frames: int
    height: int
    width: int


class LargePictures(NamedTuple):
    """Size of the pictures that are about to be decoded."""

    pixels: int


#: Answer to a request.
ReadAnswer: TypeAlias = "Clip | list[tuple[float, float]] | CutKind | Exception"


def read_clips(channel: Channel) -> None:
    """Run the process."""
    with garbage.loading():
        import vidspec.runs.segments
        import vidspec.video.decode_av
        import vidspec.video.reading  # noqa: F401  needed by every request

    memory.limit_memory(MOST_MEMORY)
    channel.send("ready")
    channel.send_heartbeats(steps)
    while True:
        with suppress(_Stopped):
            channel.send(_answer(channel.receive(), channel))
        gc.collect()  # containers of FFmpeg are in cycles; what was loaded is exempt
        memory.release_memory()


class _Stopped(Exception):
    """The parent rejected the planned work."""


def _answer(request: ReadRequest | CutRequest | WriteRequest, channel: Channel) -> ReadAnswer:
    from vidspec import video
    from vidspec.runs.segments import cut_clip
    from vidspec.video.reading import MOST_BYTES

    def confirm(plan: PlannedFrames | LargePictures) -> None:
        channel.send(plan)
        if not channel.receive():
            raise _Stopped

    def admit(pixels: int) -> None:
        if pixels > LARGE:
            confirm(LargePictures(pixels))

    try:
        if isinstance(request, CutRequest):
            return cut_clip(*request)
        if isinstance(request, WriteRequest):
            from vidspec.video.cutting import write_part

            return write_part(*request[:-1], allow_damaged=request.allow_damaged)
        path, start, end, options, checked = request
        check = (lambda *shape: confirm(PlannedFrames(*shape))) if checked else None
        return video.read(
            path, start=start, end=end, **options, most_bytes=MOST_BYTES, check=check, admit=admit, allocate=_allocate
        )
    except VidspecError as error:
        return error
    except _Stopped:
        raise
    except Exception as error:  # a bug; its own class may not be known to the parent
        if has_no_descriptor(error):
            return DescriptorError.of_clip(request.path)
        return RuntimeError(f"{type(error).__name__}: {error}")


def _allocate(shape: tuple[int, ...]) -> NDArray[np.uint8]:
    """Return an array in shared memory, if the system has it."""
    import numpy as np

    block = SharedBlock.create(math.prod(shape))
    return np.empty(shape, np.uint8) if block is None else np.frombuffer(block, np.uint8).reshape(shape)
