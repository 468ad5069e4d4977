"""Decodes the packets of a video stream to pictures with PyAV, and finds damage. Seeks nothing and skips to no frame.

Nothing is concealed: the decoder fails on damage, and pictures that depend on damaged data are not delivered. Changed
bits that leave a valid stream cannot be detected: no codec here has checksums (docs/research/measured/damage.json).
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from typing import Literal, NamedTuple, cast

import av
from av.bitstream import BitStreamFilterContext
from av.stream import Stream

from vidspec.video.base import NotDelivered
from vidspec.video.opening import accelerated, codec_name
from vidspec.video.payload import has_layers, without_stuffing
from vidspec.video.progress import advance

_MAX_THREADS = 8
# Each thread of a decoder holds its own frame. Limit of pixels of all threads: two frames of 8K.
_MAX_THREAD_PIXELS = 1 << 26

# Codecs for which FFmpeg can skip non-reference pictures and still decodes the others identically. (libvpx and dav1d
# have no such switch per picture.)
_SKIPPABLE = {"h264", "hevc", "mpeg2video", "mpeg4"}


class DecodeMode(NamedTuple):
    """A way to decode.

    Attributes:
        decoder: name of the decoder; None for FFmpeg's default, with threads for frames or for slices.
        hardware: FFmpeg's name of a hardware decoder.
        conceal: continue after errors and fill the gaps (FFmpeg's ``ec``); otherwise an error fails.
    """

    decoder: str | None = None
    threads: Literal["FRAME", "SLICE"] = "FRAME"
    hardware: str | None = None
    conceal: str | None = None


#: FFmpeg's default.
PLAIN = DecodeMode()


def decode_all(
    stream: av.VideoStream,
    packets: Iterator[av.Packet[Stream]],
    *,
    first_pts: int | None = None,
    reading: DecodeMode = PLAIN,
    threads: int | None = None,
    only: Collection[int] | None = None,
) -> Iterator[av.VideoFrame | None]:
    """Yield every picture of ``packets`` in presentation order; None stands for damaged data.

    After damage, pictures resume at the next keyframe, without its leading pictures.

    Args:
        first_pts: pictures before it are dropped: they depend on data before the seek.
        threads: with one, no picture before the damage is lost; with several, the decoder notices late and its pending
            pictures may depend on the damage.
        only: timestamps of the wanted pictures; others may be left out, and iteration ends after the last of them.
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
        pictures, broken = _decode_packet(codec, packet, split, careful)
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


def _decode_packet(
    codec: av.VideoCodecContext, packet: av.Packet[Stream], split: BitStreamFilterContext | None, careful: bool
) -> tuple[list[av.VideoFrame], bool]:
    """Return the pictures that a packet completes, and True if its data are damaged."""
    if not (packet.is_corrupt and packet.size):
        try:
            parts = _decoder_input(packet, codec.name, split)
            return [picture for part in parts for picture in codec.decode(part)], False
        except MemoryError:
            raise
        except av.error.FFmpegError:
            pass
    return [picture for picture in _drain(codec, careful) if picture.pts != packet.pts], True


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
    return floor is None or picture.pts is None or bool(picture.pts >= floor)


def _drain(codec: av.VideoCodecContext, careful: bool) -> list[av.VideoFrame]:
    """Return the pictures still inside the decoder if they are known to precede the damage."""
    try:
        return list(codec.decode(None)) if careful else []
    except av.error.FFmpegError:
        return []
