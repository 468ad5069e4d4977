"""Folders of numbered frames, which rows of manifests name: each is a clip, read as a video without being encoded."""

from __future__ import annotations

import math
import os
import re
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, cast

from vidspec.errors import UsageError, VideoError
from vidspec.runs.allowance import Allowance
from vidspec.runs.job import Job, MemberSource
from vidspec.runs.sources.base import Source, sources

if TYPE_CHECKING:
    from av.video.stream import VideoStream

__all__ = ["FRAME_RATE", "FrameFolder", "frame_folder"]

#: Frames per second of a folder whose row has no ``fps``: FFmpeg's for numbered images.
FRAME_RATE = 25.0
#: FFmpeg's codecs of frames by suffix, and the pixels that a stream of them declares; decoders take those of the file.
_CODECS = {".jpg": ("mjpeg", "yuvj420p"), ".jpeg": ("mjpeg", "yuvj420p"), ".png": ("png", "rgb24")}


def frame_folder(path: str, fps: object, where: str) -> MemberSource | None:
    """Return the source of a clip whose path is a folder; None for any other path.

    Args:
        path: the clip's path.
        fps: the row's column ``fps``.
        where: the row, for messages.

    Raises:
        UsageError: ``fps`` is no number of frames per second.
    """
    if not os.path.isdir(path):
        return None
    _frame_rate(fps, where)
    about = os.stat(path)
    return MemberSource(path, 0, about.st_size, about.st_mtime_ns, kind="frames")


def _frame_rate(fps: object, where: str) -> Fraction:
    try:
        rate = FRAME_RATE if fps in (None, "") or isinstance(fps, bool) else float(str(fps))
    except ValueError:
        rate = math.nan
    if not 0 < rate <= 1000:
        raise UsageError(f"{where}: fps {fps!r}: must be frames per second, above 0 and at most 1000")
    return Fraction(rate).limit_denominator(1001)


@sources.register("frames")
class FrameFolder(Source):
    """The JPEG or PNG files of a folder in the order of the numbers in their names."""

    def open(self, job: Job, folder: str) -> str:
        names = sorted((name for name in os.listdir(job.path) if name[0] != "."), key=_numbers)
        frames = [Path(job.path, name) for name in names]
        frames = [one for one in frames if one.suffix.lower() in _CODECS and one.is_file()]  # reading a pipe may block
        kinds = {_CODECS[one.suffix.lower()] for one in frames}
        if len(kinds) != 1:
            what = "holds JPEG and PNG files" if kinds else "is a folder without JPEG or PNG files"
            hint = "frames are numbered files of one kind, such as 0001.png"
            raise VideoError(f"{job.path}: {what}", kind="not_video", hint=hint)
        rate, file = _frame_rate(job.columns.get("fps"), job.path), os.path.join(folder, "clip.nut")
        allowance = Allowance(job.path, self.limits)
        _write_stream(file, frames, *kinds.pop(), rate, allowance)
        return file


def _write_stream(file: str, frames: list[Path], codec: str, pixels: str, rate: Fraction, allowance: Allowance) -> None:
    """Write the frames as the packets of a video, as they are."""
    import av

    with av.open(file, "w", format="nut") as container:
        stream = cast("VideoStream", container.add_stream(codec, rate=rate))
        stream.width, stream.height, stream.pix_fmt = 16, 16, pixels
        for number, frame in enumerate(frames):
            try:
                allowance.take(frame.stat().st_size)
                packet = av.Packet(frame.read_bytes())
            except OSError as error:
                raise VideoError(f"{frame}: cannot be read: {error.strerror}", kind="unreadable") from None
            packet.stream, packet.time_base = stream, 1 / rate
            packet.pts = packet.dts = number
            packet.duration, packet.is_keyframe = 1, True
            container.mux(packet)


def _numbers(name: str) -> list[tuple[int, str]]:
    """Return the key that sorts names by the numbers in them."""
    texts = re.split(r"(\d+)", name)
    return [(int(one), "") if place % 2 else (0, one) for place, one in enumerate(texts)]
