"""Image files as videos of one frame, and animated WebP, which FFmpeg does not decode: read by Pillow.

Upright by their EXIF orientation, in RGB, exact or an error as far as the format tells (docs/use/damage.md).
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np

from vidspec.channel import has_no_descriptor
from vidspec.errors import VideoError, reason_of
from vidspec.video.base import Index, Orientation, PutFrame
from vidspec.video.payload import check_animation
from vidspec.video.progress import advance
from vidspec.video.resize import resized

if TYPE_CHECKING:
    from PIL.Image import Image

#: Suffixes of image files; GIF counts as video.
IMAGES = frozenset(("png", "jpg", "jpeg", "webp", "bmp", "tif", "tiff"))
#: Formats that Pillow may open; some others run programs or follow references.
_FORMATS = ("PNG", "JPEG", "WEBP", "BMP", "TIFF")
_ORIENTATION = 0x0112
#: EXIF's orientations as counter-clockwise quarter turns.
_TURNS = {3: 180, 4: 180, 5: 90, 6: 270, 7: 270, 8: 90}
#: Seconds for which FFmpeg shows an image file.
_DURATION = Fraction(1, 25)


def is_image(index: Index) -> bool:
    """Return True if the index was made by :func:`image_index`."""
    return index.format.startswith("image/")


def is_picture(path: str) -> bool:
    """Return True if a path has the suffix of an image file."""
    return _suffix(path) in IMAGES


def image_index(path: str) -> Index | None:
    """Return the index of an image file or an animated WebP, from its header; None for a video's suffix.

    An animated PNG is a video for FFmpeg.

    Args:
        path: of a regular file.

    Raises:
        VideoError: kind ``damaged`` or ``memory``.
    """
    if not is_picture(path):
        return None
    with _open_image(path) as image:
        kind = image.format or ""
        animated = getattr(image, "is_animated", False)
        if kind == "PNG" and animated:
            return None
        orientation = image.getexif().get(_ORIENTATION, 1)
        if kind == "TIFF":
            image = _upright(image)  # some versions of Pillow turn the size on opening, some do not
        width, height = image.size if kind == "TIFF" or orientation < 5 else image.size[::-1]
    if kind == "JPEG":
        _check_jpeg(path)
    starts, base = np.zeros(2, np.int64), _DURATION
    starts[1] = 1
    if kind == "WEBP":
        durations = _webp_durations(path)
        if animated:
            check_animation(path, len(durations), width, height)
            starts, base = np.cumsum([0, *durations]), Fraction(1, 1000)
    pts = starts[:-1]
    return Index(
        path=path,
        format=f"image/{'jpeg' if kind == 'MPO' else kind.lower()}",
        codec="mjpeg" if kind in ("JPEG", "MPO") else kind.lower(),
        stream=0,
        time_base=base,
        pts=pts,
        raw=pts,
        key_pts=pts,
        key_dts=pts,
        order="pts",
        width=width,
        height=height,
        turn=Orientation(_TURNS.get(orientation, 0)),
        duration_s=float(int(starts[-1]) * base),
        truncated=False,
        doubts=(),
    )


def _suffix(path: str) -> str:
    """Return a file's suffix; a descriptor in ``/proc`` has that of its file, which may be unlinked."""
    name = path if not path.startswith("/proc/") else os.path.realpath(path).removesuffix(" (deleted)")
    return os.path.splitext(name)[1].lstrip(".").lower()


class ImageDecoder:
    """Delivers the frames of an index of :func:`image_index`."""

    name = "pillow"

    def frames(self, index: Index, wanted: Sequence[int], size: tuple[int, int], put: PutFrame) -> None:
        with _open_image(index.path) as image:
            for position in wanted:
                if len(index) > 1:
                    image.seek(position)
                put(position, resized(np.asarray(_rgb(_upright(image)), np.uint8), *size))
                advance()


def _check_jpeg(path: str) -> None:
    """Refuse a JPEG that FFmpeg's strict decoder refuses: Pillow's fills damage with grey, without a word."""
    import av

    codec = av.CodecContext.create("mjpeg", "r")
    codec.options = {"err_detect": "crccheck+bitstream+buffer+explode"}
    with open(path, "rb") as file:
        data = file.read()
    try:
        codec.decode(av.Packet(data))
        whole = b"\xff\xd9" in data
    except av.error.InvalidDataError:
        whole = False
    except av.error.FFmpegError:  # a kind of JPEG that it does not decode
        whole = True
    if not whole:
        raise VideoError(f"{path}: is damaged", kind="damaged", hint="copy or download it again")


def _webp_durations(path: str) -> list[int]:
    """Return the milliseconds of each picture of an animated WebP; like browsers, 100 where a file says 0.

    Raises:
        VideoError: its chunks do not fill the file.
    """
    with open(path, "rb") as file:
        data = file.read()
    durations, at, end = [], 12, 8 + int.from_bytes(data[4:8], "little")
    while at + 8 <= min(end, len(data)):
        size = int.from_bytes(data[at + 4 : at + 8], "little")
        if data[at : at + 4] == b"ANMF":
            durations.append(int.from_bytes(data[at + 20 : at + 23], "little") or 100)
        at += 8 + size + (size & 1)
    if at != end + (end & 1) or at > len(data) + 1:
        raise VideoError(
            f"{path}: is damaged: its parts do not fill it", kind="damaged", hint="copy or download it again"
        )
    return durations


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
        if has_no_descriptor(error):
            raise
        raise VideoError(
            f"{path}: is damaged: {reason_of(error)}", kind="damaged", hint="copy or download it again"
        ) from None


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
