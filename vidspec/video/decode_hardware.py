"""Decodes with PyAV on hardware, with the index, seeking and matching of ``decode_av``; never in software.

FFmpeg parses the stream's headers and the hardware decodes its pictures, concealing unreadable data: damage in packets
and headers is detected as by ``decode_av``, damage within a picture's data is not.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence

import av

from vidspec.errors import UsageError, VideoError
from vidspec.video.base import Index, NotDelivered, PutFrame
from vidspec.video.decode_av import AvDecoder
from vidspec.video.opening import accelerator
from vidspec.video.pictures import DecodeMode

#: FFmpeg's name and a description for each hardware decoder, by its user-facing name.
DEVICES = {
    "nvdec": ("cuda", "NVIDIA decoder"),
    "vaapi": ("vaapi", "VA-API decoder"),
    "videotoolbox": ("videotoolbox", "VideoToolbox decoder"),
}


def refusal_reason(name: str, gpu: int | None = None) -> str | None:
    """Return the reason why the hardware decoder ``name`` of DEVICES cannot be used; None if its driver answers.

    For NVIDIA, GPU number ``gpu`` is tried and the decoding library loaded, which containers may lack despite the
    driver.
    """
    try:
        accelerator(_device(name, gpu)).create(av.Codec("h264", "r"))
        if name == "nvdec":
            ctypes.CDLL("nvcuvid.dll" if os.name == "nt" else "libnvcuvid.so.1")
    except (av.error.FFmpegError, NotImplementedError, OSError, ValueError) as error:
        return str(getattr(error, "strerror", None) or error)
    return None


def _device(name: str, gpu: int | None) -> str:
    """Return FFmpeg's device name, with the GPU's number if given."""
    return DEVICES[name][0] if name != "nvdec" or gpu is None else f"{DEVICES[name][0]}:{gpu}"


class HardwareDecoder(AvDecoder):
    """The decoder ``name`` of DEVICES, on GPU number ``gpu`` for NVIDIA; see ``base.FrameDecoder``.

    Raises UsageError if the decoder is unavailable.
    """

    def __init__(self, name: str, gpu: int | None = None) -> None:
        super().__init__()
        self.name, self.gpu = name, gpu
        if (why := refusal_reason(name, gpu)) is not None:
            raise UsageError(
                f"no {DEVICES[name][1]} can be used here: {why}", hint="use --decoder av or auto", kind="decoder"
            )

    def readings(self, index: Index) -> tuple[DecodeMode, ...]:
        return (DecodeMode(hardware=_device(self.name, self.gpu)),)

    def frames(self, index: Index, wanted: Sequence[int], size: tuple[int, int], put: PutFrame) -> None:
        """See ``AvDecoder.frames``. Raises VideoError if a picture is missing: no other decoder may stand in."""
        try:
            super().frames(index, wanted, size, put)
        except NotDelivered as failure:
            raise VideoError(
                f"{index.path}: {self.name} does not decode it exactly: {failure.reason}",
                kind="decoder",
                hint="--decoder av tells damage from what the hardware cannot decode",
            ) from None
