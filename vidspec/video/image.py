"""Image files as videos of one frame, read by Pillow: upright by their EXIF orientation, in RGB, exact or an error."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np

from vidspec.errors import VideoError
from vidspec.video.base import Index, Orientation, PutFrame
from vidspec.video.resize import resized

if TYPE_CHECKING:
    from PIL.Image import Image

__all__ = ["IMAGES", "ImageDecoder", "image_index", "is_image"]

#: Suffixes of image files; GIF counts as video.
IMAGES = frozenset(("png", "jpg", "jpeg", "webp", "bmp", "tif", "tiff"))
#: Formats that Pillow may open; some others run programs or follow references.
_FORMATS = ("PNG", "JPEG", "WEBP", "BMP", "TIFF")
#: Formats whose files may be animations, which FFmpeg reads as videos.
_ANIMATED = ("PNG", "WEBP")
_ORIENTATION = 0x0112
#: EXIF's orientations as counter-clockwise quarter turns.
_TURNS = {3: 180, 4: 180, 5: 90, 6: 270, 7: 270, 8: 90}
#: Seconds for which FFmpeg shows an image file.
_DURATION = Fraction(1, 25)


def is_image(index: Index) -> bool:
    """Return True if the index was made by :func:`image_index`."""
    return index.format.startswith("image/")


def image_index(path: str) -> Index | None:
    """Return the index of an image file, from its header; None for a video's suffix or an animation.

    Args:
        path: of a regular file.

    Raises:
        VideoError: kind ``damaged`` or ``memory``.
    """
    if _suffix(path) not in IMAGES:
        return None
    with _open_image(path) as image:
        kind = image.format or ""
        if kind in _ANIMATED and getattr(image, "is_animated", False):
            return None
        orientation = image.getexif().get(_ORIENTATION, 1)
        if kind == "TIFF":
            image = _upright(image)  # some versions of Pillow turn the size on opening, some do not
        width, height = image.size if kind == "TIFF" or orientation < 5 else image.size[::-1]
    first = np.zeros(1, np.int64)
    return Index(
        path=path,
        format=f"image/{'jpeg' if kind == 'MPO' else kind.lower()}",
        codec="mjpeg" if kind in ("JPEG", "MPO") else kind.lower(),
        stream=0,
        time_base=_DURATION,
        pts=first,
        raw=first,
        key_pts=first,
        key_dts=first,
        order="pts",
        width=width,
        height=height,
        turn=Orientation(_TURNS.get(orientation, 0)),
        duration_s=float(_DURATION),
        truncated=False,
        doubts=(),
    )


def _suffix(path: str) -> str:
    """Return a file's suffix; a descriptor in ``/proc`` has that of its file, which may be unlinked."""
    name = path if not path.startswith("/proc/") else os.path.realpath(path).removesuffix(" (deleted)")
    return os.path.splitext(name)[1].lstrip(".").lower()


class ImageDecoder:
    """Delivers the single frame of an index of :func:`image_index`."""

    name = "pillow"

    def frames(self, index: Index, wanted: Sequence[int], size: tuple[int, int], put: PutFrame) -> None:
        with _open_image(index.path) as image:
            put(wanted[0], resized(np.asarray(_rgb(_upright(image)), np.uint8), *size))


@contextmanager
def _open_image(path: str) -> Iterator[Image]:
    """Open the image file and close it on leaving; errors of Pillow about its content become a VideoError."""
    from PIL import Image, UnidentifiedImageError

    Image.init()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Pillow's, about sizes and metadata
            with Image.open(path, formats=_FORMATS) as image:
                yield image
    except Image.DecompressionBombError:
        raise VideoError(f"{path}: is too large for a picture", kind="memory", hint="make it smaller first") from None
    except UnidentifiedImageError:
        raise VideoError(f"{path}: is damaged or not a picture", kind="damaged") from None
    except (MemoryError, VideoError):
        raise
    except Exception as error:  # of many kinds
        reason = str(error).split("\n")[0] or type(error).__name__
        raise VideoError(f"{path}: is damaged: {reason}", kind="damaged", hint="copy or download it again") from None


def _upright(image: Image) -> Image:
    from PIL import ImageOps

    image.load()
    return ImageOps.exif_transpose(image)


def _rgb(image: Image) -> Image:
    """Return eight bits per colour; transparent pixels become white."""
    from PIL import Image

    if image.mode.startswith("I"):  # grey of 16 bits
        image = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
    if image.has_transparency_data:
        opaque = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", opaque.size, "white"), opaque).convert("RGB")
    return image.convert("RGB")
