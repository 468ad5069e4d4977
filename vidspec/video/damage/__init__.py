"""Finds missing or changed data in a file from its container's redundancy. Decodes nothing, opens no stream.

Transport streams number their packets, Matroska nests elements of stated sizes with CRCs, AVI, FLV and MP4 chain chunks
of stated sizes. No container has a checksum of everything: changes inside a compressed picture show in its bytes
(``payload``) or when it is decoded (``pictures``), and not always.

Each container is one function in its own file, from bytes and the video stream's number to a ``DamageReport``.
:func:`damages` converts that to times.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from vidspec.video.base import ClipDamage, format_seconds
from vidspec.video.damage.chunks import avi, flv, mp4
from vidspec.video.damage.found import DamageReport, DamageSpot
from vidspec.video.damage.matroska import matroska
from vidspec.video.damage.mpegts import transport_stream


def damages(
    found: DamageReport,
    positions: NDArray[np.int64],
    times: NDArray[np.float64],
    lost: NDArray[np.float64],
    shown: NDArray[np.float64],
) -> tuple[ClipDamage, ...]:
    """Return the times of a file's damage, merged, with the number of frames it costs.

    ``positions``, ``times`` (P,): offset and presentation time (seconds) of each packet. ``lost`` (L,): times of
    packets that cannot be decoded because of it. ``shown`` (N,): times of the frames that can be.
    """
    whole = [ClipDamage(spot.what) for spot in found.spots if spot.at is None]
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
    merged: list[tuple[float, float]] = []
    for start, end in sorted(ranges):
        if merged and start <= merged[-1][1] + 1e-9:
            merged[-1] = merged[-1][0], max(merged[-1][1], end)
        else:
            merged.append((start, end))
    return (*(ClipDamage(_describe_loss(start, end, shown, usual), start, end) for start, end in merged), *whole)


def _describe_loss(start: float, end: float, shown: NDArray[np.float64], usual: float) -> str:
    """Describe the loss between two times, with frames ``usual`` seconds apart, apart from those ``shown`` (N,)."""
    present = int(((shown > start + usual / 2) & (shown < end - usual / 2)).sum())
    missing = max(round((end - start) / usual) - 1 - present, 0) if usual > 0 else 0
    frames = "1 frame is" if missing == 1 else f"{missing} frames are"
    what = f"about {frames} missing" if missing else "bytes are missing or changed"
    return f"{what} between {format_seconds(start)} and {format_seconds(end)}"


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
