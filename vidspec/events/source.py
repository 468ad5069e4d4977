"""Facts about the source file of a caption. ``vidspec.video`` finds them."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["SourceFacts"]


@dataclass(frozen=True)
class SourceFacts:
    """Facts about the source file of a clip.

    ``width`` and ``height`` are those of an upright frame before ``max_pixels``; non-square pixels are kept.
    ``rotation`` is the applied rotation in degrees counter-clockwise (0, 90, 180, 270). ``fps`` is the mean rate.
    ``frame_count`` counts the frames that can be delivered. ``decoder`` is the one that delivered them: av, decord or a
    hardware decoder's name. ``damage`` lists missing or undecodable parts of the file; empty unless damage was allowed.
    """

    path: str
    duration_s: float
    width: int
    height: int
    codec: str
    container: str
    fps: float
    variable_fps: bool
    rotation: int
    frame_count: int
    decoder: str
    damage: tuple[str, ...] = ()
