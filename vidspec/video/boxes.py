"""Boxes of MP4 and QuickTime files: how a video track is stored, as far as FFmpeg's demuxer does not tell."""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from typing import NamedTuple

#: FFmpeg's name of the container.
MP4 = "mov,mp4,m4a,3gp,3g2,mj2"
#: Sample entries of encrypted video: Common Encryption, and Apple's FairPlay.
_ENCRYPTED = (b"encv", b"drmi")
#: Bytes of a visual sample entry before its own boxes.
_VISUAL_ENTRY = 78


class Box(NamedTuple):
    """A box: its type, and where its content begins and ends."""

    kind: bytes
    start: int
    end: int


class VideoEntry(NamedTuple):
    """Facts of a video track's sample entry.

    Attributes:
        encrypted: True if the pictures are.
        aperture: (width, height) in pixels that a player shows, if the file states a clean aperture (``clap``).
    """

    encrypted: bool
    aperture: tuple[int, int] | None


def iterate_boxes(data: mmap.mmap, at: int, end: int) -> Iterator[Box]:
    """Yield the boxes between two bytes, up to the first that is none or reaches beyond ``end``."""
    while at + 8 <= end:
        size, head, kind = int.from_bytes(data[at : at + 4], "big"), 8, data[at + 4 : at + 8]
        if size == 1:
            size, head = int.from_bytes(data[at + 8 : at + 16], "big"), 16
        elif size == 0:
            size = end - at
        if size < head or at + size > end:
            return
        yield Box(kind, at + head, at + size)
        at += size


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
