"""Decodes with PyAV: groups of wanted frames from their keyframes on, several groups in parallel.

A frame is accepted only by its own timestamp or count. :mod:`vidspec.video.pictures` decodes packets and finds damage.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from itertools import chain

import av
import numpy as np
from av.stream import Stream

from vidspec.video.base import Index, NotDelivered, PutFrame
from vidspec.video.opening import opened, packets_of, video_streams
from vidspec.video.pictures import PLAIN, DecodeMode, decode_all
from vidspec.video.resize import upright

__all__ = ["AvDecoder"]

# Up to this many frames ahead, decoding is cheaper than seeking.
_MAX_DECODE_AHEAD = 8
# A decoder also holds reference frames, up to 16 and rarely more than 5. Limit of pixels over all running decoders,
# one picture each: eight of 1080p, two of 4K.
_MAX_DECODER_PIXELS = 1 << 24

#: Modes for H.264 cut where later pictures refer to some before the cut. Commands to drop those fail, which a strict
#: decoder cannot tell from damage although all pictures are intact. If nothing is concealed, two modes that conceal
#: in different ways agree.
_OPEN_START_MODES = (DecodeMode(conceal="0"), DecodeMode(conceal="guess_mvs+deblock"))

#: Pairs of modes for codecs whose FFmpeg decoder accepts nearly any bits as a picture. libvpx notices if VP9's data
#: end too early or too late. If x265 coded rows separately, slice threads start each at its entry point, frame threads
#: at the end of the last row: after damage the two differ, as do two decoders of VP8 or VP9.
_CHECKED_MODES = {
    "vp9": (DecodeMode("libvpx-vp9"), PLAIN),
    "vp8": (PLAIN, DecodeMode("libvpx")),
    "hevc": (PLAIN, DecodeMode(threads="SLICE")),
}


class AvDecoder:
    """The PyAV decoder; see ``base.FrameDecoder``.

    ``allow_damaged``: leave out frames that cannot be delivered exactly.
    """

    name = "av"

    def __init__(self, *, allow_damaged: bool = False) -> None:
        self.allow_damaged = allow_damaged

    def readings(self, index: Index) -> tuple[DecodeMode, ...]:
        """Return the modes whose pictures must agree; only the first if damage is allowed."""
        found = _CHECKED_MODES.get(index.codec, (PLAIN,))
        return found[:1] if self.allow_damaged else found

    def frames(self, index: Index, wanted: Sequence[int], size: tuple[int, int], put: PutFrame) -> None:
        """See ``base.FrameDecoder``.

        Raises NotDelivered at the first frame that cannot be decoded exactly, unless damage is allowed; VideoError if
        the file is gone.
        """
        readings = self.readings(index)
        if not index.open_start or readings[0].hardware:
            _DecodeJob(index, wanted, readings, size, put).run(self.allow_damaged)
            return
        left = list(wanted)
        for ways in (readings, _OPEN_START_MODES):
            work = _DecodeJob(index, left, ways, size, put)
            try:
                work.run(allow_damaged=False)
                return
            except NotDelivered as error:
                left, failure = sorted(work.left), error
        if not self.allow_damaged:
            raise failure
        _DecodeJob(index, left, readings, size, put).run(allow_damaged=True)


class _DecodeJob:
    """The wanted frames of a file, in groups that share a keyframe.

    Groups are decoded first without the pictures they do not need, then in full; frames still missing, in one pass over
    the whole file.
    """

    def __init__(
        self,
        index: Index,
        wanted: Sequence[int],
        readings: tuple[DecodeMode, ...],
        size: tuple[int, int],
        put: PutFrame,
    ) -> None:
        self.index, self.readings, self.size, self._put = index, readings, size, put
        self.left = set(wanted)
        self.groups = deque(_groups(index, wanted) if index.order == "pts" else ())

    def run(self, allow_damaged: bool) -> None:
        """Decode all frames; with damage allowed, all intact ones."""
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        pixels = max(1, self.index.width * self.index.height) * len(self.readings)
        workers = max(1, min(cores, len(self.groups), _MAX_DECODER_PIXELS // pixels))
        if self.readings[0].hardware:
            workers = 1
        threads = max(2 if workers == 1 else 1, cores // workers)
        if self.groups and workers == 1:
            self._decode_groups(threads)
        elif self.groups:
            with ThreadPoolExecutor(workers, "decoder") as pool:
                for done in [pool.submit(self._decode_groups, threads) for _ in range(workers)]:
                    done.result()
        if self.left:
            self._decode_file(allow_damaged)

    def _decode_groups(self, threads: int) -> None:
        """Decode groups until none is left.

        If a group lacks a frame, leave the rest to one pass over the file, which finds the reason.
        """
        try:
            with ExitStack() as stack:
                sources = self._open_streams(stack, threads)
                while self.groups:
                    try:
                        group = self.groups.popleft()
                    except IndexError:  # another thread was faster
                        return
                    for fast in (True, False):
                        group = group[self._deliver(source.group(group, fast) for source in sources) :]
                        if not group:
                            break
                    if group:
                        self.groups.clear()
        except BaseException:
            self.groups.clear()
            raise

    def _decode_file(self, allow_damaged: bool) -> None:
        wanted = sorted(self.left)
        with ExitStack() as stack:
            sources = self._open_streams(stack, None)
            self._deliver(source.file(wanted, allow_damaged) for source in sources)
        if self.left and not allow_damaged:
            damaged = any(source.damaged for source in sources)
            raise NotDelivered("its data are damaged", damaged=damaged, position=min(self.left))

    def _open_streams(self, stack: ExitStack, threads: int | None) -> list[_OpenStream]:
        """Open the file once for each reading; closed with ``stack``."""
        path = self.index.path
        files = [stack.enter_context(opened(path, reading.hardware)) for reading in self.readings]
        return [_OpenStream(self.index, *one, threads) for one in zip(files, self.readings, strict=True)]

    def _deliver(self, passes: Iterator[Iterator[tuple[int, av.VideoFrame]]]) -> int:
        """Deliver the pictures in which all passes agree; return their count."""
        count = 0
        for (position, picture), *others in zip(*passes, strict=False):
            if not all(_identical(picture, other) for _, other in others):
                raise NotDelivered("its data are damaged", damaged=True, position=position)
            self._put(position, upright(picture, self.index, self.size))
            self.left.discard(position)
            count += 1
        return count


class _OpenStream:
    """An open file whose pictures are decoded in one mode; ``damaged``: damage was met."""

    def __init__(
        self, index: Index, container: av.container.InputContainer, reading: DecodeMode, threads: int | None
    ) -> None:
        self.index, self.container, self.reading, self.threads = index, container, reading, threads
        self.stream = video_streams(container)[0]
        self.damaged = False
        self._plain = bool(reading.hardware)

    def group(self, group: Sequence[int], fast: bool) -> Iterator[tuple[int, av.VideoFrame]]:
        """Yield (position, picture) of frames that depend on one keyframe; end early if a frame is missing.

        ``fast``: skip pictures that none of them needs. This delivers no interlaced pictures, of which two packets may
        make one.
        """
        key = int(np.searchsorted(self.index.key_pts, self.index.pts[group[0]], side="right")) - 1
        packets = None if key < 0 or (fast and self._plain) else self._seek(key)
        if packets is None:
            return
        only = frozenset(self.index.pts[list(group)].tolist()) if fast else None
        first = int(self.index.key_pts[key])
        pictures = decode_all(
            self.stream, packets, first_pts=first, reading=self.reading, threads=self.threads, only=only
        )
        for position, picture in self._by_pts(group, pictures):
            if fast and picture.interlaced_frame:
                self._plain = True
                return
            yield position, picture

    def file(self, wanted: Sequence[int], allow_damaged: bool) -> Iterator[tuple[int, av.VideoFrame]]:
        """Yield (position, picture) in one pass from the start; skip missing frames only if damage is allowed."""
        packets = packets_of(self.container, self.stream)
        if self.index.order == "count":
            yield from self._by_count(wanted, decode_all(self.stream, packets, reading=self.reading))
        else:
            pictures = decode_all(self.stream, packets, reading=self.reading, threads=1)
            yield from self._by_pts(wanted, pictures, pass_over=allow_damaged)

    def _by_pts(
        self, wanted: Sequence[int], pictures: Iterator[av.VideoFrame | None], *, pass_over: bool = False
    ) -> Iterator[tuple[int, av.VideoFrame]]:
        pts, left = self.index.pts, deque(wanted)
        for picture in pictures:
            self.damaged = self.damaged or picture is None
            if picture is None or picture.pts is None:
                continue
            while left and pts[left[0]] < picture.pts:
                if not pass_over:
                    return
                left.popleft()
            if left and pts[left[0]] == picture.pts:
                yield left.popleft(), picture
            if not left:
                return

    def _by_count(
        self, wanted: Sequence[int], pictures: Iterator[av.VideoFrame | None]
    ) -> Iterator[tuple[int, av.VideoFrame]]:
        left, raw = deque(wanted), self.index.raw
        for position, picture in enumerate(pictures):
            if picture is None:
                break
            given = Index.NO_PTS if picture.pts is None else picture.pts
            if position >= len(raw) or given != raw[position]:
                raise NotDelivered("it decodes differently each time", position=left[0])
            if position == left[0]:
                yield left.popleft(), picture
                if not left:
                    return
        self.damaged = True

    def _seek(self, key: int) -> Iterator[av.Packet[Stream]] | None:
        """Return the packets from keyframe number ``key``, or from an earlier one; None if seeking does not lead there.

        Containers seek by presentation or by decoding time, and some miss: the packet that arrives counts.
        """
        for goal in dict.fromkeys((int(self.index.key_pts[key]), int(self.index.key_dts[key]))):
            try:
                self.container.seek(goal, stream=self.stream, backward=True)
                packets = packets_of(self.container, self.stream)
                first = next(packets, None)
            except (av.error.FFmpegError, OSError):
                return None
            if first and first.is_keyframe and first.pts is not None and first.pts <= self.index.key_pts[key]:
                return chain([first], packets)
        return None


def _groups(index: Index, wanted: Sequence[int]) -> list[list[int]]:
    """Split ``wanted`` where seeking to the next frame's keyframe is cheaper than decoding up to it."""
    keys = np.searchsorted(index.key_pts, index.pts[np.asarray(wanted)], side="right")
    groups = [[wanted[0]]]
    for number in range(1, len(wanted)):
        if keys[number] == keys[number - 1] or wanted[number] - wanted[number - 1] <= _MAX_DECODE_AHEAD:
            groups[-1].append(wanted[number])
        else:
            groups.append([wanted[number]])
    return groups


def _identical(one: av.VideoFrame, other: av.VideoFrame) -> bool:
    """Return True if two pictures have the same bytes, apart from row padding and transparency.

    Only libvpx decodes the transparency (``yuva420p``) that WebM carries alongside the pictures.
    """
    if one.format.name.replace("yuva", "yuv") != other.format.name.replace("yuva", "yuv"):
        return False
    for ours, theirs in zip(one.planes[:3], other.planes[:3], strict=True):
        if (ours.width, ours.height) != (theirs.width, theirs.height):
            return False
        rows = [np.frombuffer(memoryview(p), np.uint8).reshape(p.height, -1) for p in (ours, theirs)]
        sample_bytes = 2 if one.format.components[0].bits > 8 else 1
        used = min(ours.width * sample_bytes, *(row.shape[1] for row in rows))
        if not np.array_equal(rows[0][:, :used], rows[1][:, :used]):
            return False
    return True
