"""Decodes with PyAV on hardware: found, sought and matched as ``decode_av`` does, never in software.

FFmpeg reads the stream's headers and the hardware its pictures, and conceals what it cannot read: damage that shows in
packets and headers is noticed as by ``decode_av``, damage within a picture's data is not.
"""

from __future__ import annotations

from collections.abc import Sequence

import av

from vidspec.errors import UsageError, VideoError
from vidspec.video.base import Index, NotDelivered, Put
from vidspec.video.decode_av import AvDecoder, Reading
from vidspec.video.opening import accelerator

__all__ = ["DEVICES", "HardwareDecoder", "refusal"]

#: Decoders by what users call them: FFmpeg's name, and what it stands for.
DEVICES = {
    "nvdec": ("cuda", "NVIDIA decoder"),
    "vaapi": ("vaapi", "VA-API decoder"),
    "videotoolbox": ("videotoolbox", "VideoToolbox decoder"),
}


def refusal(name: str) -> str | None:
    """Why the hardware decoder ``name`` of DEVICES cannot be used here; None where its driver answers."""
    try:
        accelerator(DEVICES[name][0]).create(av.Codec("h264", "r"))
    except ImportError:
        return "PyAV before 14 does not know any"
    except (av.error.FFmpegError, NotImplementedError, OSError, ValueError) as error:
        return str(getattr(error, "strerror", None) or error)
    return None


class HardwareDecoder(AvDecoder):
    """The decoder ``name`` of DEVICES; see ``base.Decoder``. Raises UsageError when made where there is none."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name
        if (why := refusal(name)) is not None:
            raise UsageError(
                f"no {DEVICES[name][1]} can be used here: {why}", hint="use the decoder 'av' or 'auto'", kind="decoder"
            )

    def readings(self, index: Index) -> tuple[Reading, ...]:
        return (Reading(hardware=DEVICES[self.name][0]),)

    def frames(self, index: Index, wanted: Sequence[int], size: tuple[int, int], put: Put) -> None:
        """As of ``AvDecoder``. Raises VideoError where a picture does not come: no other decoder is to stand in."""
        try:
            super().frames(index, wanted, size, put)
        except NotDelivered as failure:
            raise VideoError(
                f"{index.path}: {self.name} does not decode it exactly: {failure.reason}",
                kind="decoder",
                hint="the decoder 'av' tells what is damaged from what hardware does not decode",
            ) from None
