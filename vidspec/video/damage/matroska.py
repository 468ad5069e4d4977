"""Examines Matroska and WebM files: elements of stated sizes are nested, some with CRCs."""

from __future__ import annotations

import mmap
import zlib

from vidspec.video.damage.found import DamageReport, DamageSpot
from vidspec.video.progress import advance

_SEGMENT, _CLUSTER, _CRC, _EBML, _VOID = 0x18538067, 0x1F43B675, 0xBF, 0x1A45DFA3, 0xEC
_TOP = {0x114D9B74, 0x1549A966, 0x1654AE6B, _CLUSTER, 0x1C53BB6B, 0x1941A469, 0x1043A770, 0x1254C367, _CRC, _VOID}
_BLOCKS = {0xE7, 0x5854, 0xA7, 0xAB, 0xA3, 0xA0, 0xAF, _CRC, _VOID}


def _element(data: mmap.mmap, at: int, end: int) -> tuple[int, int, int | None] | None:
    """Return (id, start of the content, size or None if unknown) of the EBML element at ``at``; None if it is none."""
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


def matroska(data: mmap.mmap, _: int) -> DamageReport:
    """Find elements that contradict the stated sizes or CRCs."""
    spots: list[DamageSpot] = []
    end = len(data)
    head = _element(data, 0, end)
    at = head[1] + head[2] if head and head[0] == _EBML and head[2] is not None else end
    segment = _element(data, at, end)
    if segment is None or segment[0] != _SEGMENT:
        return DamageReport((DamageSpot(0, "its header is broken"),))
    at = segment[1]
    stop = end if segment[2] is None else at + segment[2]
    ends_early = stop > end
    stop = min(stop, end)
    while at < stop:
        advance()
        found = _element(data, at, stop)
        if found is None or found[0] not in _TOP:
            if found is not None and found[0] in (_EBML, _SEGMENT):
                break  # another segment follows
            again = data.find(_CLUSTER.to_bytes(4, "big"), at + 1)
            spots.append(DamageSpot(at, "bytes are missing or changed", again if again >= 0 else end))
            if again < 0:
                break
            at = again
            continue
        name, content, size = found
        if size is None:
            at, whole = _cluster_end(data, content, stop, open_ended=True)
            if not whole and at < stop:
                spots.append(DamageSpot(at, "bytes are missing or changed"))
                at += 1
            ends_early = ends_early or not whole
            continue
        if content + size > stop:
            if name == _CLUSTER and (again := data.find(_CLUSTER.to_bytes(4, "big"), content)) >= 0:
                spots.append(DamageSpot(at, "bytes are missing or changed", again))
                at = again
                continue
            ends_early = True
            break
        if data[content] == _CRC and data[content + 1] == 0x84:
            stated = int.from_bytes(data[content + 2 : content + 6], "little")
            with memoryview(data) as view, view[content + 6 : content + size] as inner:
                if zlib.crc32(inner) != stated:
                    spots.append(DamageSpot(at, "bytes are missing or changed", content + size))
        elif name == _CLUSTER and not _cluster_end(data, content, content + size, open_ended=False)[1]:
            spots.append(DamageSpot(at, "bytes are missing or changed", content + size))
        at = content + size
    return DamageReport(tuple(spots), (), ends_early)


def _cluster_end(data: mmap.mmap, at: int, end: int, *, open_ended: bool) -> tuple[int, bool]:
    """Return (end of a cluster's children, True if all are intact); open ended: up to the next element of its level."""
    while at < end:
        advance()
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
