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

# Up to this many frames ahead, decoding is cheaper than seeking.
_MAX_DECODE_AHEAD = 8
# A decoder also holds reference frames, up to 16 and rarely more than 5. Limit of pixels over all running decoders,
# one picture each: eight of 1080p, two of 4K.
_MAX_DECODER_PIXELS = 1 << 24

#: Modes for H.264 cut where later pictures refer to some before the cut. Commands to drop those fail, which a strict
#: decoder cannot tell from damage although all pictures are intact. If nothing is concealed, two modes that conceal
#: in different ways agree.
_OPEN_START_MODES = (DecodeMode(conceal="0"), DecodeMode(conceal="guess_mvs+deblock"))

#: Modes of codecs whose FFmpeg decoder accepts nearly any bits as a picture. libvpx notices if VP9's data end too early
#: or too late. VP8 and HEVC are decoded in two ways that must agree, since one alone lets more than 3 in 100 damaged
#: files pass (docs/use/damage.md). If x265 coded rows separately, slice threads start each at its entry point, frame
#: threads at the end of the last row: after damage the two differ.
_CHECKED_MODES = {
    "vp9": (DecodeMode("libvpx-vp9"),),
    "vp8": (PLAIN, DecodeMode("libvpx")),
    "hevc": (PLAIN, DecodeMode(threads="SLICE")),
}


class AvDecoder:
    """The PyAV decoder; see ``base.FrameDecoder``."""

    name = "av"

    def readings(self, index: Index) -> tuple[DecodeMode, ...]:
        """Return the modes whose pictures must agree."""
        return _CHECKED_MODES.get(index.codec, (PLAIN,))

    def frames(self, index: Index, wanted: Sequence[int], size: tuple[int, int], put: PutFrame) -> None:
        """See ``base.FrameDecoder``.

        Raises NotDelivered at the first frame that cannot be decoded exactly; VideoError if the file is gone.
        """
        left = list(wanted)
        for readings in self._attempts(index):
            work = _DecodeJob(index, left, readings, size, put)
            try:
                work.run()
                return
            except NotDelivered as error:
                left, failure = sorted(work.left), error
        raise failure

    def intact(self, index: Index, wanted: Sequence[int]) -> list[int]:
        """Return those of ``wanted`` that can be delivered exactly, from one pass over a damaged file."""
        found: set[int] = set()
        for readings in self._attempts(index):
            found |= _DecodeJob(index, wanted, readings, (1, 1), lambda position, frame: None).intact()
        return [position for position in wanted if position in found]

    def _attempts(self, index: Index) -> tuple[tuple[DecodeMode, ...], ...]:
        """Return the tuples of modes to try one after the other, all of whose pictures must agree."""
        readings = self.readings(index)
        return (readings, _OPEN_START_MODES) if index.open_start and not readings[0].hardware else (readings,)


def decoded_between(
    index: Index, low: int, high: int, *, allow_damaged: bool = False
) -> Iterator[tuple[int, av.VideoFrame]]:
    """Yield (position, picture) of all frames from ``low`` until before ``high``, as they are coded, not upright.

    Raises NotDelivered at the first that cannot be decoded; with ``allow_damaged`` it is left out.
    """
    reading, at = AvDecoder().readings(index)[0], low
    if index.order == "pts" and not index.stateful:
        with opened(index.path) as container:
            for position, picture in _OpenStream(index, container, reading, None).group(range(low, high), False):
                yield position, picture
                at = position + 1
    if at == high:
        return
    with opened(index.path) as container:
        for position, found in _OpenStream(index, container, reading, None).all():
            if position >= high:
                break
            if found is not None and position >= at:
                if position > at and not allow_damaged:
                    break
                yield position, found
                at = position + 1
    if at < high and not allow_damaged:
        raise NotDelivered("its data are damaged", damaged=index.order == "count", position=at)


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
        self.groups = deque(_groups(index, wanted) if index.order == "pts" and not index.stateful else ())

    def run(self) -> None:
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
            self._decode_file()

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

    def _decode_file(self) -> None:
        wanted = sorted(self.left)
        with ExitStack() as stack:
            sources = self._open_streams(stack, None)
            self._deliver(source.file(wanted) for source in sources)
        if self.left:
            damaged = any(source.damaged for source in sources)
            raise NotDelivered("its data are damaged", damaged=damaged, position=min(self.left))

    def intact(self) -> set[int]:
        """Return the positions, up to the last wanted one, of the pictures that are known to be intact.

        Where one fails or they differ, the damage may lie in an earlier picture: none is, from the last keyframe to
        the next.
        """
        keys = set(np.flatnonzero(np.isin(self.index.pts, self.index.key_pts)).tolist())
        intact: set[int] = set()
        group: list[int] = []
        doubted = False
        with ExitStack() as stack:
            first, *others = (source.all() for source in self._open_streams(stack, None))
            ahead = [next(other, None) for other in others]
            for position, picture in first:
                if picture is None:
                    doubted = True
                    continue
                if position in keys or (self.index.order == "count" and picture.key_frame):
                    intact.update(() if doubted else group)
                    group, doubted = [], False
                    if position > max(self.left):
                        return intact
                for number, other in enumerate(others):
                    while (now := ahead[number]) is not None and (now[1] is None or now[0] < position):
                        doubted = doubted or now[1] is None
                        ahead[number] = next(other, None)
                    if now is None or now[1] is None or now[0] != position or not _identical(picture, now[1]):
                        doubted = True
                group.append(position)
        return intact if doubted else intact.union(group)

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

    def file(self, wanted: Sequence[int]) -> Iterator[tuple[int, av.VideoFrame]]:
        """Yield (position, picture) in one pass from the start; end early if a frame is missing."""
        left = deque(wanted)
        for position, picture in self.all():
            if picture is None:
                self.damaged = True
            elif position >= left[0]:
                if position > left[0]:
                    return
                yield left.popleft(), picture
                if not left:
                    return
        self.damaged = self.damaged or self.index.order == "count"

    def all(self) -> Iterator[tuple[int, av.VideoFrame | None]]:
        """Yield (position, picture) of all pictures in one pass from the start; without a picture after damage."""
        packets = packets_of(self.container, self.stream)
        if self.index.order == "count":
            yield from self._by_count(decode_all(self.stream, packets, reading=self.reading))
            return
        pts, position = self.index.pts, 0
        for picture in decode_all(self.stream, packets, reading=self.reading, threads=1):
            if picture is None:
                yield position, None
            elif picture.pts is not None:
                position = int(np.searchsorted(pts, picture.pts))
                if position < len(pts) and pts[position] == picture.pts:
                    yield position, picture

    def _by_count(self, pictures: Iterator[av.VideoFrame | None]) -> Iterator[tuple[int, av.VideoFrame | None]]:
        raw = self.index.raw
        for position, picture in enumerate(pictures):
            if picture is not None:
                given = Index.NO_PTS if picture.pts is None else picture.pts
                if position >= len(raw) or given != raw[position]:
                    raise NotDelivered("it decodes differently each time", position=min(position, len(raw) - 1))
            yield position, picture
            if picture is None:
                return  # beyond an error the count is a guess

    def _by_pts(
        self, wanted: Sequence[int], pictures: Iterator[av.VideoFrame | None]
    ) -> Iterator[tuple[int, av.VideoFrame]]:
        pts, left = self.index.pts, deque(wanted)
        for picture in pictures:
            self.damaged = self.damaged or picture is None
            if picture is None or picture.pts is None:
                continue
            if pts[left[0]] < picture.pts:
                return
            if pts[left[0]] == picture.pts:
                yield left.popleft(), picture
            if not left:
                return

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
