"""Decodes with PyAV: seeks to each frame's keyframe and accepts a frame only by its own timestamp or count.

It conceals nothing: the decoder is told to fail on damage, and what depends on damaged data is not delivered. Flipped
bits that leave a valid stream (VP8, VP9, AV1 and HEVC have no checksums) cannot be noticed by it or anyone.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Any

import av
import numpy as np

from vidspec.video.base import Frame, Index, NotDelivered
from vidspec.video.opening import opened, packets_of, video_streams

__all__ = ["AvDecoder", "decode_all"]

# Up to so many frames onward, decoding on is cheaper than seeking.
_DECODE_ON = 8
# Each thread holds a frame of its own: together no more pixels than this.
_MOST_THREADS = 8
_MOST_PIXELS = 1 << 26


class AvDecoder:
    """The PyAV decoder; see ``base.Decoder``."""

    name = "av"

    def frames(self, index: Index, wanted: Sequence[int]) -> Iterator[tuple[int, Frame]]:
        """Yields (position, upright frame) for each of ``wanted`` (increasing positions in ``index``).

        Raises NotDelivered at the first frame that cannot be decoded exactly, VideoError if the file is gone.
        """
        found = _by_count(index, wanted) if index.order == "count" else _by_pts(index, wanted)
        for position, picture in found:
            yield position, upright(index, picture)


def upright(index: Index, picture: Any) -> Frame:
    """A decoded picture as RGB of the index's size (streams may change theirs on the way)."""
    width, height = index.turn.size(index.width, index.height)
    return np.ascontiguousarray(index.turn.apply(picture.to_ndarray(format="rgb24", width=width, height=height)))


def decode_all(container: av.container.InputContainer, stream: Any, *, first_pts: int | None = None) -> Iterator[Any]:
    """Every picture from here on, in presentation order; None stands where data is damaged.

    After damage, pictures resume at the next keyframe, without those that lead it. ``first_pts``: pictures before it
    are dropped too (they depend on what was before the seek).
    """
    codec = stream.codec_context
    if not codec.is_open:
        codec.options = {**codec.options, "err_detect": "explode"}
        codec.thread_type = "AUTO"
        threads = min(_MOST_THREADS, os.cpu_count() or 1, _MOST_PIXELS // max(1, codec.width * codec.height))
        codec.thread_count = max(1, threads)
    floor, waiting = first_pts, False
    packets = packets_of(container, stream)
    while True:
        try:
            packet = next(packets, None)
        except (av.error.FFmpegError, OSError):  # reading failed, which ends the file here
            yield from (picture for picture in _drain(codec) if not waiting and _from(picture, floor))
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
                pictures = packet.decode()
            except MemoryError:
                raise
            except av.error.FFmpegError:
                broken = True
        if broken:
            pictures, waiting = [p for p in _drain(codec) if p.pts != packet.pts], True
        yield from (picture for picture in pictures if _from(picture, floor))
        if broken:
            yield None


def _from(picture: Any, floor: int | None) -> bool:
    """Whether a picture is whole and not before ``floor``."""
    return not picture.is_corrupt and (floor is None or picture.pts is None or picture.pts >= floor)


def _drain(codec: Any) -> list[Any]:
    """The pictures still inside the decoder: those before the damage."""
    try:
        return list(codec.decode(None))
    except av.error.FFmpegError:
        return []


def _by_count(index: Index, wanted: Sequence[int]) -> Iterator[tuple[int, Any]]:
    left = list(wanted)
    with opened(index.path) as container:
        for position, picture in enumerate(decode_all(container, video_streams(container)[0])):
            if picture is None:
                raise NotDelivered("its data is damaged", damaged=True, position=left[0])
            given = Index.NO_PTS if picture.pts is None else picture.pts
            if position >= len(index) or given != index.raw[position]:
                raise NotDelivered("it decodes differently each time", position=left[0])
            if position == left[0]:
                yield left.pop(0), picture
                if not left:
                    return
    raise NotDelivered("it ended early", damaged=True, position=left[0])


def _by_pts(index: Index, wanted: Sequence[int]) -> Iterator[tuple[int, Any]]:
    """Seeks from run to run; where a seek does not deliver, one pass from the start over all that is left."""
    left = list(wanted)
    with opened(index.path) as container:
        stream = video_streams(container)[0]
        for run in _runs(index, wanted):
            key = int(np.searchsorted(index.key_pts, index.pts[run[0]], side="right")) - 1
            if not _seek(container, stream, index, key):
                break
            for position, picture in _matched(index, run, container, stream, int(index.key_pts[key])):
                yield position, picture
                left.pop(0)
            if left and left[0] <= run[-1]:
                break
    if left:
        damage: list[bool] = []
        with opened(index.path) as container:
            for position, picture in _matched(index, left, container, video_streams(container)[0], None, damage):
                yield position, picture
                left = left[1:]
        if left:
            raise NotDelivered("its data is damaged", damaged=any(damage), position=left[0])


def _matched(
    index: Index,
    wanted: Sequence[int],
    container: Any,
    stream: Any,
    first_pts: int | None,
    damage: list[bool] | None = None,
) -> Iterator[tuple[int, Any]]:
    """Decodes on until all of ``wanted`` came, in order, or one was passed by. Notes damage, or stops at it."""
    left = list(wanted)
    for picture in decode_all(container, stream, first_pts=first_pts):
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
