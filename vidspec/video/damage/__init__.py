"""Finds missing or changed data in a file from its container's redundancy. Decodes nothing, opens no stream.

Transport streams number their packets, Matroska nests elements of stated sizes with CRCs, AVI, FLV and MP4 chain chunks
of stated sizes. None of them has a checksum of everything:
changes inside a compressed picture show in its bytes (``payload``) or when it is decoded (``pictures``), and not
always.

Each known container is one function in its own file: bytes and the video stream's number in, ``DamageReport`` out.
``spans`` converts that to times.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable

from vidspec.video.damage.chunks import avi, flv, mp4
from vidspec.video.damage.found import DamageReport, DamageSpot
from vidspec.video.damage.matroska import matroska
from vidspec.video.damage.mpegts import transport_stream
from vidspec.video.damage.spans import damages

__all__ = ["DamageReport", "DamageSpot", "damages", "examine"]

_EXAMINERS: dict[str, Callable[[mmap.mmap, int], DamageReport]] = {
    "mpegts": transport_stream,
    "matroska,webm": matroska,
    "mov,mp4,m4a,3gp,3g2,mj2": mp4,
    "avi": avi,
    "flv": flv,
}


def examine(path: str, container: str, stream_id: int) -> DamageReport:
    """Return the damage of the file at ``path`` in FFmpeg's format ``container``; none for unknown formats.

    ``stream_id``: the video stream's number in the container (a transport stream's PID, an AVI's or FLV's index).
    """
    by = _EXAMINERS.get(container)
    if by is None:
        return DamageReport()
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        try:
            return by(data, stream_id)
        except (IndexError, ValueError, OverflowError, RecursionError):  # impossible sizes and counts
            return DamageReport((DamageSpot(None, "its index is broken"),))
