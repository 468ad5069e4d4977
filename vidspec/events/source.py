"""Facts about the source file of a caption. ``vidspec.video`` finds them."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["SourceFacts"]


@dataclass(frozen=True)
class SourceFacts:
    """Facts about the source file of a clip.

    ``width`` and ``height`` are those of an upright frame of square pixels before ``max_pixels``. ``rotation`` is the
    applied rotation in degrees counter-clockwise (0, 90, 180, 270). ``fps`` is the mean rate. ``frame_count`` counts
    the frames that can be delivered. ``decoder`` is the one that delivered them: av, decord or a hardware decoder's
    name. ``damage`` lists missing or undecodable parts of the file; empty unless damage was allowed. ``pixel_aspect``
    is the width of a coded pixel over its height if frames were stretched by it. ``transfer`` is "pq" or "hlg" for HDR,
    whose colours are shown without tone mapping. ``tilt``: degrees counter-clockwise that the file asks for beyond
    ``rotation``, at most 45, which are not applied. ``clean_aperture``: (width, height) of the coded picture that
    players show, if the file states less than all of it; frames are not cropped to it.
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
    pixel_aspect: float | None = None
    transfer: str | None = None
    tilt: float | None = None
    clean_aperture: tuple[int, int] | None = None
