"""What a caption tells of the file it was made from; finding it out is the business of ``vidspec.video``."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["SourceFacts"]


@dataclass(frozen=True)
class SourceFacts:
    """What is known of the file a clip came from.

    ``width`` and ``height`` are those of an upright frame before ``max_pixels``; pixels that are not square stay so.
    ``rotation`` is what was applied, in degrees counter-clockwise (0, 90, 180, 270). ``fps`` is the mean rate.
    ``frame_count`` counts the frames that can be delivered. ``decoder`` is the one that delivered: av, decord or a
    hardware decoder's name.
    ``damage`` says what of the file is missing or could not be decoded; empty unless damage was allowed.
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
