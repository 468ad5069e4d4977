"""Decodes with PyAV: groups of wanted frames from their keyframes on, several groups in parallel.

A frame is accepted only by its own timestamp or count. Nothing is concealed: the decoder fails on damage, and frames
that depend on damaged data are not delivered. Changed bits that leave a valid stream cannot be detected: no codec here
has checksums. docs/use/damage.md counts them.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from itertools import chain
from typing import Literal, NamedTuple, cast

import av
import numpy as np
from av.bitstream import BitStreamFilterContext
from av.stream import Stream

from vidspec.video.base import Index, NotDelivered, PutFrame
from vidspec.video.opening import accelerated, codec_name, opened, packets_of, video_streams
from vidspec.video.payload import has_layers, without_stuffing
from vidspec.video.progress import advance
from vidspec.video.resize import upright

__all__ = ["AvDecoder", "DecodeMode", "decode_all"]

# Up to this many frames ahead, decoding is cheaper than seeking.
_MAX_DECODE_AHEAD = 8
_MAX_THREADS = 8
# Each thread of a decoder holds its own frame. Limit of pixels of all threads: two frames of 8K.
_MAX_THREAD_PIXELS = 1 << 26
# A decoder also holds reference frames, up to 16 and rarely more than 5. Limit of pixels over all running decoders,
# one picture each: eight of 1080p, two of 4K.
_MAX_DECODER_PIXELS = 1 << 24

# Codecs for which FFmpeg can skip non-reference pictures and still decodes the others identically. (libvpx and dav1d
# have no such switch per picture.)
_SKIPPABLE = {"h264", "hevc", "mpeg2video", "mpeg4"}


class DecodeMode(NamedTuple):
    """A way to decode.

    ``decoder``: name of the decoder (None: FFmpeg's default), with threads for frames or for slices. ``hardware``:
    FFmpeg's name of a hardware decoder. ``conceal``: continue after errors and fill the gaps (FFmpeg's ``ec``);
    otherwise an error fails.
    """

    decoder: str | None = None
    threads: Literal["FRAME", "SLICE"] = "FRAME"
    hardware: str | None = None
    conceal: str | None = None


_PLAIN = DecodeMode()

#: Modes for H.264 cut where later pictures refer to some before the cut. Commands to drop those fail, which a strict
#: decoder cannot tell from damage although all pictures are intact. If nothing is concealed, two modes that conceal
#: in different ways agree.
_OPEN_START_MODES = (DecodeMode(conceal="0"), DecodeMode(conceal="guess_mvs+deblock"))

#: Pairs of modes for codecs whose FFmpeg decoder accepts nearly any bits as a picture. libvpx notices if VP9's data
#: end too early or too late. If x265 coded rows separately, slice threads start each at its entry point, frame threads
#: at the end of the last row: after damage the two differ, as do two decoders of VP8 or VP9.
_CHECKED_MODES = {
    "vp9": (DecodeMode("libvpx-vp9"), _PLAIN),
    "vp8": (_PLAIN, DecodeMode("libvpx")),
    "hevc": (_PLAIN, DecodeMode(threads="SLICE")),
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
        found = _CHECKED_MODES.get(index.codec, (_PLAIN,))
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


def decode_all(
    stream: av.VideoStream,
    packets: Iterator[av.Packet[Stream]],
    *,
    first_pts: int | None = None,
    reading: DecodeMode = _PLAIN,
    threads: int | None = None,
    only: Collection[int] | None = None,
) -> Iterator[av.VideoFrame | None]:
    """Yield every picture of ``packets`` in presentation order; None stands for damaged data.

    After damage, pictures resume at the next keyframe, without its leading pictures. ``first_pts``: pictures before it
    are dropped too (they depend on data before the seek). ``threads``: with one, no picture before the damage is lost;
    with several, the decoder notices late and its pending pictures may depend on the damage. ``only``: timestamps of
    the wanted pictures; others may be left out, and iteration ends after the last of them.
    """
    codec = _decoder(stream, reading, threads)
    careful = threads == 1
    split = BitStreamFilterContext("vp9_superframe_split", stream) if codec.name == "libvpx-vp9" else None
    name = codec_name(codec)
    skips = only is not None and name in _SKIPPABLE and not has_layers(name, stream.codec_context.extradata or b"")
    missing = set(only or ())
    floor, waiting = first_pts, False
    codec.skip_frame = "DEFAULT"
    while True:
        try:
            packet = next(packets, None)
        except (av.error.FFmpegError, OSError):  # a failed read ends the file here
            yield from (picture for picture in _drain(codec, careful) if not waiting and _not_before(picture, floor))
            yield None
            return
        if packet is None:
            return
        if not packet.size and packet.dts is not None:
            continue  # a repeated frame in AVI; the decoder would take it for the end
        if waiting:
            if not packet.is_keyframe or packet.is_corrupt or packet.pts is None:
                continue
            waiting, floor = False, packet.pts
            codec.flush_buffers()
        if skips:
            codec.skip_frame = "DEFAULT" if packet.pts in missing else "NONREF"
        broken = bool(packet.is_corrupt and packet.size)
        pictures: list[av.VideoFrame] = []
        if not broken:
            try:
                pictures = [
                    picture for part in _decoder_input(packet, codec.name, split) for picture in codec.decode(part)
                ]
            except MemoryError:
                raise
            except av.error.FFmpegError:
                broken = True
        if broken:
            pictures = [p for p in _drain(codec, careful) if p.pts != packet.pts]
        for picture in pictures:
            if picture.is_corrupt:  # later pictures may depend on it
                broken = True
                break
            advance()
            if _not_before(picture, floor):
                yield picture
        if broken:
            waiting = True
            yield None
        elif missing:
            missing.discard(packet.pts)
            if not missing:
                yield from (picture for picture in _drain(codec, True) if _not_before(picture, floor))
                return


def _decoder(stream: av.VideoStream, reading: DecodeMode, threads: int | None) -> av.VideoCodecContext:
    """Return the codec context for ``stream`` in this mode, set to fail on damage rather than to conceal it."""
    codec = stream.codec_context
    if reading.hardware and not accelerated(codec):
        raise NotDelivered(f"{codec.name} is not among what it decodes")
    pixels = max(1, codec.width * codec.height)
    if reading.decoder is not None and codec.pix_fmt == "yuv420p":
        codec = cast("av.VideoCodecContext", av.CodecContext.create(reading.decoder, "r"))
    if not codec.is_open:
        if reading.conceal is None:
            codec.options = {**codec.options, "err_detect": "crccheck+bitstream+buffer+explode"}
        else:
            codec.options = {**codec.options, "ec": reading.conceal}
        codec.thread_type = reading.threads
        threads = min(threads or max(2, os.cpu_count() or 1), _MAX_THREADS)
        if reading.hardware or reading.decoder == "libvpx-vp9":  # with several it does not check where tiles end
            codec.thread_count = 1
        elif reading.threads == "SLICE":  # one thread has no slice mode; they share one frame
            codec.thread_count = max(2, threads)
        else:
            codec.thread_count = max(1, min(threads, _MAX_THREAD_PIXELS // pixels))
    return codec


def _decoder_input(
    packet: av.Packet[Stream], codec: str, split: BitStreamFilterContext | None
) -> list[av.Packet[Stream] | None]:
    """Return the decoder's input for ``packet``: without stuffing, a VP9 superframe ``split`` into pictures.

    libvpx checks where a picture's data end only if the packet ends there.
    """
    if not packet.size:
        return [None]
    if split is not None:
        return list(split.filter(packet))
    if codec in ("mpeg1video", "mpeg2video", "mpeg4"):
        data = bytes(packet)
        bare = without_stuffing(data, codec)
        if len(bare) < len(data):
            made: av.Packet[Stream] = av.Packet(bare)
            made.pts, made.dts, made.time_base = packet.pts, packet.dts, packet.time_base
            return [made] if bare else []
    return [packet]


def _not_before(picture: av.VideoFrame, floor: int | None) -> bool:
    """Return True if a picture is not before ``floor``."""
    return floor is None or picture.pts is None or bool(picture.pts >= floor)


def _drain(codec: av.VideoCodecContext, careful: bool) -> list[av.VideoFrame]:
    """Return the pictures still inside the decoder if they are known to precede the damage."""
    try:
        return list(codec.decode(None)) if careful else []
    except av.error.FFmpegError:
        return []
