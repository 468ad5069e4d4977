"""Makes a file's Index from its packets. Delivers no frames.

Reading packets is cheap (15,000 in 0.1 s, a few dozen bytes kept of each). Only if their timestamps cannot order the
frames, as in AVI with B-frames or raw H.264, is the file decoded once to count them.
"""

from __future__ import annotations

import mmap
import os
from array import array
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from itertools import islice, takewhile
from typing import Literal, NamedTuple, TypeVar, cast

import av
import numpy as np
from av.sidedata.sidedata import SideData, Type
from numpy.typing import NDArray

from vidspec import memory
from vidspec.errors import VideoError
from vidspec.video import damage
from vidspec.video.base import Index, NotDelivered, Orientation
from vidspec.video.damage.chunks import Box, iterate_boxes
from vidspec.video.gif import count_pictures
from vidspec.video.image import image_index
from vidspec.video.opening import checked_path, codec_name, opened, packets_of, video_streams
from vidspec.video.packets import PacketScan, decord_doubts, ends_early, find_damage, hidden_packets, read_packets
from vidspec.video.payload import MAX_ANIMATED_PICTURES, check_animation
from vidspec.video.pictures import decode_all

T = TypeVar("T")

#: FFmpeg's name of the container.
MP4 = "mov,mp4,m4a,3gp,3g2,mj2"
#: Sample entries of encrypted video: Common Encryption, and Apple's FairPlay.
_ENCRYPTED = (b"encv", b"drmi")
#: Bytes of a visual sample entry before its own boxes.
_VISUAL_ENTRY = 78


class VideoEntry(NamedTuple):
    """Facts of a video track's sample entry.

    Attributes:
        encrypted: True if the pictures are.
        aperture: (width, height) in pixels that a player shows, if the file states a clean aperture (``clap``).
    """

    encrypted: bool
    aperture: tuple[int, int] | None


def read_video_entry(path: str, track: int) -> VideoEntry | None:
    """Return the facts of a track's first sample entry; None if it is no video track or cannot be found.

    Args:
        path: an MP4 or QuickTime file.
        track: number of the track, from 0.
    """
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        whole = Box(b"", 0, len(data))
        moov = _first(data, whole, b"moov")
        tracks = [] if moov is None else [box for box in iterate_boxes(data, *moov[1:]) if box.kind == b"trak"]
        if track >= len(tracks) or (media := _first(data, tracks[track], b"mdia")) is None:
            return None
        handler = _first(data, media, b"hdlr")
        if handler is None or data[handler.start + 8 : handler.start + 12] != b"vide":
            return None
        found: Box | None = media
        for kind in (b"minf", b"stbl", b"stsd"):
            found = None if found is None else _first(data, found, kind)
        entry = None if found is None else next(iterate_boxes(data, found.start + 8, found.end), None)
        if entry is None:
            return None
        clap = _first(data, entry._replace(start=entry.start + _VISUAL_ENTRY), b"clap")
        return VideoEntry(entry.kind in _ENCRYPTED, None if clap is None else _aperture(data[clap.start : clap.end]))


def _first(data: mmap.mmap, parent: Box, kind: bytes) -> Box | None:
    return next((box for box in iterate_boxes(data, parent.start, parent.end) if box.kind == kind), None)


def _aperture(clap: bytes) -> tuple[int, int] | None:
    """Return the (width, height) of a clean aperture box, two fractions each of 32 bits; None if it has none."""
    width, width_by, height, height_by = (int.from_bytes(clap[at : at + 4], "big") for at in (0, 4, 8, 12))
    return (width // width_by, height // height_by) if width_by and height_by else None


# Containers without a size or count that would reveal the loss of a full cycle of their packet counters.
_GAPS_MAY_BE_LOSS = {"mpegts", "mpeg"}
_MAX_GAPS = 4

# Larger pictures are refused before decoding: 16384 x 16384 is the limit of today's codecs.
_MAX_PIXELS = 1 << 28
# Bytes per pixel while decoding: some reference pictures, and one or two in RGB.
_PIXEL_BYTES = 12
_FIRST_PICTURE_PACKETS = 1000
# Pixels further from square are taken for a writer's mistake.
_MAX_ASPECT = 8.0
# Transfer functions of HDR, by their numbers in H.273.
_HDR = {16: "pq", 18: "hlg"}


def probe(path: str | os.PathLike[str]) -> Index:
    """Return the index of ``path``'s video stream, or of an image file.

    Takes one pass over the packets and one decoded picture.

    Raises:
        VideoError: kind missing, folder, unreadable, empty, not_video, no_video_stream, truncated, unsupported or
            no_frames; for an image file damaged or memory.
    """
    return make_index(path, by_decoding=False)


def make_index(path: str | os.PathLike[str], by_decoding: bool) -> Index:
    """Return the index of :func:`probe`, or one whose frames are counted by decoding the whole stream."""
    name = checked_path(path)
    return image_index(name) or _probe(name, by_decoding=by_decoding)


def with_index(
    path: str | os.PathLike[str],
    find: Callable[[str | os.PathLike[str], bool], Index],
    use: Callable[[Index], T],
    failed: Callable[[Index, NotDelivered], VideoError],
    *,
    again: bool = True,
) -> T:
    """Return what ``use`` makes of a file's index; ``failed`` makes the error if it does not get its frames.

    Args:
        path: of the file.
        find: :func:`make_index`, or one that keeps indexes.
        use: decodes frames.
        failed: makes the error.
        again: if the packets of an undamaged file turn out not to be its frames, count them by decoding.
    """
    index = find(path, False)
    try:
        return use(index)
    except NotDelivered as failure:
        if not again or index.order == "count" or failure.damaged:
            raise failed(index, failure) from None
    index = find(path, True)
    try:
        return use(index)
    except NotDelivered as failure:
        raise failed(index, failure) from None


def too_large(path: str | os.PathLike[str], what: str) -> VideoError:
    """Return the error for a file that does not fit into memory."""
    return VideoError(
        f"{os.fsdecode(path)}: {what} cannot be decoded in the memory there is",
        kind="memory",
        hint="make it smaller first, such as by ffmpeg -i IN -vf scale=1280:-2 OUT",
    )


def _probe(path: str, *, by_decoding: bool) -> Index:
    with opened(path) as container:
        streams = video_streams(container)
        entry = read_video_entry(path, streams[0].index) if streams and container.format.name == MP4 else None
        _refuse_encrypted(path, streams, entry)
        stream, single_stream = _video_stream(path, container)
        codec = stream.codec_context
        if codec.name == "gif":
            check_animation(path, count_pictures(path, MAX_ANIMATED_PICTURES), codec.width, codec.height)
        number = stream.id if container.format.name == "mpegts" else stream.index
        found = damage.examine(path, container.format.name, number)
        packets = read_packets(path, container, stream, found)
        is_avi, reorders = container.format.name == "avi", bool(codec.has_b_frames)
        container_format, name = container.format.name, codec_name(codec)
        coded, position = (codec.width, codec.height), stream.index  # read while the container is open
        base = Fraction(stream.time_base or 1)
        rate = Fraction(stream.average_rate or stream.guessed_rate or 0)
        aspect = _pixel_aspect(stream)
        truncated = packets.tail_damaged or ends_early(container, stream, packets, base, found)
    _refuse_empty(path, packets, truncated=truncated)
    (width, height), turn, tilt, transfer = _first_picture(path, truncated, aspect)
    pts = raw = np.unique(np.frombuffer(packets.pts, np.int64))
    key_pts, key_dts = np.frombuffer(packets.key_pts, np.int64), np.frombuffer(packets.key_dts, np.int64)
    # AVI stores no presentation times: with B-frames, FFmpeg's are those of decoding under another name.
    # A seek to a time may land in a joined stream.
    by_count = by_decoding or (is_avi and reorders) or found.joined is not None or _is_unordered(packets, pts, key_pts)
    order: Literal["pts", "count"] = "count" if by_count else "pts"
    last_duration, packet_base = packets.last_duration, base
    if order == "count":
        base, pts, raw, damaged = _count_frames(path, packet_base, rate, packets.broken_at)
        truncated = truncated or damaged
        pts, last_duration = _counted_times(packets, pts, damaged, is_avi) if base == packet_base else (pts, 1)
    gap = int(np.median(np.diff(pts))) if len(pts) > 1 else 0
    origin, wrong = find_damage(packets, found, pts, base if base == packet_base else None)
    duration = float((int(pts[-1]) - origin + (last_duration if last_duration > 0 else gap)) * base)
    return Index(
        path=path,
        format=container_format,
        codec=name,
        stream=position,
        time_base=base,
        pts=pts,
        raw=raw,
        key_pts=key_pts,
        key_dts=key_dts,
        order=order,
        width=width,
        height=height,
        turn=turn,
        duration_s=duration,
        truncated=truncated and found.joined is None,
        doubts=decord_doubts(packets, order, int(pts[0]), single_stream, aspect, duration * float(rate)),
        damage=wrong,
        origin=origin,
        open_start=packets.open_start,
        stateful=packets.stateful,
        pixel_aspect=aspect,
        transfer=transfer,
        tilt=tilt,
        clean_aperture=_shown_aperture(entry, coded),
        suspects=_suspects(pts) if order == "pts" and container_format in _GAPS_MAY_BE_LOSS else (),
    )


def _refuse_encrypted(path: str, streams: Sequence[av.VideoStream], entry: VideoEntry | None) -> None:
    # FFmpeg names the key of a Matroska track with ContentEncryption.
    if (entry is not None and entry.encrypted) or (streams and "enc_key_id" in streams[0].metadata):
        raise VideoError(f"{path}: is encrypted", kind="encrypted", hint="decrypt it first: vidspec takes no keys")


def _refuse_empty(path: str, packets: PacketScan, *, truncated: bool) -> None:
    if not packets.seen:
        raise VideoError(f"{path}: its video stream holds no frames", kind="truncated" if truncated else "no_frames")
    if packets.lost_pts and not packets.pts:
        raise VideoError(f"{path}: is damaged: none of its frames is whole", kind="damaged")


def _is_unordered(packets: PacketScan, pts: NDArray[np.int64], key_pts: NDArray[np.int64]) -> bool:
    """Return True if times are missing, equal or in disorder, so that frames cannot be found by them."""
    missing = packets.no_timestamps > 0 or len(pts) != len(packets.pts) or not len(pts)
    return missing or bool((np.diff(key_pts) <= 0).any())


def _counted_times(
    packets: PacketScan, pts: NDArray[np.int64], damaged: bool, is_avi: bool
) -> tuple[NDArray[np.int64], int]:
    """Return the times of counted frames, and the last one's duration; notes packets that gave none as lost."""
    if not damaged:
        packets.lost_pts.extend(hidden_packets(packets.pts, pts))
    if is_avi and (damaged or len(packets.dts) == len(pts)):
        return np.sort(np.frombuffer(packets.dts, np.int64))[: len(pts)], 0  # the n-th time is that of the n-th shown
    return pts, packets.last_duration


def _shown_aperture(entry: VideoEntry | None, coded: tuple[int, int]) -> tuple[int, int] | None:
    aperture = None if entry is None else entry.aperture
    return aperture if aperture is not None and all(aperture) and aperture != coded else None


def _video_stream(path: str, container: av.container.InputContainer) -> tuple[av.VideoStream, bool]:
    """Return the first video stream, checked to fit into memory, and True if it is the only one."""
    streams = video_streams(container)
    if not streams:
        what = "only sound" if container.streams.audio else "no video"
        raise VideoError(f"{path}: has {what}, so there are no frames to caption", kind="no_video_stream")
    codec = streams[0].codec_context
    if codec is None:
        raise VideoError(f"{path}: its video codec is not known to this FFmpeg", kind="unsupported")
    if codec.width * codec.height > _MAX_PIXELS:
        raise VideoError(f"{path}: frames of {codec.width}x{codec.height} are too large", kind="unsupported")
    free = memory.available_memory()
    if free is not None and codec.width * codec.height * _PIXEL_BYTES > free:
        raise too_large(path, f"frames of {codec.width}x{codec.height}")
    return streams[0], len(streams) == 1


def _suspects(pts: NDArray[np.int64]) -> tuple[int, ...]:
    """Return the positions before and after the longest gaps in time."""
    gaps = np.diff(pts)
    if not len(gaps):
        return ()
    longest = np.argsort(-gaps, kind="stable")[:_MAX_GAPS]
    found = longest[gaps[longest] > 1.5 * np.median(gaps)]
    return tuple(int(position) for position in np.unique([found, found + 1]))


def _pixel_aspect(stream: av.VideoStream) -> float:
    """Return the width of a pixel over its height; 1 if unknown, absurd, or less than 1% from square."""
    aspect = float(stream.sample_aspect_ratio or 1)
    return aspect if 1 / _MAX_ASPECT <= aspect <= _MAX_ASPECT and abs(aspect - 1) > 0.01 else 1.0


def _first_picture(
    path: str, truncated: bool, aspect: float
) -> tuple[tuple[int, int], Orientation, float | None, str | None]:
    """Decode one picture; return its upright size in square pixels, its orientation, its tilt and the transfer of HDR.

    The tilt is what :func:`_turn_of` leaves of the rotation.
    """
    with opened(path) as container:
        stream = video_streams(container)[0]
        packets = islice(packets_of(container, stream), _FIRST_PICTURE_PACKETS)
        for picture in decode_all(stream, packets, threads=1):
            if picture is not None:  # the stream may begin with undecodable pictures
                turn, tilt = _turn_of(picture)
                width = max(1, round(picture.width * aspect))
                return turn.size(width, picture.height), turn, tilt, _HDR.get(int(picture.color_trc))
    raise VideoError(f"{path}: none of its frames can be decoded", kind="truncated" if truncated else "no_frames")


def _turn_of(picture: av.VideoFrame) -> tuple[Orientation, float | None]:
    """Return the orientation from a picture's display matrix, in quarter turns, and the degrees left if 1 or more."""
    matrix = cast("Mapping[Type, SideData]", picture.side_data).get(Type.DISPLAYMATRIX)
    if matrix is None:
        return Orientation(), None
    # It maps (x, y), y downwards, to (ax + cy, bx + dy). A negative determinant mirrors; undone first, the remainder is
    # a rotation.
    a, b, _, c, d = np.frombuffer(bytes(matrix), np.int32)[:5].astype(float)
    mirrored = bool(a * d - b * c < 0)
    if mirrored:
        a, b = -a, -b
    if a == 0 and b == 0:
        return Orientation(), None
    degrees = float(-np.degrees(np.arctan2(b, a)))
    turned = int(round(degrees / 90) * 90)
    tilt = round(degrees - turned, 1)
    return Orientation(turned % 360, mirrored), tilt if abs(tilt) >= 1 else None


def _count_frames(
    path: str, base: Fraction, rate: Fraction, broken_at: int | None
) -> tuple[Fraction, NDArray[np.int64], NDArray[np.int64], bool]:
    """Decode everything up to a packet known to be damaged, at byte ``broken_at``; beyond it a count is a guess.

    Return (time base, pts (N,), raw pts in output order (N,), True if it ended in damage).
    """
    raw = array("q")
    damaged = False
    with opened(path) as container:
        stream = video_streams(container)[0]
        packets = packets_of(container, stream)
        if broken_at is not None and broken_at >= 0:
            damaged = True
            packets = takewhile(lambda packet: packet.pos is None or packet.pos < broken_at, packets)
        for picture in decode_all(stream, packets):
            if picture is None:
                damaged = True
                break
            raw.append(Index.NO_PTS if picture.pts is None else picture.pts)
    given = np.frombuffer(raw, np.int64)
    if not len(given):
        raise VideoError(f"{path}: none of its frames can be decoded", kind="truncated" if damaged else "no_frames")
    pts = np.unique(given)
    if len(pts) == len(given) and pts[0] != Index.NO_PTS:
        return base, pts, given, damaged
    # No usable timestamps at all: frames follow each other at the stream's nominal rate.
    return 1 / (rate or Fraction(25)), np.arange(len(given), dtype=np.int64), given, damaged
