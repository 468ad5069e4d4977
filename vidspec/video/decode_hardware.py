"""Decodes with PyAV on hardware: found, sought and matched as ``decode_av`` does, never in software.

FFmpeg reads the stream's headers and the hardware its pictures, and conceals what it cannot read: damage that shows in
packets and headers is noticed as by ``decode_av``, damage within a picture's data is not.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence

import av

from vidspec.errors import UsageError, VideoError
from vidspec.video.base import Index, NotDelivered, PutFrame
from vidspec.video.decode_av import AvDecoder, DecodeMode
from vidspec.video.opening import accelerator

__all__ = ["DEVICES", "HardwareDecoder", "refusal_reason"]

#: Decoders by what users call them: FFmpeg's name, and what it stands for.
DEVICES = {
    "nvdec": ("cuda", "NVIDIA decoder"),
    "vaapi": ("vaapi", "VA-API decoder"),
    "videotoolbox": ("videotoolbox", "VideoToolbox decoder"),
}


def refusal_reason(name: str, gpu: int | None = None) -> str | None:
    """Why the hardware decoder ``name`` of DEVICES cannot be used here; None where its driver answers.

    NVIDIA's is asked of GPU number ``gpu``, and its library is loaded, which containers may lack beside the driver.
    """
    try:
        accelerator(_device(name, gpu)).create(av.Codec("h264", "r"))
        if name == "nvdec":
            ctypes.CDLL("nvcuvid.dll" if os.name == "nt" else "libnvcuvid.so.1")
    except (av.error.FFmpegError, NotImplementedError, OSError, ValueError) as error:
        return str(getattr(error, "strerror", None) or error)
    return None


def _device(name: str, gpu: int | None) -> str:
    """FFmpeg's name of what decodes, with the GPU's number where one is meant."""
    return DEVICES[name][0] if name != "nvdec" or gpu is None else f"{DEVICES[name][0]}:{gpu}"


class HardwareDecoder(AvDecoder):
    """The decoder ``name`` of DEVICES, on GPU number ``gpu`` if it is NVIDIA's; see ``base.Decoder``.

    Raises UsageError when made where there is none.
    """

    def __init__(self, name: str, gpu: int | None = None) -> None:
        super().__init__()
        self.name, self.gpu = name, gpu
        if (why := refusal_reason(name, gpu)) is not None:
            raise UsageError(
                f"no {DEVICES[name][1]} can be used here: {why}", hint="use the decoder 'av' or 'auto'", kind="decoder"
            )

    def readings(self, index: Index) -> tuple[DecodeMode, ...]:
        return (DecodeMode(hardware=_device(self.name, self.gpu)),)

    def frames(self, index: Index, wanted: Sequence[int], size: tuple[int, int], put: PutFrame) -> None:
        """As of ``AvDecoder``. Raises VideoError where a picture does not come: no other decoder is to stand in."""
        try:
            super().frames(index, wanted, size, put)
        except NotDelivered as failure:
            raise VideoError(
                f"{index.path}: {self.name} does not decode it exactly: {failure.reason}",
                kind="decoder",
                hint="the decoder 'av' tells what is damaged from what hardware does not decode",
            ) from None
