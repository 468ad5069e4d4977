"""Selects frames of a video by arithmetic on timestamps, and makes thumbnails of a few. Pure; decodes nothing.

All times are float64 seconds since the first frame of the stream, increasing. ``slack`` (seconds) is the tolerance for
timestamps rounded to the container's clock, so that frame 2 of 30 fps, stored as 67 ms, counts as shown at 2/30 s.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from vidspec.events.events import Thumbnail

#: Most thumbnails of a clip, their longer side in pixels, and the points per pixel and axis that are averaged.
COUNT, SIDE, POINTS = 8, 40, 3


def draw_thumbnails(frames: NDArray[np.uint8], seconds: Sequence[float]) -> tuple[Thumbnail, ...]:
    """Return thumbnails of at most ``COUNT`` evenly spaced frames; none if the frames have no pixels.

    Args:
        frames: (N, H, W, 3) uint8 RGB.
        seconds: N times.
    """
    if not frames.size:
        return ()
    high, wide = frames.shape[1:3]
    scale = SIDE / max(high, wide)
    rows, columns = (max(1, min(side, round(side * scale))) for side in (high, wide))
    at_rows = np.arange(rows * POINTS) * high // (rows * POINTS)
    at_columns = np.arange(columns * POINTS) * wide // (columns * POINTS)
    found = []
    for index in uniform(len(frames), COUNT).tolist():
        points = frames[index][np.ix_(at_rows, at_columns)].reshape(rows, POINTS, columns, POINTS, 3)
        pixels = points.mean((1, 3)).astype(np.uint8)
        found.append(Thumbnail(index, float(seconds[index]), rows, columns, pixels.tobytes()))
    return tuple(found)


DEFAULT_FRAMES = 32


def uniform(count: int, frames: int) -> NDArray[np.int64]:
    """Return ``frames`` positions spread evenly over ``count`` frames, first and last included.

    ``linspace(0, count - 1, frames)`` rounded half to even, as Qwen-VL's own loader does. If ``frames`` is at least
    ``count``, each frame is taken once. A single frame of several is the first.
    """
    if count < 1 or frames < 1:
        raise ValueError(f"need at least one frame of at least one, not {frames} of {count}")
    if frames >= count:
        return np.arange(count, dtype=np.int64)
    return np.asarray(np.linspace(0, count - 1, frames).round(), np.int64)


def uniform_in_time(times: NDArray[np.float64], frames: int) -> NDArray[np.int64]:
    """Return the positions of the frames on screen at ``frames`` evenly spaced moments, first and last included."""
    moments = np.linspace(times[0], times[-1], frames)
    return np.asarray(np.searchsorted(times, moments + 1e-9, side="right") - 1, np.int64)


def first_of_steps(times: Sequence[float], steps: int) -> Sequence[float]:
    """Return the start of each temporal step; empty if the frames do not make that many steps.

    A step of the Qwen models is two frames (the last one alone for an odd number).
    """
    begins = times[:: -(-len(times) // max(1, steps)) or 1]
    return begins if len(begins) == steps else ()


def within(
    times: NDArray[np.float64], duration: float, start: float | None, end: float | None, *, slack: float = 0.0
) -> tuple[int, int]:
    """Return the half-open range of positions whose timestamps lie in [start, end] seconds.

    A frame that stays on screen during the whole part counts. Empty (equal bounds) if nothing is shown, as from
    ``duration`` on.
    """
    first = 0.0 if start is None else start
    last = float("inf") if end is None else end
    low = int(np.searchsorted(times, first - slack, side="left"))
    high = int(np.searchsorted(times, last + slack, side="right"))
    if low < high:
        return low, high
    if first < duration and len(times):
        return max(low - 1, 0), max(low, 1)
    return low, low


def ticks(fps: float, duration: float, start: float | None, end: float | None, *, slack: float = 0.0) -> int:
    """Return the number of ticks ``start + k / fps`` in [start, end) and before ``duration``."""
    first = 0.0 if start is None else start
    last = duration if end is None else min(end, duration)
    if last <= first:
        return 0
    count = np.ceil(min((last - first - slack) * fps - 1e-9, 2.0**53))
    return max(1, int(count))


def shown_at(
    times: NDArray[np.float64], fps: float, start: float | None, count: int, *, slack: float = 0.0
) -> NDArray[np.int64]:
    """Return the position of the frame on screen at each of ``count`` ticks ``start + k / fps``.

    That is the last frame whose timestamp is not later. A frame on screen at several ticks is repeated.
    """
    moments = (0.0 if start is None else start) + np.arange(count, dtype=np.float64) / fps
    positions = np.searchsorted(times, moments + slack, side="right") - 1
    return np.clip(positions, 0, len(times) - 1).astype(np.int64)


def nearest(times: NDArray[np.float64], among: NDArray[np.int64], positions: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return, for each of ``positions`` (increasing), the nearest in time of ``among``; ties go to the earlier.

    Prefers those between the first and the last position: frames outside the selected part are not shown.
    """
    inside = among[(among >= positions[0]) & (among <= positions[-1])]
    found = inside if len(inside) else among
    after = np.searchsorted(times[found], times[positions]).clip(0, len(found) - 1)
    before = (after - 1).clip(0)
    earlier = times[positions] - times[found[before]] <= times[found[after]] - times[positions]
    return np.asarray(np.where(earlier, found[before], found[after]), np.int64)
