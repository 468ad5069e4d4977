"""Writes a part of a video as an MP4 of its own with PyAV: packets copied if that is exact, else encoded as H.264.

The part begins with its first frame and ends before the next part's first one, with the sound of that time.
"""

from __future__ import annotations

import heapq
import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from fractions import Fraction
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import Literal, TypeAlias, cast

import av
import numpy as np
from av.container import InputContainer, OutputContainer
from av.stream import Stream

from vidspec.errors import OutputError, VideoError, reason_of
from vidspec.files import open_own
from vidspec.video.base import Index, NotDelivered
from vidspec.video.decode_av import decoded_between
from vidspec.video.image import is_image
from vidspec.video.opening import codec_name, opened, packets_of, video_streams
from vidspec.video.probing import make_index, with_index
from vidspec.video.resize import scaled

#: How a part was written.
CutKind: TypeAlias = Literal["copied", "encoded"]
#: A packet of the new file, after its time in seconds.
TimedPacket: TypeAlias = "tuple[float, av.Packet[Stream]]"

#: Codecs whose packets are copied into an MP4. The packets of others do not fit, or few players read them there.
_COPIED_VIDEO = {"h264", "hevc", "av1", "vp9", "mpeg4"}
_COPIED_SOUND = {"aac", "mp3", "ac3", "eac3", "opus", "flac", "alac"}
_AAC_RATES = {16_000, 22_050, 24_000, 32_000, 44_100, 48_000}
#: By the number of channels, which WAV-like sound states without their places.
_LAYOUTS = {1: "mono", 6: "5.1"}
#: Formats of pixels that libx264 takes as they are; others become 8-bit 4:2:0.
_PIXEL_FORMATS = {"yuv420p", "yuvj420p", "yuv422p", "yuv444p", "yuv420p10le", "yuv422p10le", "yuv444p10le"}
#: Visually lossless. The number of threads is fixed since the bytes depend on it; few pictures are held ahead. With
#: AVX-512, ``mbtree`` of x264 reads uninitialised memory if the width is not a multiple of 128: the bytes would vary.
_X264 = {"crf": "17", "preset": "veryfast", "mbtree": "0"}
_THREADS = 4
#: Parts have times in milliseconds.
_SLACK = 0.000501


def write_part(path: str, start: float, end: float, out: str, *, allow_damaged: bool = False) -> CutKind:
    """Write the frames of a video from ``start`` until before ``end`` seconds, and their sound, as an MP4.

    Args:
        start, end: seconds since the first frame.
        allow_damaged: leave out frames that cannot be decoded.

    Raises:
        VideoError: the video cannot be read, or a frame cannot be decoded.
        OutputError: the file cannot be written.
    """

    def write(index: Index) -> CutKind:
        if is_image(index):
            raise VideoError(f"{path}: is a picture, which has no parts", kind="unsupported")
        return _write(index, start, end, out, allow_damaged)

    try:
        return with_index(path, _index, write, _undecodable)
    except (av.error.FFmpegError, OSError) as error:
        what = f"its part from {start:g} to {end:g} s cannot be written"
        raise OutputError(f"{path}: {what}: {reason_of(error)}") from None


def _index(path: str | os.PathLike[str], by_decoding: bool) -> Index:
    return _index_at(os.fspath(path), os.stat(path).st_mtime_ns, by_decoding)


@lru_cache(maxsize=4)
def _index_at(path: str, mtime_ns: int, by_decoding: bool) -> Index:
    """Return the index of a video, of which many parts are written one after the other."""
    return make_index(path, by_decoding)


def _undecodable(index: Index, failure: NotDelivered) -> VideoError:
    return VideoError(f"{index.path}: a part of it cannot be cut: {failure}", kind="damaged")


def _write(index: Index, start: float, end: float, out: str, allow_damaged: bool) -> CutKind:
    low = int(np.searchsorted(index.times, start - _SLACK))
    high = int(np.searchsorted(index.times, end - _SLACK))
    if low >= high:  # one frame stays on screen
        low, high = max(0, low - 1), max(1, low)
    with ExitStack() as stack:
        source = stack.enter_context(opened(index.path))
        stream = video_streams(source)[0]
        copied = _exact_packets(index, source, stream, low, high)
        file = stack.enter_context(open_own(Path(out), "xb"))  # FFmpeg would follow a link of this name
        target = stack.enter_context(av.open(file, "w", format="mp4"))
        if copied is not None:
            video = _copied(target, stream, copied, int(index.pts[low]))
        else:
            video = _encoded(index, target, stream, low, high, allow_damaged)
        sound = _sound(index, stack.enter_context(opened(index.path)), target, low, high)
        for _, packet in heapq.merge(video, sound, key=lambda one: one[0]):
            target.mux_one(packet)
    return "encoded" if copied is None else "copied"


def _exact_packets(
    index: Index, source: InputContainer, stream: av.VideoStream, low: int, high: int
) -> Iterator[tuple[av.Packet[Stream], int]] | None:
    """Return the packets of exactly the frames ``low`` to ``high``, with decoding times; None if others are needed.

    So the first frame is a key frame, and no frame from ``high`` on comes before one of the part in decoding order.
    """
    first, last = int(index.pts[low]), int(index.pts[high - 1])
    plain = index.order == "pts" and not (index.stateful or index.open_start)
    fits = codec_name(stream.codec_context) in _COPIED_VIDEO
    if not (plain and fits and first in index.key_pts) or index.damage or index.truncated:
        return None
    key = int(np.flatnonzero(index.key_pts == first)[0])
    for goal in dict.fromkeys((first, int(index.key_dts[key]))):  # containers seek by one or the other
        # Read twice, as the packets of a long part may not fit into memory.
        times = [packet.pts or 0 for packet in _packets_from(source, stream, goal, first, last)]
        while times and times[-1] > last:
            times.pop()
        if sorted(times) == index.pts[low:high].tolist():
            delay = max(shown - time for shown, time in zip(sorted(times), times, strict=True))
            decoded = [shown - delay for shown in sorted(times)]  # after a seek some containers give none
            return zip(_packets_from(source, stream, goal, first, last), decoded, strict=False)
    return None


def _packets_from(
    source: InputContainer, stream: av.VideoStream, goal: int, first: int, last: int
) -> Iterator[av.Packet[Stream]]:
    """Yield the packets from the key frame ``first`` until before the one after ``last``.

    Leading pictures of the first key frame are left out: nothing after it depends on them.
    """
    with suppress(av.error.FFmpegError):
        source.seek(goal, stream=stream, backward=True)
    began = False
    for packet in packets_of(source, stream):
        if packet.pts is None or not packet.size:
            continue
        began = began or (packet.pts == first and packet.is_keyframe)
        if (packet.pts > first and not began) or (packet.is_keyframe and packet.pts > last):
            return
        if began and packet.pts >= first:
            yield packet


def _copied(
    target: OutputContainer, stream: av.VideoStream, packets: Iterator[tuple[av.Packet[Stream], int]], first: int
) -> Iterator[TimedPacket]:
    new = target.add_stream_from_template(stream)
    base = Fraction(stream.time_base or 1)

    def shifted() -> Iterator[TimedPacket]:
        for packet, decoded in packets:
            packet.dts = decoded
            yield _moved(packet, new, first, base)

    return shifted()


def _moved(packet: av.Packet[Stream], to: Stream, first: int, base: Fraction) -> TimedPacket:
    """Return a packet of another file for the stream ``to``, in whose time ``first`` is 0."""
    packet.pts = None if packet.pts is None else packet.pts - first
    packet.dts = packet.pts if packet.dts is None else packet.dts - first
    packet.stream, packet.time_base = to, base
    return float((packet.dts or 0) * base), packet


def _encoded(
    index: Index, target: OutputContainer, source: av.VideoStream, low: int, high: int, allow_damaged: bool
) -> Iterator[TimedPacket]:
    codec, base = source.codec_context, index.time_base
    rate = Fraction(index.fps or 25).limit_denominator(1001)
    new = target.add_stream("libx264", rate=rate, options=_X264)
    encoder = new.codec_context
    kept = codec.pix_fmt in _PIXEL_FORMATS
    subsampled = not (kept and "444" in str(codec.pix_fmt))
    width, height = (size - size % 2 if subsampled else size for size in (codec.width, codec.height))
    new.width, new.height, new.pix_fmt = width, height, str(codec.pix_fmt) if kept else "yuv420p"
    encoder.time_base = new.time_base = base
    encoder.thread_count = _THREADS
    if source.sample_aspect_ratio:
        encoder.sample_aspect_ratio = source.sample_aspect_ratio
    for about in ("color_range", "color_primaries", "color_trc", "colorspace"):
        setattr(encoder, about, getattr(codec, about))
    degrees, mirrored = index.turn.degrees, index.turn.mirrored
    if degrees or mirrored:  # PyAV mirrors after the turn
        new.set_display_rotation(-degrees % 360 if mirrored else degrees, hflip=mirrored)
    ends = [*index.pts[low + 1 : high + 1].tolist(), int(index.pts[-1])]

    def encoded() -> Iterator[TimedPacket]:
        for position, picture in decoded_between(index, low, high, allow_damaged=allow_damaged):
            picture = scaled(picture, width, height, new.pix_fmt)
            picture.pts, picture.time_base = int(index.pts[position] - index.pts[low]), base
            picture.duration = max(1, ends[position - low] - int(index.pts[position]))
            picture.pict_type = 0
            yield from _timed(encoder.encode(picture), new)
        yield from _timed(encoder.encode(None), new)

    return encoded()


def _sound(index: Index, source: InputContainer, target: OutputContainer, low: int, high: int) -> Iterator[TimedPacket]:
    """Return the sound of the frames ``low`` to ``high``: packets that begin in this time, or encoded as AAC."""
    stream = cast("av.AudioStream | None", source.streams.best("audio"))
    if stream is None or stream.codec_context is None:
        return iter(())
    base = Fraction(stream.time_base or 1)
    begin = round(int(index.pts[low]) * index.time_base / base)
    end = round(int(index.pts[high]) * index.time_base / base) if high < len(index) else None
    packets = _sound_packets(source, stream, begin, end)
    if (one := next(packets, None)) is None:
        return iter(())
    packets = chain([one], packets)
    if codec_name(stream.codec_context) in _COPIED_SOUND:
        new = target.add_stream_from_template(stream)
        return (_moved(packet, new, begin, base) for packet in packets)
    return _encoded_sound(target, stream, packets, begin, base)


def _sound_packets(
    source: InputContainer, stream: av.AudioStream, begin: int, end: int | None
) -> Iterator[av.Packet[Stream]]:
    """Yield the packets that begin from ``begin`` until before ``end``."""
    second = int(1 / Fraction(stream.time_base or 1))
    with suppress(av.error.FFmpegError):  # then it is read from the start
        source.seek(begin - second, stream=stream, backward=True)
    for packet in packets_of(source, stream):
        if packet.pts is None or not packet.size or packet.pts < begin:
            continue
        if end is not None and packet.pts >= end:
            return
        yield packet


def _encoded_sound(
    target: OutputContainer,
    stream: av.AudioStream,
    packets: Iterator[av.Packet[Stream]],
    begin: int,
    base: Fraction,
) -> Iterator[TimedPacket]:
    decoder = stream.codec_context
    rate = decoder.rate if decoder.rate in _AAC_RATES else 48_000
    layout = _LAYOUTS.get(decoder.channels, "stereo")
    new = target.add_stream("aac", rate=rate, layout=layout)

    def frames() -> Iterator[av.AudioFrame]:
        for packet in chain(packets, [None]):
            with suppress(av.error.FFmpegError):  # sound that is damaged leaves a gap
                yield from decoder.decode(packet)

    def encoded() -> Iterator[TimedPacket]:
        for frame in frames():
            frame.pts = None if frame.pts is None else frame.pts - round(begin * base / Fraction(frame.time_base or 1))
            yield from _timed(new.encode(frame), new)
        yield from _timed(new.encode(None), new)

    return encoded()


def _timed(packets: Sequence[av.Packet[Stream]], of: Stream) -> Iterator[TimedPacket]:
    """Yield packets that were encoded for a stream, with their times."""
    for packet in packets:
        packet.stream = of
        yield float((packet.dts or 0) * Fraction(packet.time_base or of.time_base or 1)), packet
