"""Frames of a clip, read again and scaled down, each with an overlay on the places the draft did not see."""

from __future__ import annotations

import base64
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from io import BytesIO
from itertools import product
from typing import TYPE_CHECKING, TypeAlias

from vidspec.display.pages.page import RecordMapping
from vidspec.errors import OutputError
from vidspec.events.events import Prefilled

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from PIL import Image

    from vidspec.video.base import Clip

__all__ = ["MAX_FRAMES", "DrawFrames", "Picture", "draw_clip", "draw_frames", "draw_thumbnail"]

#: Most frames drawn per clip, spread evenly.
MAX_FRAMES = 64
_PIXELS, _THUMBNAIL = 320 * 320, 128 * 128
_QUALITY = 78


@dataclass(frozen=True)
class Picture:
    """A frame on a page; images are ``data:`` URLs.

    ``kept`` of the frame's ``tokens`` were shown to the draft and ``veil`` covers the others; None if unknown. ``view``
    names one of several rasters of tokens over the same frame and ``sides`` its rows and columns. ``levels`` holds its
    ranks for each signal, in base64.
    """

    seconds: float
    image: str
    ratio: float
    veil: str | None = None
    kept: int | None = None
    tokens: int | None = None
    view: str = ""
    sides: tuple[int, int] = (0, 0)
    levels: tuple[str, ...] = ()

    @property
    def share(self) -> float | None:
        return self.kept / self.tokens if self.kept is not None and self.tokens else None


#: :func:`draw_frames`, given a record and the prefill event.
DrawFrames: TypeAlias = Callable[[RecordMapping, Prefilled | None], list[Picture]]


def draw_frames(
    record: RecordMapping,
    seen: Prefilled | None,
    budget: int,
    *,
    decoder: str = "auto",
    allow_damaged: bool = False,
) -> list[Picture]:
    """Return the frames that the models saw; of a temporal step of two frames, the first.

    Args:
        record: of the clip; its file is read again.
        seen: the prefill event of an observed run; without it a frame has at most its number of kept tokens.
        budget: bytes of all pictures together; they are scaled down to fit.
        decoder, allow_damaged: as the clip was read.

    Raises:
        VidspecError: the frames cannot be read again.
    """
    from vidspec import video
    from vidspec.video.sample import first_of_steps, uniform

    every = tuple(record.get("video", {}).get("timestamps") or ())
    per_frame = tuple(record.get("kept_per_frame") or ())
    grid = seen.grid if seen is not None and 0 not in seen.grid else None
    steps = grid[0] if grid else len(per_frame)
    times = first_of_steps(every, steps) if steps else ()
    if not times:
        times, grid, per_frame = every, None, ()
    if not times:
        raise OutputError(f"{record['path']}: its record names no frames")
    chosen = uniform(len(times), MAX_FRAMES).tolist()
    moments = [times[index] for index in chosen]
    clip = video.read_at(record["path"], moments, max_pixels=_PIXELS, decoder=decoder, allow_damaged=allow_damaged)
    images = _fit_budget(budget, list(clip.frames))
    height, width = clip.frames[0].shape[:2]
    ratio = width / height
    if grid is None or seen is None:
        counts = [per_frame[index] if per_frame else None for index in chosen]
        return [
            Picture(time, image, ratio, kept=kept) for time, image, kept in zip(moments, images, counts, strict=True)
        ]
    return _with_cells(seen, chosen, moments, images, ratio)


def draw_clip(clip: Clip, seen: Prefilled, most: int) -> list[Picture]:
    """Return at most ``most`` frames of a clip in memory; of a temporal step of two frames, the first."""
    from vidspec.video.sample import first_of_steps, uniform

    every = [float(time) for time in clip.timestamps]
    times = first_of_steps(every, seen.grid[0]) if 0 not in seen.grid else ()
    chosen = uniform(len(times or every), most).tolist()
    moments = [(times or every)[index] for index in chosen]
    frames = [clip.frames[every.index(moment)] for moment in moments]
    height, width = frames[0].shape[:2]
    images = [_jpeg(frame, min(1.0, (_THUMBNAIL / (height * width)) ** 0.5)) for frame in frames]
    if not times:
        return [Picture(moment, image, width / height) for moment, image in zip(moments, images, strict=True)]
    return _with_cells(seen, chosen, moments, images, width / height)


def _with_cells(
    seen: Prefilled, chosen: Sequence[int], moments: Sequence[float], images: Sequence[str], ratio: float
) -> list[Picture]:
    """Return the pictures of temporal steps, each with the places of its visual tokens."""
    from vidspec.display.heatmap import cells_of, veil

    cells, found = cells_of(seen), []
    for (at, index), layer in product(enumerate(chosen), cells.layers):
        one = Picture(moments[at], images[at], ratio, sides=(layer.rows, layer.columns))
        if seen.kept_per_frame:  # no overlay for a draft without visual tokens
            shown = cells.of(index, layer)
            side = min(32, max(6, 256 // layer.columns))  # pixels of a token, so that the line around it is about one
            over = veil(shown, side * layer.columns, side * layer.rows)
            one = replace(
                one, veil=None if over is None else _data_url(over, "png"), kept=int(shown.sum()), tokens=shown.size
            )
        if len(cells.layers) > 1:
            one = replace(one, view=f"view of {layer.rows} x {layer.columns}")
        levels = tuple(base64.b64encode(ranks.tobytes()).decode("ascii") for ranks in cells.levels(index, layer))
        found.append(replace(one, levels=levels))
    return found


def draw_thumbnail(record: RecordMapping) -> str:
    """Return the middle frame of a clip as a small picture.

    Raises:
        VidspecError: it cannot be read.
    """
    from vidspec import video

    times = record.get("video", {}).get("timestamps") or (0.0,)
    clip = video.read_at(record["path"], [times[len(times) // 2]], max_pixels=_THUMBNAIL, allow_damaged=True)
    return _jpeg(clip.frames[0], 1.0)


def _fit_budget(budget: int, frames: Sequence[NDArray[np.uint8]]) -> list[str]:
    """Return each frame as a ``data:`` URL, all scaled down until they fit ``budget`` bytes."""
    scale = 1.0
    while True:
        images = [_jpeg(frame, scale) for frame in frames]
        if sum(map(len, images)) <= budget or scale < 0.2:
            return images
        scale *= 0.75


def _jpeg(frame: NDArray[np.uint8], scale: float) -> str:
    from PIL import Image

    image = Image.fromarray(frame)
    if scale < 1:
        size = (max(16, round(image.width * scale)), max(16, round(image.height * scale)))
        image = image.resize(size, Image.Resampling.LANCZOS)
    return _data_url(image, "jpeg", quality=_QUALITY)


def _data_url(image: Image.Image, kind: str, **options: int) -> str:
    buffer = BytesIO()
    image.save(buffer, kind, optimize=True, **options)
    return f"data:image/{kind};base64,{base64.b64encode(buffer.getvalue()).decode('ascii')}"
