"""Finds what is missing or changed in a file by the redundancy its container has. Decodes nothing, opens no stream.

Transport streams number their packets, Matroska nests elements of stated sizes with CRCs, MP4 states sizes, counts and
durations several times over, AVI and FLV chain chunks of stated sizes. None of them has a checksum of everything: bytes
changed inside a compressed picture show in its bytes (``payload``) or when it is decoded (``decode_av``), and not
always.
"""

from __future__ import annotations

import math
import mmap
import zlib
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from vidspec.video.base import Damage, format_seconds

__all__ = ["Found", "Spot", "damages", "examine", "missing_frames"]


class Spot(NamedTuple):
    """Something wrong: ``what``, and the byte ``at`` which it was noticed (None: the file's index, not a place)."""

    at: int | None
    what: str


@dataclass
class Found:
    """What examining a container found.

    ``spots``: in the file's order. ``hints``: signs that bytes are missing, though none of the video's own; with a gap
    in time they are damage. ``ends_early``: whether the last part of the file is cut off; None where it does not say.
    ``joined``: the byte from which on another stream, with a clock of its own, follows the first.
    """

    spots: tuple[Spot, ...] = ()
    hints: tuple[int, ...] = ()
    ends_early: bool | None = None
    joined: int | None = None


def examine(path: str, container: str, stream_id: int) -> Found:
    """What is wrong with the file at ``path``, of FFmpeg's format ``container``; nothing for those not known here.

    ``stream_id``: the video stream's number in the container (a transport stream's PID, an AVI's or FLV's index).
    """
    by = _EXAMINERS.get(container)
    if by is None:
        return Found()
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        try:
            return by(data, stream_id)
        except (IndexError, ValueError, OverflowError, RecursionError):  # sizes and counts that cannot be
            return Found((Spot(None, "its index is broken"),))


# -- MPEG-TS ---------------------------------------------------------------------------------------------------------

_NULL_PID = 0x1FFF
_CLOCK_ROUND = 1 << 33
# Without what some writers put before or behind each.
_PACKET = 188
_STRETCH = 4096
# More places than this are not told apart.
_ENOUGH = 1000


def _transport_stream(data: mmap.mmap, pid: int) -> Found:
    """Packets that are not where they must be, are marked as faulty, or break their PID's count of 16."""
    size, first = _packet_size(data)
    if not size:
        return Found()
    expected = first
    spots: list[Spot] = []
    hints: list[int] = []
    pictures: list[int] = []  # where packets are in which one of the video's begins
    last: dict[int, tuple[int, int]] = {}  # of each PID's last packet: its count, and where it is
    for start, count in _aligned(data, size, first):
        if start != expected:
            spots.append(Spot(start, "bytes are missing or changed"))
        if len(spots) > _ENOUGH:
            break
        expected = start + count * size
        rows = np.ndarray((count, 6), np.uint8, data, start, (size, 1))
        pids = (rows[:, 1].astype(np.int32) & 0x1F) << 8 | rows[:, 2]
        for one in np.unique(pids).tolist():
            if one == _NULL_PID:
                continue
            at = np.flatnonzero(pids == one)
            head = rows[at].astype(np.int16)
            jumps = (head[:, 3] & 0x20 > 0) & (head[:, 4] > 0) & (head[:, 5] & 0x80 > 0)
            count_now, payload = head[:, 3] & 15, head[:, 3] & 0x10 > 0
            places = start + at * size
            count_before, place_before = last.get(one, (-1, 0))
            before = np.concatenate([[count_before], count_now[:-1]])
            last[one] = int(count_now[-1]), int(places[-1])
            step = (count_now - before) & 15
            # A packet may be sent twice, with the same bytes; one without payload does not count.
            wrong = (before >= 0) & ~jumps & np.where(payload, step > 1, step != 0)
            for again in np.flatnonzero((before >= 0) & ~jumps & payload & (step == 0)).tolist():
                other, here = int(places[again - 1]) if again else place_before, int(places[again])
                wrong[again] = data[other + 12 : other + _PACKET] != data[here + 12 : here + _PACKET]
            wrong |= head[:, 1] & 0x80 > 0
            if one == pid:
                pictures += places[head[:, 1] & 0x40 > 0].tolist()
            places = places[wrong]
            if one == pid:
                spots += [Spot(int(place), "packets are missing") for place in places]
            else:
                hints += places.tolist()
        del rows
    whole = (len(data) - first) % size in (0, _PACKET)
    spots.sort(key=lambda spot: spot.at or 0)
    joined = _joined(data, [spot.at or 0 for spot in spots], pictures)
    if joined is not None:
        spots = [spot for spot in spots if (spot.at or 0) < joined]
    return Found(tuple(spots), tuple(sorted(hints)), not whole and joined is None, joined)


def _joined(data: mmap.mmap, breaks: Sequence[int], pictures: Sequence[int]) -> int | None:
    """The first of ``breaks`` behind which the pictures' clock begins anew, earlier than it was; None if there is none.

    ``pictures``: where packets are in which one begins. Several must agree: a changed byte makes another time of one.
    """
    for at in breaks:
        number = bisect_left(pictures, at)
        before = [_decoding_time(data, place) for place in pictures[max(0, number - 3) : number]]
        behind = [_decoding_time(data, place) for place in pictures[number : number + 3]]
        if min(len(before), len(behind)) < 2 or math.isnan(sum(before) + sum(behind)):
            continue
        if 0 < min(before) - max(behind) < _CLOCK_ROUND // 2:
            return at
    return None


def _decoding_time(data: mmap.mmap, at: int) -> float:
    """When the picture that begins in the packet at ``at`` is decoded, in 1/90000 s; NaN where it does not say."""
    body = at + 4 + (1 + data[at + 4] if data[at + 3] & 0x20 else 0)
    if data[body : body + 3] != b"\0\0\1" or not data[body + 7] & 0x80:
        return math.nan
    field = data[body + 14 : body + 19] if data[body + 7] & 0x40 else data[body + 9 : body + 14]
    return (field[0] >> 1 & 7) << 30 | field[1] << 22 | field[2] >> 1 << 15 | field[3] << 7 | field[4] >> 1


def _packet_size(data: mmap.mmap) -> tuple[int, int]:
    """(bytes a packet, where the first begins), by the sync bytes of five in a row; (0, 0) if there are none."""
    for size in (188, 192, 204):
        for first in range(min(4 * size, len(data))):
            if all(first + n * size >= len(data) or data[first + n * size] == 0x47 for n in range(5)):
                return size, first
    return 0, 0


def _aligned(data: mmap.mmap, size: int, first: int) -> Iterator[tuple[int, int]]:
    """(start, packets) of each stretch in which every packet begins with the sync byte; long ones in parts."""
    at = first
    while at + _PACKET <= len(data):
        most = min((len(data) - at - _PACKET) // size + 1, _STRETCH)
        rows = np.ndarray((most,), np.uint8, data, at, (size,))
        lost = np.flatnonzero(rows != 0x47)
        count = int(lost[0]) if len(lost) else len(rows)
        del rows
        if count:
            yield at, count
        at += count * size
        if count == most:
            continue
        at += 1
        while at + _PACKET <= len(data):
            at = data.find(b"\x47", at)
            if at < 0:
                return
            if all(at + n * size >= len(data) or data[at + n * size] == 0x47 for n in range(4)):
                break
            at += 1


# -- Matroska ----------------------------------------------------------------------------------------------------------

_SEGMENT, _CLUSTER, _CRC, _EBML, _VOID = 0x18538067, 0x1F43B675, 0xBF, 0x1A45DFA3, 0xEC
_TOP = {0x114D9B74, 0x1549A966, 0x1654AE6B, _CLUSTER, 0x1C53BB6B, 0x1941A469, 0x1043A770, 0x1254C367, _CRC, _VOID}
_BLOCKS = {0xE7, 0x5854, 0xA7, 0xAB, 0xA3, 0xA0, 0xAF, _CRC, _VOID}


def _element(data: mmap.mmap, at: int, end: int) -> tuple[int, int, int | None] | None:
    """(id, where its content begins, size or None if unknown) of the EBML element at ``at``; None if it is none."""
    if at >= end or not data[at] or data[at] < 0x10:
        return None
    id_bytes = 9 - data[at].bit_length()
    at_size = at + id_bytes
    if at_size >= end or not data[at_size]:
        return None
    size_bytes = 9 - data[at_size].bit_length()
    content = at_size + size_bytes
    if content > end:
        return None
    bits = 7 * size_bytes
    size = int.from_bytes(data[at_size:content], "big") & (1 << bits) - 1
    return int.from_bytes(data[at:at_size], "big"), content, None if size == (1 << bits) - 1 else size


def _matroska(data: mmap.mmap, _: int) -> Found:
    """Elements that do not follow each other as their sizes say, or whose CRC is not that of their content."""
    spots: list[Spot] = []
    end = len(data)
    head = _element(data, 0, end)
    at = head[1] + head[2] if head and head[0] == _EBML and head[2] is not None else end
    segment = _element(data, at, end)
    if segment is None or segment[0] != _SEGMENT:
        return Found((Spot(0, "its header is broken"),))
    at = segment[1]
    stop = end if segment[2] is None else at + segment[2]
    ends_early = stop > end
    stop = min(stop, end)
    while at < stop:
        found = _element(data, at, stop)
        if found is None or found[0] not in _TOP:
            if found is not None and found[0] in (_EBML, _SEGMENT):
                break  # another segment behind this one
            spots.append(Spot(at, "bytes are missing or changed"))
            again = data.find(_CLUSTER.to_bytes(4, "big"), at + 1)
            if again < 0:
                break
            at = again
            continue
        name, content, size = found
        if size is None:
            at, whole = _blocks(data, content, stop, open_ended=True)
            if not whole and at < stop:
                spots.append(Spot(at, "bytes are missing or changed"))
                at += 1
            ends_early = ends_early or not whole
            continue
        if content + size > stop:
            if name == _CLUSTER and (again := data.find(_CLUSTER.to_bytes(4, "big"), content)) >= 0:
                spots.append(Spot(at, "bytes are missing or changed"))
                at = again
                continue
            ends_early = True
            break
        if data[content] == _CRC and data[content + 1] == 0x84:
            stated = int.from_bytes(data[content + 2 : content + 6], "little")
            with memoryview(data) as view, view[content + 6 : content + size] as inner:
                if zlib.crc32(inner) != stated:
                    spots.append(Spot(at, "bytes are missing or changed"))
        elif name == _CLUSTER and not _blocks(data, content, content + size, open_ended=False)[1]:
            spots.append(Spot(at, "bytes are missing or changed"))
        at = content + size
    return Found(tuple(spots), (), ends_early)


def _blocks(data: mmap.mmap, at: int, end: int, *, open_ended: bool) -> tuple[int, bool]:
    """(where the children of a cluster end, whether all are whole); open ended: up to the next element of its level."""
    while at < end:
        found = _element(data, at, end)
        if found is None:
            return at, False
        name, content, size = found
        if open_ended and name in _TOP - {_CRC, _VOID}:
            return at, True
        if name not in _BLOCKS or size is None or content + size > end:
            return at, False
        at = content + size
    return at, True


# -- MP4 and QuickTime -------------------------------------------------------------------------------------------------

_NESTED = {b"moov", b"trak", b"mdia", b"minf", b"stbl", b"edts"}


class _Box(NamedTuple):
    kind: bytes
    at: int
    end: int


def _mp4(data: mmap.mmap, _: int) -> Found:
    """Boxes that do not fill their parents, tables that disagree, samples outside of the media data."""
    top, whole = _boxes(data, 0, len(data))
    ends_early = bool(top) and top[-1].end > len(data)
    broken: list[Spot] = [] if whole or ends_early else [Spot(None, "its boxes are broken")]
    moov = next((box for box in top if box.kind == b"moov"), None)
    if moov is None or moov.end > len(data):
        return Found(tuple(broken), (), ends_early or None)
    tracks, whole = _boxes(data, moov.at, moov.end)
    movie = _movie_scale(data, tracks)
    media = [(box.at, box.end) for box in top if box.kind == b"mdat"]
    extents: list[tuple[int, int]] = []
    fragmented = any(box.kind == b"mvex" for box in tracks)
    for track in (box for box in tracks if box.kind == b"trak"):
        parts: dict[bytes, _Box] = {}
        whole = _collect(data, track, parts) and whole
        what = None if fragmented else _tables(data, parts, movie, media, extents)
        if what:
            broken.append(Spot(None, what))
    if not whole:
        broken.append(Spot(None, "its index is broken"))
    extents.sort()
    if any(end > start for (_, end), (start, _) in pairwise(extents)):
        broken.append(Spot(None, "its index places one picture's data inside another's"))
    return Found(tuple(broken[:1]), (), ends_early or None)


def _boxes(data: mmap.mmap, at: int, end: int) -> tuple[list[_Box], bool]:
    """The boxes between ``at`` and ``end``, and whether they fill it exactly."""
    found: list[_Box] = []
    while at + 8 <= end:
        size, kind, body = int.from_bytes(data[at : at + 4], "big"), data[at + 4 : at + 8], at + 8
        if size == 1:
            size, body = int.from_bytes(data[at + 8 : at + 16], "big"), at + 16
        elif size == 0 and kind == b"mdat":
            size = len(data) - at  # up to the end of the file
        elif size == 0 and not any(data[at:end]):
            return found, True  # padding
        if size < body - at or not all(32 <= byte < 127 or byte == 0xA9 for byte in kind):
            return found, False
        found.append(_Box(kind, body, at + size))
        at += size
    return found, at <= end and not any(data[at:end])


def _collect(data: mmap.mmap, parent: _Box, into: dict[bytes, _Box]) -> bool:
    """Fills ``into`` with the boxes inside ``parent``, at any depth; whether they fill it."""
    boxes, whole = _boxes(data, parent.at, parent.end)
    for box in boxes:
        into.setdefault(box.kind, box)
        if box.kind in _NESTED:
            whole = _collect(data, box, into) and whole
    return whole


def _table(data: mmap.mmap, box: _Box, columns: int, *, skip: int = 4, width: int = 4) -> NDArray[np.int64]:
    """The rows of a table box: a count of 32 bits behind ``skip`` bytes, then rows of ``columns`` numbers."""
    first = box.at + skip + 4
    rows = int.from_bytes(data[first - 4 : first], "big")
    if first + rows * columns * width > box.end:
        raise ValueError("a table is longer than its box")
    numbers = np.frombuffer(data[first : first + rows * columns * width], f">u{width}")
    return numbers.astype(np.int64).reshape(-1, columns)


def _clock(data: mmap.mmap, box: _Box, *, long_skip: int = 16, skip: int = 8) -> int:
    """Where behind a header box's version the fields after its two dates begin."""
    return box.at + 4 + (long_skip if data[box.at] else skip)


def _duration(data: mmap.mmap, at: int, version: int) -> int | None:
    """A duration of 32 or 64 bits; None where all its bits say that it is not known, or it is none."""
    size = 8 if version else 4
    value = int.from_bytes(data[at : at + size], "big")
    return None if value in (0, (1 << 8 * size) - 1) else value


def _movie_scale(data: mmap.mmap, boxes: Sequence[_Box]) -> int:
    header = next((box for box in boxes if box.kind == b"mvhd"), None)
    if header is None:
        raise ValueError("no mvhd")
    at = _clock(data, header)
    return int.from_bytes(data[at : at + 4], "big")


def _tables(
    data: mmap.mmap,
    parts: dict[bytes, _Box],
    movie_scale: int,
    media: Sequence[tuple[int, int]],
    extents: list[tuple[int, int]],
) -> str | None:
    """What one track's sample tables contradict, or None; adds where its chunks lie to ``extents``."""
    sizes_box = parts.get(b"stsz")
    chunks_box = parts.get(b"stco") or parts.get(b"co64")
    if not {b"stts", b"stsc", b"mdhd", b"hdlr"} <= parts.keys() or sizes_box is None or chunks_box is None:
        return "its index is broken" if sizes_box or b"stts" in parts else None
    video = data[parts[b"hdlr"].at + 8 : parts[b"hdlr"].at + 12] == b"vide"
    fixed = int.from_bytes(data[sizes_box.at + 4 : sizes_box.at + 8], "big")
    count = int.from_bytes(data[sizes_box.at + 8 : sizes_box.at + 12], "big")
    times = _table(data, parts[b"stts"], 2)
    if not count:
        return None
    if count * max(fixed, 1) > len(data) and video:
        return "its index has more frames than the file"
    if int(times[:, 0].sum()) != count:
        return "its index counts its frames in two ways" if video else None
    offsets = _table(data, chunks_box, 1, width=8 if chunks_box.kind == b"co64" else 4)[:, 0]
    runs = _table(data, parts[b"stsc"], 3)
    if not len(runs) or runs[0, 0] != 1 or (np.diff(runs[:, 0]) <= 0).any() or runs[-1, 0] > len(offsets):
        return "its index is broken" if video else None
    per_chunk = np.repeat(runs[:, 1], np.diff(np.append(runs[:, 0], len(offsets) + 1)))
    if int(per_chunk.sum()) != count or len(per_chunk) != len(offsets):
        return "its index counts its frames in two ways" if video else None
    if not video and fixed:
        return None  # sound counted in samples, not in packets
    sizes = np.full(count, fixed) if fixed else _table(data, sizes_box, 1, skip=8)[:, 0]
    ends = np.cumsum(per_chunk)
    sums = np.append(0, np.cumsum(sizes))
    stops = offsets + sums[ends] - sums[ends - per_chunk]
    extents += zip(offsets.tolist(), stops.tolist(), strict=True)
    if not video:
        return None
    outside = [(start, stop) for start, stop in zip(offsets.tolist(), stops.tolist(), strict=True)
               if not any(low <= start and stop <= high for low, high in media)]  # fmt: skip
    if outside:
        return "its index points outside of its data"
    return _sync_table(data, parts, count) or _lengths(data, parts, times, count, movie_scale)


def _sync_table(data: mmap.mmap, parts: dict[bytes, _Box], count: int) -> str | None:
    if b"stss" in parts:
        keys = _table(data, parts[b"stss"], 1)[:, 0]
        if len(keys) and (keys[0] < 1 or keys[-1] > count or (np.diff(keys) <= 0).any()):
            return "its list of keyframes is broken"
    if b"ctts" in parts and int(_table(data, parts[b"ctts"], 2)[:, 0].sum()) > count:
        return "its index counts its frames in two ways"
    return None


def _lengths(
    data: mmap.mmap, parts: dict[bytes, _Box], times: NDArray[np.int64], count: int, movie_scale: int
) -> str | None:
    """Whether frames' durations, the track's and its edits' agree, within two frames or a tenth of a second."""
    at = _clock(data, parts[b"mdhd"])
    scale = int.from_bytes(data[at : at + 4], "big")
    if not scale or not movie_scale:
        return "its clock is broken"
    total = int((times[:, 0] * times[:, 1]).sum())
    slack = max(2 * total / count / scale, 0.1)
    stated = _duration(data, at + 4, data[parts[b"mdhd"].at])
    if stated is not None and total / scale - stated / scale > slack:
        return f"its frames last {format_seconds(total / scale)}, its index says {format_seconds(stated / scale)}"
    if b"elst" not in parts:
        return None
    box = parts[b"elst"]
    rows = _table(data, box, 5 if data[box.at] else 3)
    if data[box.at]:
        rows = np.stack([rows[:, 0] << 32 | rows[:, 1], rows[:, 2] << 32 | rows[:, 3]], 1)
    begins = np.where(rows[:, 1] >= 1 << 31, rows[:, 1] - (1 << 32), rows[:, 1])
    shown = begins >= 0
    if b"ctts" in parts:
        shifts = _table(data, parts[b"ctts"], 2)
        total += int(np.where(shifts[:, 1] >= 1 << 31, 0, shifts[:, 1]).max(initial=0))
    if (begins[shown] / scale + rows[shown, 0] / movie_scale > total / scale + slack + 1 / movie_scale).any():
        return "its edit list shows more than it has"
    header = parts[b"tkhd"]
    track = _duration(data, _clock(data, header) + 8, data[header.at])
    if track is not None and abs(int(rows[:, 0].sum()) - track) / movie_scale > slack + 1.0:
        return "its edit list is not as long as it says"
    return None


# -- AVI and FLV -------------------------------------------------------------------------------------------------------


# What stands for a size that was to be filled in at the end, which a writer to a pipe cannot.
_UNFILLED = (0, 0xFFFFFFFF)


def _avi(data: mmap.mmap, stream: int) -> Found:
    """Chunks that do not fill their lists; ``ends_early`` counts them, for an empty one repeats a frame."""
    spots: list[Spot] = []
    seen = 0
    ours = b"%02d" % stream
    ends_early = streamed = False  # streamed: its writer could not go back to fill in sizes and counts
    promised = 0
    index: list[tuple[bytes, int]] = []
    walked: list[tuple[bytes, int]] = []
    streams = 0

    def walk(at: int, end: int, in_movie: bool) -> None:
        nonlocal seen, ends_early, streamed, promised, streams
        while at + 8 <= end:
            kind, size = data[at : at + 4], int.from_bytes(data[at + 4 : at + 8], "little")
            stop = at + 8 + size
            if kind in (b"RIFF", b"LIST"):
                movie = data[at + 8 : at + 12] == b"movi"
                if size in _UNFILLED and (movie or kind == b"RIFF"):
                    streamed, stop = streamed or movie, len(data)
                elif stop > len(data):
                    ends_early, stop = True, len(data)
                walk(at + 12, min(stop, end), in_movie or movie)
            elif not all(32 <= byte < 127 for byte in kind):
                spots.append(Spot(at, "bytes are missing or changed"))
                return
            elif stop > end:
                if stop > len(data):
                    ends_early = True
                if stop <= len(data) or index:
                    spots.append(Spot(at, "bytes are missing or changed"))
                return
            elif in_movie:
                walked.append((kind, size))
                seen += kind[:2] == ours and kind[2:3] in (b"d", b"D")
            elif kind == b"strh":
                if streams == stream:
                    promised = int.from_bytes(data[at + 40 : at + 44], "little")
                streams += 1
            elif kind == b"idx1":
                index.extend(
                    (data[row : row + 4], int.from_bytes(data[row + 12 : row + 16], "little"))
                    for row in range(at + 8, stop - 15, 16)
                )
            at = stop + (size & 1)

    walk(0, len(data), False)
    # An index that lists other chunks throughout is one kept in its own way; one that does here and there is damaged.
    listed = [chunk for chunk in walked if chunk[0][:2] != b"ix" and chunk[0] != b"JUNK"][: len(index)]
    wrong = sum(one != other for one, other in zip(listed, index, strict=False))
    if 0 < wrong <= len(index) // 10:
        spots.append(Spot(None, "its index does not list its chunks"))
    return Found(tuple(spots), (), ends_early or (not streamed and 0 < seen < promised))


def _flv(data: mmap.mmap, _: int) -> Found:
    """Tags whose size is not repeated behind them."""
    at = int.from_bytes(data[5:9], "big") + 4
    while at + 11 <= len(data):
        size = 11 + int.from_bytes(data[at + 1 : at + 4], "big")
        if at + size + 4 > len(data):
            return Found((), (), True)
        repeated = int.from_bytes(data[at + size : at + size + 4], "big")
        if data[at] & 0x1F not in (8, 9, 18) or repeated not in (size, size - 11, 0):
            return Found((Spot(at, "bytes are missing or changed"),))
        at += size + 4
    return Found((), (), at < len(data))


_EXAMINERS: dict[str, Callable[[mmap.mmap, int], Found]] = {
    "mpegts": _transport_stream,
    "matroska,webm": _matroska,
    "mov,mp4,m4a,3gp,3g2,mj2": _mp4,
    "avi": _avi,
    "flv": _flv,
}


# -- what it means in time ---------------------------------------------------------------------------------------------


def missing_frames(start: float, end: float, shown: NDArray[np.float64], usual: float) -> int:
    """How many frames, ``usual`` seconds apart, must have been between two times besides those ``shown`` (N,)."""
    if usual <= 0:
        return 0
    present = int(((shown > start + usual / 2) & (shown < end - usual / 2)).sum())
    return max(round((end - start) / usual) - 1 - present, 0)


def damages(
    found: Found,
    positions: NDArray[np.int64],
    times: NDArray[np.float64],
    lost: NDArray[np.float64],
    shown: NDArray[np.float64],
) -> tuple[Damage, ...]:
    """Where in time a file's damage lies, merged, with how many frames it costs.

    ``positions``, ``times`` (P,): where each packet begins and when it is shown (seconds). ``lost`` (L,): the times of
    packets that cannot be decoded for it. ``shown`` (N,): the times of the frames that can be.
    """
    whole = [Damage(spot.what) for spot in found.spots if spot.at is None]
    usual = float(np.median(np.diff(shown))) if len(shown) > 1 else 0.0
    order = np.argsort(positions, kind="stable")
    positions, times = positions[order], times[order]
    places = [spot.at for spot in found.spots if spot.at is not None]
    ranges = []
    shown_or_lost = np.unique(times)
    gaps = np.flatnonzero(np.diff(shown_or_lost) > 1.5 * usual) if usual else ()
    holes = [(float(shown_or_lost[gap]), float(shown_or_lost[gap + 1])) for gap in gaps]
    for at in [*places, *(found.hints if holes else ())]:
        after = int(np.searchsorted(positions, at, side="left"))
        start = float(times[after - 1]) if after else 0.0
        end = float(times[after]) if after < len(times) else float(times.max(initial=0.0))
        start, end = min(start, end), max(start, end)
        if at in places:
            ranges.append((start, end))
        else:
            ranges += [hole for hole in holes if hole[0] <= end + usual and hole[1] >= start - usual]
    for time in lost.tolist():
        before, behind = int(np.searchsorted(shown, time)) - 1, int(np.searchsorted(shown, time, side="right"))
        start, end = shown[before] if before >= 0 else 0.0, shown[behind] if behind < len(shown) else time
        ranges.append((float(start), float(end)))
    merged: list[Damage] = []
    for start, end in sorted(ranges):
        if merged and start <= (merged[-1].end or 0.0) + 1e-9:
            merged[-1] = replace(merged[-1], end=max(merged[-1].end or 0.0, end))
        else:
            merged.append(Damage("", start, end))
    told = []
    for one in merged:
        start, end = one.start or 0.0, one.end or 0.0
        missing = missing_frames(start, end, shown, usual)
        count = {0: "bytes are missing or changed", 1: "about 1 frame is missing"}.get(
            missing, f"about {missing} frames are missing"
        )
        told.append(replace(one, what=f"{count} between {format_seconds(start)} and {format_seconds(end)}"))
    return (*told, *whole)
