"""Decodes with PyAV: seeks to each frame's keyframe and accepts a frame only by its own timestamp or count.

It conceals nothing: the decoder is told to fail on damage, and what depends on damaged data is not delivered. Changed
bits that leave a valid stream cannot be noticed: no codec here has checksums. docs/damage.md counts them.
"""

from __future__ import annotations

import os
from collections.abc import Generator, Iterator, Sequence
from contextlib import ExitStack, closing
from typing import Any, Literal, NamedTuple

import av
import numpy as np
from av.bitstream import BitStreamFilterContext

from vidspec.video.base import Frame, Index, NotDelivered
from vidspec.video.opening import accelerated, opened, packets_of, video_streams
from vidspec.video.payload import without_stuffing

__all__ = ["AvDecoder", "decode_all"]

# Up to so many frames onward, decoding on is cheaper than seeking.
_DECODE_ON = 8
# Each thread holds a frame of its own: together no more pixels than this, which is two of 8K.
_MOST_THREADS = 8
_MOST_PIXELS = 1 << 26


class Reading(NamedTuple):
    """A way to decode: by which decoder (None: the one FFmpeg prefers), with threads for frames or for slices; or by an
    NVIDIA GPU's.
    """

    decoder: str | None = None
    threads: Literal["FRAME", "SLICE"] = "FRAME"
    hardware: bool = False


_PLAIN = Reading()

#: How streams are read of which FFmpeg's own decoder takes nearly any bits for a picture. libvpx notices where VP9's
#: data end too early or too late. Where x265 coded rows apart, threads for slices begin each where it must begin, and
#: one after the other where the last has ended: after damage the two part, as do two decoders of VP8 or VP9.
_READINGS = {
    "vp9": (Reading("libvpx-vp9"), Reading()),
    "vp8": (Reading(), Reading("libvpx")),
    "hevc": (Reading(), Reading(threads="SLICE")),
}


class AvDecoder:
    """The PyAV decoder; see ``base.Decoder``. ``allow_damaged``: what cannot be delivered exactly is left out."""

    name = "av"

    def __init__(self, *, allow_damaged: bool = False) -> None:
        self.allow_damaged = allow_damaged

    def readings(self, index: Index) -> tuple[Reading, ...]:
        """The ways whose pictures must agree; only the first where damage is allowed."""
        return _READINGS.get(index.codec, (Reading(),))

    def frames(self, index: Index, wanted: Sequence[int]) -> Iterator[tuple[int, Frame]]:
        """Yields (position, upright frame) for each of ``wanted`` (increasing positions in ``index``).

        Raises NotDelivered at the first frame that cannot be decoded exactly, VideoError if the file is gone.
        """
        for position, picture in self.pictures(index, wanted):
            yield position, upright(index, picture)

    def pictures(self, index: Index, wanted: Sequence[int]) -> Generator[tuple[int, Any], None, None]:
        """As ``frames``, but pictures as they leave the decoder: cheap where only their being whole matters."""
        by = _by_count if index.order == "count" else _by_pts
        readings = self.readings(index)
        if self.allow_damaged:
            yield from by(index, wanted, readings[0], allow_damaged=True)
            return
        with ExitStack() as stack:
            first, *others = (stack.enter_context(closing(by(index, wanted, reading))) for reading in readings)
            for position, picture in first:
                for other in others:
                    if not _identical(picture, next(other, (position, None))[1]):
                        raise NotDelivered("its data are damaged", damaged=True, position=position)
                yield position, picture


def upright(index: Index, picture: Any) -> Frame:
    """A decoded picture as RGB of the index's size (streams may change theirs on the way)."""
    width, height = index.turn.size(index.width, index.height)
    return np.ascontiguousarray(index.turn.apply(picture.to_ndarray(format="rgb24", width=width, height=height)))


def _identical(one: Any, other: Any) -> bool:
    """Whether two pictures have the same bytes, apart from the padding of their rows and from transparency.

    Only libvpx decodes the transparency (``yuva420p``) that WebM carries beside the pictures.
    """
    if other is None or one.format.name.replace("yuva", "yuv") != other.format.name.replace("yuva", "yuv"):
        return False
    for ours, theirs in zip(one.planes[:3], other.planes[:3], strict=True):
        if (ours.width, ours.height) != (theirs.width, theirs.height):
            return False
        rows = [np.frombuffer(p, np.uint8).reshape(p.height, -1) for p in (ours, theirs)]
        used = min(ours.width * _sample_bytes(one), *(row.shape[1] for row in rows))
        if not np.array_equal(rows[0][:, :used], rows[1][:, :used]):
            return False
    return True


def _sample_bytes(picture: Any) -> int:
    return 2 if picture.format.components[0].bits > 8 else 1


def decode_all(
    container: av.container.InputContainer,
    stream: Any,
    *,
    first_pts: int | None = None,
    reading: Reading = _PLAIN,
    careful: bool = False,
) -> Iterator[Any]:
    """Every picture from here on, in presentation order; None stands where data is damaged.

    After damage, pictures resume at the next keyframe, without those that lead it. ``first_pts``: pictures before it
    are dropped too (they depend on what was before the seek). ``careful``: with one thread, which loses none of the
    pictures before the damage; several notice it late, and what is inside the decoder then may depend on it.
    """
    codec = _decoder(stream, reading, careful)
    split = BitStreamFilterContext("vp9_superframe_split", stream) if codec.name == "libvpx-vp9" else None
    floor, waiting = first_pts, False
    packets = packets_of(container, stream)
    while True:
        try:
            packet = next(packets, None)
        except (av.error.FFmpegError, OSError):  # reading failed, which ends the file here
            yield from (picture for picture in _drain(codec, careful) if not waiting and _from(picture, floor))
            yield None
            return
        if packet is None:
            return
        if not packet.size and packet.dts is not None:
            continue  # AVI's way to repeat a frame; the decoder would take it for the end
        if waiting:
            if not packet.is_keyframe or packet.is_corrupt or packet.pts is None:
                continue
            waiting, floor = False, packet.pts
            codec.flush_buffers()
        broken = bool(packet.is_corrupt and packet.size)
        pictures: list[Any] = []
        if not broken:
            try:
                pictures = [picture for part in _parts(packet, codec.name, split) for picture in codec.decode(part)]
            except MemoryError:
                raise
            except av.error.FFmpegError:
                broken = True
        if broken:
            pictures = [p for p in _drain(codec, careful) if p.pts != packet.pts]
        for picture in pictures:
            if picture.is_corrupt:  # what follows may depend on it
                broken = True
                break
            if _from(picture, floor):
                yield picture
        if broken:
            waiting = True
            yield None


def _decoder(stream: Any, reading: Reading, careful: bool) -> Any:
    """The codec context that decodes ``stream`` so, told to fail on damage rather than to conceal it."""
    codec = stream.codec_context
    if reading.hardware and not accelerated(codec):
        raise NotDelivered(f"{codec.name} is not among what it decodes")
    pixels = max(1, codec.width * codec.height)
    if reading.decoder is not None and codec.pix_fmt == "yuv420p":
        codec = av.CodecContext.create(reading.decoder, "r")
    if not codec.is_open:
        codec.options = {**codec.options, "err_detect": "crccheck+bitstream+buffer+explode"}
        codec.thread_type = reading.threads
        # libvpx with several threads does not look where each tile's data end.
        alone = reading.hardware or reading.decoder == "libvpx-vp9" or (careful and reading.threads == "FRAME")
        most = _MOST_PIXELS // pixels if reading.threads == "FRAME" else _MOST_THREADS  # slices share one frame
        threads = min(max(2, os.cpu_count() or 1), _MOST_THREADS, most)
        codec.thread_count = 1 if alone else max(1, threads)
    return codec


def _parts(packet: Any, codec: str, split: BitStreamFilterContext | None) -> list[Any]:
    """What the decoder is given for ``packet``: no stuffing; each picture of a VP9 superframe, which ``split`` parts.

    libvpx looks where a picture's data end only if that is where the packet ends.
    """
    if not packet.size:
        return [None]
    if split is not None:
        return split.filter(packet)
    if codec in ("mpeg1video", "mpeg2video", "mpeg4"):
        data = bytes(packet)
        bare = without_stuffing(data, codec)
        if len(bare) < len(data):
            return [_rewritten(packet, bare)] if bare else []
    return [packet]


def _rewritten(packet: Any, data: bytes) -> Any:
    """A packet of ``data`` with the times of another."""
    made = av.Packet(data)
    made.pts, made.dts, made.time_base = packet.pts, packet.dts, packet.time_base
    return made


def _from(picture: Any, floor: int | None) -> bool:
    """Whether a picture is not before ``floor``."""
    return floor is None or picture.pts is None or bool(picture.pts >= floor)


def _drain(codec: Any, careful: bool) -> list[Any]:
    """The pictures still inside the decoder that are known to be from before the damage."""
    try:
        if not careful:
            return []
        return list(codec.decode(None))
    except av.error.FFmpegError:
        return []


def _by_count(
    index: Index, wanted: Sequence[int], reading: Reading, *, allow_damaged: bool = False
) -> Generator[tuple[int, Any], None, None]:
    left = list(wanted)
    with opened(index.path, hardware=reading.hardware) as container:
        for position, picture in enumerate(decode_all(container, video_streams(container)[0], reading=reading)):
            if picture is None:
                break
            given = Index.NO_PTS if picture.pts is None else picture.pts
            if position >= len(index) or given != index.raw[position]:
                raise NotDelivered("it decodes differently each time", position=left[0])
            if position == left[0]:
                yield left.pop(0), picture
                if not left:
                    return
    if not allow_damaged:
        raise NotDelivered("its data are damaged", damaged=True, position=left[0])


def _by_pts(
    index: Index, wanted: Sequence[int], reading: Reading, *, allow_damaged: bool = False
) -> Generator[tuple[int, Any], None, None]:
    """Seeks from run to run; where a seek does not deliver, one pass from the start over all that is left."""
    left = list(wanted)
    with opened(index.path, hardware=reading.hardware) as container:
        stream = video_streams(container)[0]
        for run in _runs(index, wanted):
            key = int(np.searchsorted(index.key_pts, index.pts[run[0]], side="right")) - 1
            if not _seek(container, stream, index, key):
                break
            for position, picture in _matched(index, run, container, stream, reading, int(index.key_pts[key])):
                yield position, picture
                left.pop(0)
            if left and left[0] <= run[-1]:
                break
    if not left:
        return
    damage: list[bool] = []
    while left:
        with opened(index.path, hardware=reading.hardware) as container:
            stream = video_streams(container)[0]
            for position, picture in _matched(index, left, container, stream, reading, None, damage):
                yield position, picture
                left = left[1:]
        if left and not allow_damaged:
            raise NotDelivered("its data are damaged", damaged=any(damage), position=left[0])
        left = left[1:]


def _matched(
    index: Index,
    wanted: Sequence[int],
    container: Any,
    stream: Any,
    reading: Reading,
    first_pts: int | None,
    damage: list[bool] | None = None,
) -> Iterator[tuple[int, Any]]:
    """Decodes on until all of ``wanted`` came, in order, or one was passed by. Notes damage, or stops at it."""
    left = list(wanted)
    careful = damage is not None
    for picture in decode_all(container, stream, first_pts=first_pts, reading=reading, careful=careful):
        if picture is None:
            if damage is None:
                return
            damage.append(True)
            continue
        if picture.pts is None:
            continue
        if picture.pts == index.pts[left[0]]:
            yield left.pop(0), picture
            if not left:
                return
        elif picture.pts > index.pts[left[0]]:
            return


def _runs(index: Index, wanted: Sequence[int]) -> list[list[int]]:
    """``wanted`` split where seeking to the next frame's keyframe is better than decoding on to it."""
    keys = np.searchsorted(index.key_pts, index.pts[np.asarray(wanted)], side="right")
    runs = [[wanted[0]]]
    for number in range(1, len(wanted)):
        near = wanted[number] - wanted[number - 1] <= _DECODE_ON
        if near or keys[number] == keys[number - 1]:
            runs[-1].append(wanted[number])
        else:
            runs.append([wanted[number]])
    return runs


def _seek(container: Any, stream: Any, index: Index, key: int) -> bool:
    """Seeks so that the next packet is keyframe number ``key``, or one before it; False where that does not work.

    Containers seek by presentation or by decoding time, and some miss: the packet that comes is what counts. It is
    read to be looked at, then sought again.
    """
    if key < 0:
        return False
    for goal in dict.fromkeys((int(index.key_pts[key]), int(index.key_dts[key]))):
        try:
            container.seek(goal, stream=stream, backward=True)
            packet = next(packets_of(container, stream), None)
            if packet is None or not packet.is_keyframe or packet.pts is None or packet.pts > index.key_pts[key]:
                continue
            container.seek(goal, stream=stream, backward=True)
        except (av.error.FFmpegError, OSError):
            return False
        return True
    return False
