"""Small pictures of a few frames of a clip, for displays that have no access to the frames. No decoding."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from vidspec.events.events import Thumbnail
from vidspec.video.sample import uniform

__all__ = ["draw_thumbnails"]

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
