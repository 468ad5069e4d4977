"""Makes frames smaller: aspect kept, antialiased. Never enlarges, and knows nothing of files or models."""

from __future__ import annotations

import math

import av
import numpy as np

from vidspec.video.base import Frame

__all__ = ["fitted", "resized"]


def fitted(width: int, height: int, max_pixels: int | None) -> tuple[int, int]:
    """The largest (width, height) of the same aspect with width * height <= max_pixels (>= 1); at least 1 x 1."""
    if max_pixels is None or width * height <= max_pixels:
        return width, height
    scale = math.sqrt(max_pixels / (width * height))
    new_width, new_height = max(1, int(width * scale)), max(1, int(height * scale))
    # Where one side was held at a whole pixel, the other can still be too long.
    new_width = max(1, min(new_width, max_pixels // new_height))
    return new_width, max(1, min(new_height, max_pixels // new_width))


def resized(frame: Frame, width: int, height: int) -> Frame:
    """``frame`` (H, W, 3) scaled to (height, width, 3) by swscale's bicubic filter, widened for reduction."""
    if frame.shape[:2] == (height, width):
        return frame
    small = np.empty((height, width, 3), np.uint8)
    # A colour at a time: as RGB, swscale would halve the resolution of colour, and all at once take thrice the memory.
    for channel in range(3):
        plane = av.VideoFrame.from_ndarray(np.ascontiguousarray(frame[..., channel]), format="gray")
        small[..., channel] = plane.reformat(width=width, height=height, interpolation="BICUBIC").to_ndarray()
    return small
