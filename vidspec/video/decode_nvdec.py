"""Decodes with PyAV on an NVIDIA GPU's decoder: found, sought and matched as ``decode_av`` does, never in software.

FFmpeg reads the stream's headers and the GPU its pictures, and the GPU conceals what it cannot read: damage that shows
in packets and headers is noticed as by ``decode_av``, damage within a picture's data is not.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any

import av

from vidspec.errors import UsageError, VideoError
from vidspec.video.base import Index, NotDelivered
from vidspec.video.decode_av import AvDecoder, Reading
from vidspec.video.opening import accelerator

__all__ = ["NvdecDecoder", "refusal"]

#: What the GPU gives with two colours in one plane, by the format that software decoders give: the same samples, and
#: of these swscale makes the same RGB.
_PLANAR = {"nv12": "yuv420p", "p010le": "yuv420p10le"}


def refusal() -> str | None:
    """Why no NVIDIA decoder can be used here; None where the GPU's driver answers."""
    try:
        accelerator().create(av.Codec("h264", "r"))
    except ImportError:
        return "PyAV before 14 does not know any"
    except (av.error.FFmpegError, NotImplementedError, OSError) as error:
        return str(getattr(error, "strerror", None) or error)
    return None


class NvdecDecoder(AvDecoder):
    """The GPU's decoder; see ``base.Decoder``. Raises UsageError when made where there is none."""

    name = "nvdec"

    def __init__(self) -> None:
        super().__init__()
        if (why := refusal()) is not None:
            raise UsageError(
                f"no NVIDIA decoder can be used here: {why}", hint="use the decoder 'av' or 'auto'", kind="decoder"
            )

    def readings(self, index: Index) -> tuple[Reading, ...]:
        return (Reading(hardware=True),)

    def pictures(self, index: Index, wanted: Sequence[int]) -> Generator[tuple[int, Any], None, None]:
        """As of ``AvDecoder``. Raises VideoError where a picture does not come: no other decoder is to stand in."""
        try:
            for position, picture in super().pictures(index, wanted):
                yield position, planar(picture)
        except NotDelivered as failure:
            raise VideoError(
                f"{index.path}: the GPU does not decode it exactly: {failure.reason}",
                kind="decoder",
                hint="the decoder 'av' tells what is damaged from what a GPU does not decode",
            ) from None


def planar(picture: Any) -> Any:
    """A picture in the format that software decoders give; as it is where that is known to be no other."""
    form = _PLANAR.get(picture.format.name)
    return picture if form is None else picture.reformat(format=form)
