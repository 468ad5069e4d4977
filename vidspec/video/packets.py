"""One pass over the packets of a video stream, and what it tells: frames, damage, an early end. Decodes nothing."""

from __future__ import annotations

import re
from array import array
from dataclasses import dataclass, field
from fractions import Fraction
from typing import TYPE_CHECKING

import av
import numpy as np
from numpy.typing import NDArray

from vidspec.video import damage
from vidspec.video.base import ClipDamage, format_seconds
from vidspec.video.damage.found import DamageReport, DamageSpot
from vidspec.video.opening import codec_name, packets_of
from vidspec.video.payload import ANIMATIONS, CODECS, PictureInspector, check_animation, length_size

if TYPE_CHECKING:
    from av.packet import PktSideDataT

# Containers whose header states a length.
_STATES_LENGTH = {"mov,mp4,m4a,3gp,3g2,mj2", "matroska,webm", "avi"}

#: Kinds of side data that change how all later packets are decoded. A seek passes them over.
_STATE: tuple[PktSideDataT, ...] = ("palette", "new_extradata", "param_change")
# Flags of a packet.
_KEY, _BROKEN, _DISCARDED, _HIDDEN = 1, 2, 4, 8

# decord allocates as many frames as fit into the duration, and kills the process if memory is short.
_DECORD_FRAMES = 1_000_000
_APPENDED = "another film is appended to it, which is not read"
_APPENDED_HINT = "ffmpeg's concat demuxer joins films; --allow-damaged captions the first one"
_JOINED_HINT = "ffmpeg -i IN -c copy OUT.mp4 gives it one clock; --allow-damaged captions the first stream"


@dataclass
class PacketScan:
    """Result of one pass over the packets: decodable frames, keyframes, irregularities.

    The arrays ``all_pts``, ``dts``, ``positions`` and ``flags`` have an entry for each packet with data and a time.
    ``broken_at``: position of the first damaged one.
    """

    pts: array[int] = field(default_factory=lambda: array("q"))
    all_pts: array[int] = field(default_factory=lambda: array("q"))
    dts: array[int] = field(default_factory=lambda: array("q"))
    positions: array[int] = field(default_factory=lambda: array("q"))
    flags: bytearray = field(default_factory=bytearray)
    lost_pts: array[int] = field(default_factory=lambda: array("q"))
    key_pts: array[int] = field(default_factory=lambda: array("q"))
    key_dts: array[int] = field(default_factory=lambda: array("q"))
    seen: int = 0
    last_pts: int | None = None
    last_duration: int = 0
    tail_damaged: bool = False
    broken_at: int | None = None
    open_start: bool = False
    stateful: bool = False
    no_timestamps: int = 0
    leading: int = 0
    discarded: int = 0
    lost: int = 0


def read_packets(
    path: str, container: av.container.InputContainer, stream: av.VideoStream, found: DamageReport
) -> PacketScan:
    """Read all packets once, up to a joined stream. A frame counts if all data since its keyframe are intact.

    Raises:
        VideoError: an animation of too many pictures.
    """
    scan = PacketScan()
    begins = True  # no keyframe yet
    hides_frames = stream.codec_context.name in ("vp8", "libvpx")
    name = codec_name(stream.codec_context)
    width, height = stream.codec_context.width, stream.codec_context.height
    pictures = (
        PictureInspector(name, width * height, length_size(name, stream.codec_context.extradata or b""))
        if name in CODECS
        else None
    )
    try:
        for packet in packets_of(container, stream):
            if packet.dts is None and packet.pts is None and not packet.size:
                continue  # the flush packet at the end
            if found.joined is not None and packet.pos is not None and packet.pos >= found.joined:
                break
            scan.seen += 1
            scan.tail_damaged = packet.is_corrupt
            if not packet.size:
                continue  # a repeated frame in AVI
            if packet.pts is None:
                scan.no_timestamps += 1
                continue
            scan.stateful = scan.stateful or any(packet.has_sidedata(kind) for kind in _STATE)
            if name in ANIMATIONS:
                check_animation(path, scan.seen, width, height)
            broken = packet.is_corrupt or (pictures is not None and pictures.broken(bytes(packet)))
            if begins and pictures is not None and packet.is_keyframe and not broken:
                begins, scan.open_start = False, pictures.starts_open(bytes(packet))
            scan.all_pts.append(packet.pts)
            scan.dts.append(packet.pts if packet.dts is None else packet.dts)
            scan.positions.append(-1 if packet.pos is None else packet.pos)
            scan.flags.append(
                _KEY * packet.is_keyframe
                | _BROKEN * broken
                | _DISCARDED * packet.is_discard  # outside the edit list: decoded, never shown
                # VP8's alternative references are packets that show nothing.
                | _HIDDEN * (hides_frames and not bytes(packet)[0] & 0x10)
            )
            if scan.last_pts is None or packet.pts >= scan.last_pts:
                scan.last_pts, scan.last_duration = packet.pts, packet.duration or 0
    except (av.error.FFmpegError, OSError):
        scan.tail_damaged = True
    _mark_spots(scan, found)
    _sort_out(scan)
    return scan


def _mark_spots(scan: PacketScan, found: DamageReport) -> None:
    """Mark packets as broken whose bytes, up to the next packet, meet a damaged place of the container."""
    positions = np.maximum.accumulate(np.frombuffer(scan.positions, np.int64)) if scan.positions else np.zeros(0)
    for spot in found.spots:
        if spot.at is not None and (found.joined is None or spot.at < found.joined):
            first = max(0, int(np.searchsorted(positions, spot.at, side="left")) - 1)
            for number in range(first, int(np.searchsorted(positions, spot.end or spot.at, side="right"))):
                scan.flags[number] |= _BROKEN
    for number, flags in enumerate(scan.flags[1:]):
        scan.flags[number] |= flags & _BROKEN  # damage may begin in the packet before


def _sort_out(scan: PacketScan) -> None:
    """Separate decodable frames from lost ones: those that depend on broken or missing packets."""
    key: int | None = None  # keyframe that the current packets depend on; None if they have none
    lost_before = True  # True if the frames before the keyframe are lost
    damaged = False  # True if undecodable packets are due to damage, not to the stream's beginning
    for pts, dts, position, flags in zip(scan.all_pts, scan.dts, scan.positions, scan.flags, strict=True):
        if flags & _BROKEN:
            scan.broken_at = position if scan.broken_at is None else scan.broken_at
            key, damaged = None, True
        elif flags & _KEY:
            key, lost_before = pts, key is None
            scan.key_pts.append(pts)
            scan.key_dts.append(dts)
        if flags & _DISCARDED:
            scan.discarded += 1
        elif flags & _HIDDEN:
            pass
        elif key is None:
            scan.lost += 1
            if damaged:
                scan.lost_pts.append(pts)
        elif pts < key and lost_before:
            scan.lost += 1  # leads the keyframe: needs one that is not there
            if damaged:
                scan.lost_pts.append(pts)
        else:
            scan.leading += pts < key
            scan.pts.append(pts)


def hidden_packets(packets: array[int], pictures: NDArray[np.int64]) -> list[int]:
    """Return the times of packets without a picture next to other such packets; codecs hide single ones."""
    times = np.unique(np.frombuffer(packets, np.int64))
    bare = ~np.isin(times, pictures)
    near = np.zeros_like(bare)
    near[1:] |= bare[:-1]
    near[:-1] |= bare[1:]
    return [int(time) for time in times[bare & near]]


def find_damage(
    packets: PacketScan, found: DamageReport, pts: NDArray[np.int64], base: Fraction | None
) -> tuple[int, tuple[ClipDamage, ...]]:
    """Return the time of the first frame, lost or not, and the damage.

    Args:
        packets, found: of the file.
        pts: (N,) int64, times of the frames that can be decoded.
        base: seconds per unit of time; None if packets have no time.
    """
    if base is None:
        if found.joined is not None:
            what = "another stream is joined to it: its clock restarts"
            return int(pts[0]), (ClipDamage(what, hint=_JOINED_HINT),)
        if found.appended:
            return int(pts[0]), (ClipDamage(_APPENDED, hint=_APPENDED_HINT),)
        hinted = [DamageSpot(at, "packets are missing") for at in found.hints]
        return int(pts[0]), tuple(ClipDamage(spot.what) for spot in [*found.spots, *hinted][:1])
    times, positions = np.frombuffer(packets.all_pts, np.int64), np.frombuffer(packets.positions, np.int64)
    lost = np.frombuffer(packets.lost_pts, np.int64)
    if found.joined is not None:
        lost = lost[lost <= pts[-1]]  # FFmpeg reports the joined stream as a loss, and the last packets as changed
    first_shown = int(positions[np.flatnonzero(times == pts[0])[0]]) if (times == pts[0]).any() else 0
    if any(spot.at is not None and spot.at < first_shown for spot in found.spots):
        lost = np.append(lost, times[times < pts[0]])  # not a stream that begins within a group of pictures
    origin = min(int(pts[0]), int(lost.min())) if len(lost) else int(pts[0])
    seconds = (np.asarray((one - origin) * float(base), np.float64) for one in (times, lost, pts))
    damages = damage.damages(found, positions, *seconds)
    if found.appended:
        end = float((int(pts[-1]) - origin) * base)
        damages = (ClipDamage(_APPENDED, end, hint=_APPENDED_HINT), *damages)
    if found.joined is not None:
        end = float((int(times.max()) + packets.last_duration - origin) * base)
        what = f"another stream is joined to it: its clock restarts at {format_seconds(end)}"
        damages = (ClipDamage(what, start=float((int(pts[-1]) - origin) * base), hint=_JOINED_HINT), *damages)
    return origin, damages


def ends_early(
    container: av.container.InputContainer,
    stream: av.VideoStream,
    packets: PacketScan,
    base: Fraction,
    found: DamageReport,
) -> bool:
    """Return True if the header promises clearly more than the packets hold: a download or recording cut short.

    Only for containers whose header states it; in others FFmpeg estimates durations from the bit rate.
    """
    if found.ends_early or packets.last_pts is None or container.format.name not in _STATES_LENGTH:
        return bool(found.ends_early)
    if container.format.name == "avi":
        return False  # already counted, including the empty packets that FFmpeg leaves out
    # A matching count decides: edit lists and sound make durations ambiguous.
    if stream.frames and packets.seen >= stream.frames:
        return False
    promises = []
    if stream.duration is not None:
        promises.append(float(((stream.start_time or 0) + stream.duration) * base))
    clock = re.fullmatch(r"(\d+):(\d\d):(\d\d(?:\.\d+)?)", stream.metadata.get("DURATION", "").strip("\0 "))
    if clock:  # Matroska's per-stream statistics, which some tools copy from a longer file
        promises.append(int(clock[1]) * 3600 + int(clock[2]) * 60 + float(clock[3]))
    if container.duration is not None and (promises or len(container.streams) == 1):
        promises.append(((container.start_time or 0) + container.duration) / 1_000_000)
    slack = max(2 * packets.last_duration * float(base), 0.1)
    end = float((packets.last_pts + packets.last_duration) * base)
    return bool(promises) and min(promises) - end > slack


def decord_doubts(
    packets: PacketScan, order: str, first: int, single_stream: bool, aspect: float, room: float
) -> tuple[str, ...]:
    """Return the conditions under which decord 0.6.0 returned or could return wrong frames, or ended the process.

    ``room``: frames that fit into the duration at the nominal rate.
    """
    found = {
        "its timestamps do not order its frames": order == "count",
        "decord seeks wrongly in open GOPs": packets.leading > 0,
        "decord seeks wrongly in streams that do not start at 0": first != 0,
        "decord seeks past palettes and headers within the stream": packets.stateful,
        "decord ignores edit lists": packets.discarded > 0,
        "some of its frames cannot be decoded": packets.lost > 0,
        "it has several video streams": not single_stream,
        "decord ignores the aspect of pixels": aspect != 1.0,
        "decord makes room for frames that it does not have": room > _DECORD_FRAMES + packets.seen,
    }
    return tuple(reason for reason, true in found.items() if true)
