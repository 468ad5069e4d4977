"""Folders of numbered frames, which rows of manifests name: each is a clip, read as a video without being encoded."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterable, Iterator
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, cast

from vidspec.errors import UsageError, VideoError
from vidspec.runs.allowance import Allowance
from vidspec.runs.job import Job, MemberSource
from vidspec.runs.sources.base import Source, sources

if TYPE_CHECKING:
    from av.video.stream import VideoStream

__all__ = ["FRAME_RATE", "FrameFolder", "frame_folder", "write_frames"]

#: Frames per second of a folder whose row has no ``fps``: FFmpeg's for numbered images.
FRAME_RATE = 25.0
#: FFmpeg's codecs of pictures by their first bytes, and a format of pixels that a stream of them may declare.
_KINDS = {b"\xff\xd8\xff": ("mjpeg", "yuvj420p"), b"\x89PNG": ("png", "rgb24")}
_SUFFIXES = (".jpg", ".jpeg", ".png")


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
        frames = [Path(job.path, name) for name in sorted(os.listdir(job.path), key=_numbers) if name[0] != "."]
        frames = [one for one in frames if one.suffix.lower() in _SUFFIXES and one.is_file()]  # a pipe may block
        allowance, rate = Allowance(job.path, self.limits), _frame_rate(job.columns.get("fps"), job.path)

        def contents() -> Iterator[tuple[str, bytes]]:
            for one in frames:
                allowance.take(one.stat().st_size)
                yield one.name, one.read_bytes()

        file = os.path.join(folder, "clip.nut")
        try:
            write_frames(file, contents(), rate, job.path)
        except OSError as error:
            raise VideoError(f"{job.path}: cannot be read: {error}", kind="unreadable") from None
        return file


def write_frames(file: str, frames: Iterable[tuple[str, bytes]], rate: Fraction, path: str) -> None:
    """Write pictures as the frames of a video, as they are.

    Args:
        file: the video, in NUT.
        frames: name and content of each picture: all of them JPEG, or all PNG.
        rate: frames per second.
        path: the clip, for messages.

    Raises:
        VideoError: there is none, or one is of another kind.
    """
    import av

    stream: VideoStream | None = None
    with av.open(file, "w", format="nut") as container:
        for number, (name, content) in enumerate(frames):
            found = next((one for head, one in _KINDS.items() if content.startswith(head)), None)
            if found is None or (stream is not None and stream.codec.name != found[0]):
                hint = "frames are all JPEG or all PNG, such as 0001.png"
                raise VideoError(f"{path}: {name} is not a picture like the others", kind="not_video", hint=hint)
            if stream is None:
                stream = cast("VideoStream", container.add_stream(found[0], rate=rate))
                stream.width, stream.height, stream.pix_fmt = 16, 16, found[1]  # decoders take those of the frames
            packet = av.Packet(content)
            packet.stream, packet.time_base = stream, 1 / rate
            packet.pts = packet.dts = number
            packet.duration, packet.is_keyframe = 1, True
            container.mux(packet)
        if stream is None:
            hint = "frames are numbered files such as 0001.png"
            raise VideoError(f"{path}: is a folder without JPEG or PNG files", kind="not_video", hint=hint)


def _numbers(name: str) -> list[tuple[int, str]]:
    """Return the key that sorts names by the numbers in them."""
    texts = re.split(r"(\d+)", name)
    return [(int(one), "") if place % 2 else (0, one) for place, one in enumerate(texts)]
