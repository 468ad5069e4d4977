"""Examines MP4 and QuickTime files: their index states sizes, counts and durations several times over."""

from __future__ import annotations

import mmap
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from vidspec.video.base import format_seconds
from vidspec.video.damage.found import DamageReport, DamageSpot

__all__ = ["mp4"]

_NESTED = {b"moov", b"trak", b"mdia", b"minf", b"stbl", b"edts"}


class _Box(NamedTuple):
    kind: bytes
    at: int
    end: int


def mp4(data: mmap.mmap, _: int) -> DamageReport:
    """Find boxes that do not fill their parents, tables that disagree, samples outside of the media data."""
    top, whole = _boxes(data, 0, len(data))
    ends_early = bool(top) and top[-1].end > len(data)
    broken: list[DamageSpot] = [] if whole or ends_early else [DamageSpot(None, "its boxes are broken")]
    moov = next((box for box in top if box.kind == b"moov"), None)
    if moov is None or moov.end > len(data):
        return DamageReport(tuple(broken), (), ends_early or None)
    tracks, whole = _boxes(data, moov.at, moov.end)
    movie = _movie_scale(data, tracks)
    media = [(box.at, box.end) for box in top if box.kind == b"mdat"]
    extents: list[tuple[int, int]] = []
    fragmented = any(box.kind == b"mvex" for box in tracks)
    for track in (box for box in tracks if box.kind == b"trak"):
        parts: dict[bytes, _Box] = {}
        whole = _collect(data, track, parts) and whole
        what = None if fragmented else _table_defect(data, parts, movie, media, extents)
        if what:
            broken.append(DamageSpot(None, what))
    if not whole:
        broken.append(DamageSpot(None, "its index is broken"))
    extents.sort()
    if any(end > start for (_, end), (start, _) in pairwise(extents)):
        broken.append(DamageSpot(None, "its index places one picture's data inside another's"))
    return DamageReport(tuple(broken[:1]), (), ends_early or None)


def _boxes(data: mmap.mmap, at: int, end: int) -> tuple[list[_Box], bool]:
    """Return the boxes between ``at`` and ``end``, and True if they fill it exactly."""
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
    """Fill ``into`` with the boxes inside ``parent``, at any depth; return True if they fill it."""
    boxes, whole = _boxes(data, parent.at, parent.end)
    for box in boxes:
        into.setdefault(box.kind, box)
        if box.kind in _NESTED:
            whole = _collect(data, box, into) and whole
    return whole


def _table(data: mmap.mmap, box: _Box, columns: int, *, skip: int = 4, width: int = 4) -> NDArray[np.int64]:
    """Return the rows of a table box: a 32-bit count after ``skip`` bytes, then rows of ``columns`` numbers."""
    first = box.at + skip + 4
    rows = int.from_bytes(data[first - 4 : first], "big")
    if first + rows * columns * width > box.end:
        raise ValueError("a table is longer than its box")
    numbers = np.frombuffer(data[first : first + rows * columns * width], f">u{width}")
    return numbers.astype(np.int64).reshape(-1, columns)


def _after_dates(data: mmap.mmap, box: _Box, *, long_skip: int = 16, skip: int = 8) -> int:
    """Return the offset of the fields that follow the two dates of a header box."""
    return box.at + 4 + (long_skip if data[box.at] else skip)


def _duration(data: mmap.mmap, at: int, version: int) -> int | None:
    """Return a duration of 32 or 64 bits; None if it is zero or all ones (unknown)."""
    size = 8 if version else 4
    value = int.from_bytes(data[at : at + size], "big")
    return None if value in (0, (1 << 8 * size) - 1) else value


def _movie_scale(data: mmap.mmap, boxes: Sequence[_Box]) -> int:
    header = next((box for box in boxes if box.kind == b"mvhd"), None)
    if header is None:
        raise ValueError("no mvhd")
    at = _after_dates(data, header)
    return int.from_bytes(data[at : at + 4], "big")


def _table_defect(
    data: mmap.mmap,
    parts: dict[bytes, _Box],
    movie_scale: int,
    media: Sequence[tuple[int, int]],
    extents: list[tuple[int, int]],
) -> str | None:
    """Return the contradiction in one track's sample tables, or None; add the ranges of its chunks to ``extents``."""
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
    return _sync_defect(data, parts, count) or _duration_defect(data, parts, times, count, movie_scale)


def _sync_defect(data: mmap.mmap, parts: dict[bytes, _Box], count: int) -> str | None:
    if b"stss" in parts:
        keys = _table(data, parts[b"stss"], 1)[:, 0]
        if len(keys) and (keys[0] < 1 or keys[-1] > count or (np.diff(keys) <= 0).any()):
            return "its list of keyframes is broken"
    if b"ctts" in parts and int(_table(data, parts[b"ctts"], 2)[:, 0].sum()) > count:
        return "its index counts its frames in two ways"
    return None


def _duration_defect(
    data: mmap.mmap, parts: dict[bytes, _Box], times: NDArray[np.int64], count: int, movie_scale: int
) -> str | None:
    """Return the contradiction between durations of frames, track and edits (over two frames or 0.1 s), or None."""
    at = _after_dates(data, parts[b"mdhd"])
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
    track = _duration(data, _after_dates(data, header) + 8, data[header.at])
    if track is not None and abs(int(rows[:, 0].sum()) - track) / movie_scale > slack + 1.0:
        return "its edit list is not as long as it says"
    return None
