"""Cut a clip into segments: of a fixed length, or at its scenes (PySceneDetect). Captions nothing."""

from __future__ import annotations

import math
import os
from importlib import import_module
from itertools import pairwise

from vidspec.errors import UsageError, VideoError

__all__ = ["cut_clip", "fixed_segments", "scene_segments"]

#: Maximum of segments: more point to wrong timestamps, or a wrong segment length.
MAX_SEGMENTS = 100_000
#: A last piece shorter than this share of a segment is merged into the one before.
MIN_LAST_SHARE = 0.1
Segments = list[tuple[float, float]]


def fixed_segments(length: float, start: float, end: float) -> Segments:
    """Return segments of ``length`` seconds from ``start`` to ``end``; a last piece under a tenth is merged.

    >>> fixed_segments(5, 0, 12)
    [(0, 5), (5, 10), (10, 12)]
    """
    count = max(1, math.ceil((end - start) / length - MIN_LAST_SHARE))
    edges = [start + number * length for number in range(count)] + [end]
    return list(pairwise(edges))


def scene_segments(path: str, start: float, end: float) -> Segments:
    """Return the scenes of a clip between ``start`` and ``end`` (seconds); one if it has no cut.

    PySceneDetect's ContentDetector finds them with its default settings.

    Raises:
        UsageError: PySceneDetect is not installed.
        VideoError: it cannot read the clip.
    """
    try:
        detector = import_module("scenedetect")
    except ImportError as error:
        raise UsageError(f"--segment scenes needs PySceneDetect ({error})", hint="pip install scenedetect") from None
    from vidspec.video.opening import FORMATS
    from vidspec.video.progress import advance

    # OpenCV opens the file with its own FFmpeg, which must not follow references in it either.
    os.environ["OPENCV_FFMPEG_CAPTURE_OPTIONS"] = f"protocol_whitelist;file|format_whitelist;{FORMATS}"
    try:
        video = detector.open_video(os.path.abspath(path))
        read_frame = video.read

        def read_and_advance(*args: object, **options: object) -> object:
            advance()
            return read_frame(*args, **options)

        video.read = read_and_advance
        manager = detector.SceneManager()
        manager.add_detector(detector.ContentDetector())
        manager.detect_scenes(video)
    except (detector.VideoOpenFailure, OSError) as error:
        raise VideoError(f"{path}: its scenes cannot be found: {error}", kind="unsupported") from None
    cuts = [first.seconds for first, _ in manager.get_scene_list()]
    edges = [start, *(moment for moment in cuts if start < moment < end), end]
    return list(pairwise(edges))


def cut_clip(path: str, segment: float | str, start: float | None, end: float | None) -> Segments:
    """Return the segments in seconds of the clip at ``path`` between ``start`` and ``end``, by default all of it.

    Raises:
        VideoError: the clip has no frames, or none in this range; or it has too many segments.
    """
    from vidspec.video import probe

    index = probe(path)
    first = start or 0.0
    last = index.duration_s if end is None else min(end, index.duration_s)
    if last <= first:
        raise VideoError(
            f"{path}: has no frame at {first:g} s or later: it lasts {index.duration_s:.3f} s", kind="range"
        )
    if not isinstance(segment, str) and (last - first) / segment > MAX_SEGMENTS:
        raise VideoError(
            f"{path}: lasts {last - first:.0f} s, more than {MAX_SEGMENTS} segments of {segment:g} s",
            kind="range",
            hint="take longer segments with --segment, or set --end",
        )
    spans = scene_segments(path, first, last) if isinstance(segment, str) else fixed_segments(segment, first, last)
    return [(round(low, 3), round(high, 3)) for low, high in spans]
