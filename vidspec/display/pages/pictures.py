"""Frames of a clip, read again and scaled down, each with an overlay on the places the draft did not see."""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from io import BytesIO
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from vidspec.display.pages.page import RecordMapping
from vidspec.errors import OutputError, VidspecError
from vidspec.escaping import one_line
from vidspec.events.events import Prefilled

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from PIL import Image

    from vidspec.video.base import Clip

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

    def read(moments: list[float]) -> Sequence[NDArray[np.uint8]]:
        clip = video.read_at(record["path"], moments, max_pixels=_PIXELS, decoder=decoder, allow_damaged=allow_damaged)
        return list(clip.frames)

    every = tuple(record.get("video", {}).get("timestamps") or ())
    if not every:
        raise OutputError(f"{record['path']}: its record names no frames")
    per_frame = tuple(record.get("kept_per_frame") or ())
    return _pictures(every, seen, per_frame, MAX_FRAMES, read, partial(_fit_budget, budget))


def draw_clip(clip: Clip, seen: Prefilled, most: int) -> list[Picture]:
    """Return at most ``most`` frames of a clip in memory; of a temporal step of two frames, the first."""
    every = [float(time) for time in clip.timestamps]
    scale = min(1.0, (_THUMBNAIL / (clip.frames[0].shape[0] * clip.frames[0].shape[1])) ** 0.5)
    return _pictures(
        every,
        seen,
        (),
        most,
        lambda moments: [clip.frames[every.index(moment)] for moment in moments],
        lambda frames: [_jpeg(frame, scale) for frame in frames],
    )


def _pictures(
    every: Sequence[float],
    seen: Prefilled | None,
    per_frame: Sequence[int],
    most: int,
    read: Callable[[list[float]], Sequence[NDArray[np.uint8]]],
    encode: Callable[[Sequence[NDArray[np.uint8]]], list[str]],
) -> list[Picture]:
    """Return at most ``most`` of the frames at the times ``every``, or of the temporal steps that tokens stand for.

    ``per_frame`` has the kept tokens of each; ``read`` returns the frames at some times, ``encode`` their URLs.
    """
    from vidspec.video.sample import first_of_steps, uniform

    grid = seen.grid if seen is not None and 0 not in seen.grid else None
    steps = grid[0] if grid else len(per_frame)
    times = first_of_steps(every, steps) if steps else ()
    if not times:
        times, grid, per_frame = every, None, ()
    chosen = uniform(len(times), most).tolist()
    moments = [times[index] for index in chosen]
    frames = read(moments)
    images, ratio = encode(frames), frames[0].shape[1] / frames[0].shape[0]
    if grid is not None and seen is not None:
        return _with_cells(seen, chosen, moments, images, ratio)
    counts = [per_frame[index] if any(per_frame) else None for index in chosen]
    return [Picture(time, image, ratio, kept=kept) for time, image, kept in zip(moments, images, counts, strict=True)]


def _with_cells(
    seen: Prefilled, chosen: Sequence[int], moments: Sequence[float], images: Sequence[str], ratio: float
) -> list[Picture]:
    """Return the pictures of temporal steps, each with the places of its visual tokens."""
    from vidspec.display.heatmap import rasters_of, veil

    rasters, found = rasters_of(seen), []
    for (at, index), raster in product(enumerate(chosen), rasters):
        shown = raster.kept[index]
        rows, columns = shown.shape
        one = Picture(moments[at], images[at], ratio, sides=(rows, columns))
        if seen.kept:  # no overlay without a draft, or for one that reads text only
            side = min(32, max(6, 256 // columns))  # pixels of a token, so that the line around it is about one
            over = veil(shown, side * columns, side * rows)
            one = replace(
                one, veil=None if over is None else _data_url(over, "png"), kept=int(shown.sum()), tokens=shown.size
            )
        if len(rasters) > 1:
            one = replace(one, view=f"view of {rows} x {columns}")
        levels = tuple(base64.b64encode(ranks[index].tobytes()).decode("ascii") for ranks in raster.ranks)
        found.append(replace(one, levels=levels))
    return found


def _thumbnail(record: RecordMapping) -> str:
    """Return the middle frame of a clip as a small picture.

    Raises:
        VidspecError: it cannot be read.
    """
    from vidspec import video

    times = record.get("video", {}).get("timestamps") or (0.0,)
    clip = video.read_at(record["path"], [times[len(times) // 2]], max_pixels=_THUMBNAIL, allow_damaged=True)
    return _jpeg(clip.frames[0], 1.0)


def draw_thumbnails(records: Mapping[int, RecordMapping]) -> dict[int, str]:
    """Return thumbnails by clip number, without clips whose frame cannot be read."""
    found: dict[int, str] = {}
    for number, record in records.items():
        if change_reason(record) is None:
            with suppress(VidspecError):
                found[number] = _thumbnail(record)
    return found


def change_reason(record: RecordMapping) -> str | None:
    """Return a message if the file changed since it was captioned; None if not, as far as the record knows."""
    job, file = record.get("job") or {}, Path(record["path"])
    try:
        status = file.stat()
    except NotADirectoryError:
        return f"{one_line(record['path'])} is in a shard, which is not read again"
    except OSError:
        if "://" in record["path"]:
            return f"{one_line(record['path'])} is not fetched again"
        return f"{one_line(record['path'])} does not exist"
    known = (job.get("size", status.st_size), job.get("mtime_ns", status.st_mtime_ns))
    return None if known == (status.st_size, status.st_mtime_ns) else "the file has changed since"


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
