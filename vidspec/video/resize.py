"""Makes upright RGB frames of decoded pictures, scaled down if wanted; aspect kept, antialiased.

Pictures are scaled as coded and converted to RGB afterwards, so that no full-size copy is made. Enlarges only
pixels that are wider than high.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from vidspec.video.base import Frame, Index

if TYPE_CHECKING:
    import av

#: Planar format for each hardware format with two colours in one plane: the same samples, from which swscale makes the
#: same RGB as from software decoding.
_PLANAR = {"nv12": "yuv420p", "p010le": "yuv420p10le"}


def fitted(width: int, height: int, max_pixels: int | None) -> tuple[int, int]:
    """Return the largest (width, height) of the same aspect with at most max_pixels (>= 1); at least 1 x 1."""
    if max_pixels is None or width * height <= max_pixels:
        return width, height
    scale = math.sqrt(max_pixels / (width * height))
    new_width, new_height = max(1, int(width * scale)), max(1, int(height * scale))
    # If one side was held at one pixel, the other can still be too long.
    new_width = max(1, min(new_width, max_pixels // new_height))
    return new_width, max(1, min(new_height, max_pixels // new_width))


def scaled(
    picture: av.VideoFrame,
    width: int | None = None,
    height: int | None = None,
    format: str | None = None,
    interpolation: str | None = None,
) -> av.VideoFrame:
    """Return a picture scaled and converted by the calling thread alone.

    PyAV 19 keeps the scaler of each thread. A fork drops those of other threads, and would wait for ever for threads of
    a scaler.
    """
    return picture.reformat(width, height, format, interpolation=interpolation, threads=1)


def upright(picture: av.VideoFrame, index: Index, size: tuple[int, int]) -> Frame:
    """Return a decoded picture as RGB of ``size`` (width, height), at most the index's; a stream's size may change.

    If smaller, or its pixels are not square, each plane is scaled by itself, with swscale's bicubic filter widened for
    reduction: colours differ from scaling in RGB by values beyond black or white, and by rounding.
    """
    if (planar := _PLANAR.get(picture.format.name)) is not None:
        picture = scaled(picture, format=planar)
    width, height = index.turn.size(*size)
    if size == (index.width, index.height) and index.pixel_aspect == 1.0:
        frame = _rgb(scaled(picture, width, height, "rgb24"))
    elif picture.format.is_rgb or picture.format.has_palette:
        frame = resized(_rgb(scaled(picture, format="rgb24")), width, height)
    else:
        full_range = picture.format.name.startswith("yuvj")
        small = scaled(picture, width, height, "yuvj444p" if full_range else "yuv444p", "BICUBIC")
        frame = _rgb(scaled(small, format="rgb24"))
    return np.ascontiguousarray(index.turn.apply(frame))


def _rgb(picture: av.VideoFrame) -> Frame:
    return np.asarray(picture.to_ndarray(), np.uint8)


def resized(frame: Frame, width: int, height: int) -> Frame:
    """Return ``frame`` (H, W, 3) scaled to (height, width, 3) by swscale's bicubic filter, widened for reduction."""
    if frame.shape[:2] == (height, width):
        return frame
    import av  # not needed by a command whose reader runs in another process

    small = np.empty((height, width, 3), np.uint8)
    # One channel at a time: as RGB, swscale would halve the colour resolution; all at once take three times the memory.
    for channel in range(3):
        plane = av.VideoFrame.from_ndarray(np.ascontiguousarray(frame[..., channel]), format="gray")
        small[..., channel] = scaled(plane, width, height, interpolation="BICUBIC").to_ndarray()
    return small
