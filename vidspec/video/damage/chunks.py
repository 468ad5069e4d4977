"""Examines AVI, FLV and MP4 files: chunks of stated sizes follow each other."""

from __future__ import annotations

import mmap
from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

from vidspec.video.damage.found import DamageReport, DamageSpot
from vidspec.video.progress import advance

# Placeholders of sizes that are filled in at the end, which a writer to a pipe cannot do.
_UNFILLED = (0, 0xFFFFFFFF)


def avi(data: mmap.mmap, stream: int) -> DamageReport:
    """Find chunks that do not fill their lists; ``ends_early`` counts them, for an empty one repeats a frame.

    Frames have no times but their numbers: all that follows a damaged place is damaged.
    """
    spots: list[DamageSpot] = []
    seen = 0
    ours = b"%02d" % stream
    ends_early = streamed = False  # streamed: the writer could not fill in sizes and counts
    promised = 0
    index: list[tuple[bytes, int]] = []
    walked: list[tuple[bytes, int]] = []
    streams = 0

    def walk(at: int, end: int, in_movie: bool) -> None:
        nonlocal seen, ends_early, streamed, promised, streams
        while at + 8 <= end:
            advance()
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
                spots.append(DamageSpot(at, "bytes are missing or changed", len(data)))
                return
            elif stop > end:
                if stop > len(data):
                    ends_early = True
                if stop <= len(data) or index:
                    spots.append(DamageSpot(at, "bytes are missing or changed", len(data)))
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
    # An index that differs throughout follows another convention; one that differs here and there is damaged.
    listed = [chunk for chunk in walked if chunk[0][:2] != b"ix" and chunk[0] != b"JUNK"][: len(index)]
    wrong = sum(one != other for one, other in zip(listed, index, strict=False))
    if 0 < wrong <= len(index) // 10:
        spots.append(DamageSpot(None, "its index does not list its chunks"))
    return DamageReport(tuple(spots), (), ends_early or (not streamed and 0 < seen < promised))


def flv(data: mmap.mmap, _: int) -> DamageReport:
    """Find tags whose size is not repeated after them."""
    at = int.from_bytes(data[5:9], "big") + 4
    while at + 11 <= len(data):
        advance()
        size = 11 + int.from_bytes(data[at + 1 : at + 4], "big")
        if at + size + 4 > len(data):
            return DamageReport((), (), True)
        repeated = int.from_bytes(data[at + size : at + size + 4], "big")
        if data[at] & 0x1F not in (8, 9, 18) or repeated not in (size, size - 11, 0):
            return DamageReport((DamageSpot(at, "bytes are missing or changed"),))
        at += size + 4
    return DamageReport((), (), at < len(data))


class Box(NamedTuple):
    """A box of an MP4: its type, and where its content begins and ends."""

    kind: bytes
    start: int
    end: int


def iterate_boxes(data: mmap.mmap, at: int, end: int) -> Iterator[Box]:
    """Yield the boxes between two bytes, up to one that reaches beyond ``end``, or to bytes that are none."""
    while at + 8 <= end:
        size, head, kind = int.from_bytes(data[at : at + 4], "big"), 8, data[at + 4 : at + 8]
        if size == 1:
            size, head = int.from_bytes(data[at + 8 : at + 16], "big"), 16
        elif size == 0:
            size = end - at
        if size < head or not all(32 <= byte < 127 or byte == 0xA9 for byte in kind):
            return
        yield Box(kind, at + head, at + size)
        at += size


def mp4(data: mmap.mmap, _: int) -> DamageReport:
    """Find boxes that reach beyond the end, or follow none, and a second film, of which FFmpeg reads nothing."""
    at, kinds = 0, Counter[bytes]()
    for box in iterate_boxes(data, 0, len(data)):
        at, kinds[box.kind] = box.end, kinds[box.kind] + 1
    if at + 8 <= len(data) and any(data[at : at + 4]):
        return DamageReport((DamageSpot(None, "its boxes are broken"),))
    # Fragmented files may repeat their header before each fragment.
    appended = kinds[b"moov"] > 1 and not kinds[b"moof"]
    return DamageReport((), (), True if at > len(data) else None, appended=appended)
