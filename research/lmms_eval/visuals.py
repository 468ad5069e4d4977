"""Conversion of a task's visuals to a captioner's input: the path of one video, or images as the frames of one."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
from PIL.Image import Image

from vidspec.config.sections import VideoSection
from vidspec.errors import UsageError
from vidspec.video import Clip, SourceFacts
from vidspec.video.resize import fitted, resized
from vidspec.video.sample import uniform


def shown(visual: Any, wanted: VideoSection) -> str | Clip:
    """Return the one video of a request.

    Args:
        visual: result of a task's ``doc_to_visual``: a path, an image, or a list with one path or with images.
        wanted: how many frames, and how large. Of more images than ``frames`` those spread evenly are taken; with
            ``fps`` all are.

    Returns:
        the path, or a clip whose frames are the images, one second apart since their times are unknown.

    Raises:
        UsageError: no video, several, or images that are no video.
    """
    seen: list[Any] = list(visual) if isinstance(visual, list | tuple) else [] if visual is None else [visual]
    if len(seen) == 1 and isinstance(seen[0], list | tuple):
        seen = list(seen[0])
    if not seen:
        raise UsageError("the request shows no video", hint="vidspec answers questions on a video")
    strange = next((one for one in seen if not isinstance(one, str | os.PathLike | Image)), None)
    if strange is not None:
        raise UsageError(
            f"the request shows a {type(strange).__name__}", hint="vidspec takes the path of a video, or images"
        )
    if all(isinstance(one, Image) for one in seen):
        return _clip(seen, wanted)
    if len(seen) > 1:
        paths = sum(not isinstance(one, Image) for one in seen)
        several = f"{paths} videos" if paths == len(seen) else "a video and images"
        raise UsageError(f"the request shows {several}", hint="vidspec answers questions on one video")
    return str(seen[0])


def _clip(images: list[Image], wanted: VideoSection) -> Clip:
    sizes = sorted({image.size for image in images})
    if len(sizes) > 1:
        raise UsageError(
            f"the request shows images of {len(sizes)} sizes", hint="vidspec takes images that are frames of one video"
        )
    (width, height), count = sizes[0], len(images)
    taken = uniform(count, wanted.frames or count)
    size = fitted(width, height, wanted.max_pixels)
    frames = [resized(np.asarray(images[index].convert("RGB")), *size) for index in taken]
    facts = SourceFacts("", float(count), width, height, "none", "none", 1.0, False, 0, count, "none")
    return Clip(np.stack(frames), taken.astype(np.float64), facts)
