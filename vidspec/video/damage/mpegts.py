"""Examines MPEG transport streams: the packets of each PID are numbered."""

from __future__ import annotations

import math
import mmap
from bisect import bisect_left
from collections.abc import Iterator, Sequence

import numpy as np

from vidspec.video.damage.found import DamageReport, DamageSpot
from vidspec.video.progress import advance

_NULL_PID = 0x1FFF
_CLOCK_ROUND = 1 << 33
# Bytes of a packet, without what some writers put before or after each.
_PACKET = 188
_STRETCH = 4096
# Damage beyond this many places is not searched for.
_ENOUGH = 1000


def transport_stream(data: mmap.mmap, pid: int) -> DamageReport:
    """Find packets that are misplaced, marked as faulty, or break their PID's 4-bit counter."""
    size, first = _packet_size(data)
    if not size:
        return DamageReport()
    expected = first
    spots: list[DamageSpot] = []
    hints: list[int] = []
    pictures: list[int] = []  # offsets of packets in which a picture of the video begins
    last: dict[int, tuple[int, int]] = {}  # counter and offset of each PID's last packet
    for start, count in _synced_runs(data, size, first):
        if start != expected:
            spots.append(DamageSpot(start, "bytes are missing or changed"))
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
                spots += [DamageSpot(int(place), "packets are missing") for place in places]
            else:
                hints += places.tolist()
        del rows
    whole = (len(data) - first) % size in (0, _PACKET)
    spots.sort(key=lambda spot: spot.at or 0)
    joined = _clock_restart(data, [spot.at or 0 for spot in spots], pictures)
    if joined is not None:
        spots = [spot for spot in spots if (spot.at or 0) < joined]
    return DamageReport(tuple(spots), tuple(sorted(hints)), not whole and joined is None, joined)


def _clock_restart(data: mmap.mmap, breaks: Sequence[int], pictures: Sequence[int]) -> int | None:
    """Return the first of ``breaks`` after which the pictures' clock restarts earlier; None if there is none.

    ``pictures``: offsets of packets in which one begins. Several must agree, as a changed byte changes a single time.
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
    """Return the decoding time of the picture that begins in the packet at ``at``, in 1/90000 s; NaN if not stated."""
    body = at + 4 + (1 + data[at + 4] if data[at + 3] & 0x20 else 0)
    if data[body : body + 3] != b"\0\0\1" or not data[body + 7] & 0x80:
        return math.nan
    field = data[body + 14 : body + 19] if data[body + 7] & 0x40 else data[body + 9 : body + 14]
    return (field[0] >> 1 & 7) << 30 | field[1] << 22 | field[2] >> 1 << 15 | field[3] << 7 | field[4] >> 1


def _packet_size(data: mmap.mmap) -> tuple[int, int]:
    """Return (bytes per packet, offset of the first) from the sync bytes of five in a row; (0, 0) if there are none."""
    for size in (188, 192, 204):
        for first in range(min(4 * size, len(data))):
            if all(first + n * size >= len(data) or data[first + n * size] == 0x47 for n in range(5)):
                return size, first
    return 0, 0


def _synced_runs(data: mmap.mmap, size: int, first: int) -> Iterator[tuple[int, int]]:
    """Yield (start, packets) of each run of packets that begin with the sync byte; long runs in parts."""
    at = first
    while at + _PACKET <= len(data):
        most = min((len(data) - at - _PACKET) // size + 1, _STRETCH)
        rows = np.ndarray((most,), np.uint8, data, at, (size,))
        lost = np.flatnonzero(rows != 0x47)
        count = int(lost[0]) if len(lost) else len(rows)
        del rows
        advance()
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
