"""Sound files whose compressed pictures hold unusual bytes: still, black, dithered and noisy scenes by many encoders.

``python -m tests.video.damage_survey --sound`` reads each and counts those that are refused. Knows nothing of vidspec.
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import NamedTuple

import av
import numpy as np
from numpy.typing import NDArray

FRAMES = 24


class Encoder(NamedTuple):
    """FFmpeg's encoder of a kind, its options, and the container."""

    codec: str
    suffix: str
    options: dict[str, str]
    pixel_format: str = "yuv420p"


X264, X265 = {"preset": "veryfast"}, {"preset": "ultrafast"}
VPX = {"cpu-used": "8", "deadline": "realtime"}
STEADY = {"b": "1000000", "minrate": "1000000", "maxrate": "1000000", "bufsize": "500000"}


def _x264(params: str, **more: str) -> dict[str, str]:
    return {**X264, "x264-params": params, **more}


def _x265(params: str) -> dict[str, str]:
    return {**X265, "x265-params": f"{params}:keyint=12:log-level=none"}


ENCODERS = {
    "h264": Encoder("libx264", "mp4", X264),
    "h264 b": Encoder("libx264", "ts", _x264("bframes=3:keyint=12")),
    "h264 cavlc": Encoder("libx264", "mp4", _x264("cabac=0:bframes=0:ref=1")),
    "h264 cavlc ts": Encoder("libx264", "ts", _x264("cabac=0:bframes=0")),
    "h264 filler": Encoder("libx264", "ts", _x264("nal-hrd=cbr:vbv-maxrate=900:vbv-bufsize=450:bitrate=900:filler=1")),
    "h264 filler mp4": Encoder("libx264", "mp4", _x264("nal-hrd=cbr:vbv-maxrate=900:vbv-bufsize=450:bitrate=900")),
    "h264 lossless": Encoder("libx264", "mkv", _x264("qp=0")),
    "h264 fine": Encoder("libx264", "mp4", _x264("qp=1:cabac=0")),
    "h264 intra": Encoder("libx264", "mov", _x264("keyint=1")),
    "openh264": Encoder("libopenh264", "mp4", {"b": "500000"}),
    "hevc": Encoder("libx265", "mp4", _x265("crf=30")),
    "hevc plain": Encoder("libx265", "mkv", _x265("crf=30:wpp=0")),
    "hevc steady": Encoder("libx265", "ts", _x265("bitrate=900:vbv-maxrate=900:vbv-bufsize=450:strict-cbr=1:hrd=1")),
    "hevc lossless": Encoder("libx265", "mp4", _x265("lossless=1:wpp=0")),
    "hevc 10": Encoder("libx265", "mp4", _x265("qp=2:wpp=0"), "yuv420p10le"),
    "vp8": Encoder("libvpx", "webm", VPX),
    "vp8 steady": Encoder("libvpx", "webm", {**VPX, **STEADY}),
    "vp8 good": Encoder("libvpx", "mkv", {"cpu-used": "4", "auto-alt-ref": "1", "lag-in-frames": "12", "b": "300000"}),
    "vp8 parts": Encoder("libvpx", "webm", {**VPX, "slices": "8", "error-resilient": "1", "b": "2000000"}),
    "vp9": Encoder("libvpx-vp9", "webm", VPX),
    "vp9 steady": Encoder("libvpx-vp9", "webm", {**VPX, **STEADY}),
    "vp9 good": Encoder("libvpx-vp9", "mp4", {"cpu-used": "6", "lag-in-frames": "16", "b": "300000"}),
    "vp9 resilient": Encoder("libvpx-vp9", "mkv", {**VPX, "error-resilient": "1", "frame-parallel": "1"}),
    "vp9 lossless": Encoder("libvpx-vp9", "webm", {**VPX, "lossless": "1"}),
    "av1": Encoder("libsvtav1", "mp4", {"preset": "13", "crf": "40"}),
    "mpeg4": Encoder("mpeg4", "avi", {"b": "500000"}),
    "mpeg4 fine": Encoder("mpeg4", "mp4", {"qmin": "1", "qmax": "1"}),
    "mpeg4 coarse": Encoder("mpeg4", "mkv", {"qmin": "31", "qmax": "31"}),
    "mpeg4 steady": Encoder("mpeg4", "ts", STEADY),
    "mpeg4 b": Encoder("mpeg4", "avi", {"bf": "2", "b": "500000"}),
    "mpeg4 parts": Encoder("mpeg4", "mp4", {"ps": "300", "data_partitioning": "1", "b": "500000"}),
    "mpeg4 asp": Encoder("mpeg4", "avi", {"flags": "+qpel+mv4+ildct+ilme+aic", "b": "800000"}),
    "xvid": Encoder("libxvid", "avi", {"b": "500000"}),
    "xvid fine": Encoder("libxvid", "mp4", {"qmin": "1", "qmax": "2", "gmc": "1"}),
    "mpeg2 steady": Encoder("mpeg2video", "ts", STEADY),
    "mpeg2": Encoder("mpeg2video", "mpg", {"bf": "2", "qmin": "1", "qmax": "2"}),
    "mpeg1 steady": Encoder("mpeg1video", "mpg", STEADY),
}


def scenes(width: int, height: int) -> dict[str, Iterator[NDArray[np.uint8]]]:
    """Pictures (height, width, 3) of each scene, FRAMES of them."""
    rng = np.random.default_rng(0)
    ramp = np.broadcast_to(np.linspace(0, 255, width).astype(np.uint8)[None, :, None], (height, width, 3)).copy()
    texture = rng.integers(0, 256, (height // 4 + 1, width // 4 + 1, 3)).astype(np.uint8)
    texture = np.ascontiguousarray(texture.repeat(4, 0).repeat(4, 1)[:height, :width])

    def flat(value: int) -> NDArray[np.uint8]:
        return np.full((height, width, 3), value, np.uint8)

    def noise() -> NDArray[np.uint8]:
        return rng.integers(0, 256, (height, width, 3)).astype(np.uint8)

    def dither() -> NDArray[np.uint8]:  # only black and white, as a scanned page
        picture = np.where(rng.random((height, width, 1)) < 0.5, 0, 255).astype(np.uint8).repeat(3, 2)
        picture[height // 2 :] = 255
        return picture

    def half(number: int) -> NDArray[np.uint8]:  # a moving upper half above a lower one that stands still
        picture = texture.copy()
        picture[: height // 2] = np.roll(texture, 3 * number, 1)[: height // 2]
        return picture

    def box(number: int) -> NDArray[np.uint8]:
        picture = flat(0)
        picture[8:24, 4 * number % (width - 16) :][:, :16] = 255
        return picture

    numbers = range(FRAMES)
    return {
        "black": (flat(0) for _ in numbers),
        "white": (flat(255) for _ in numbers),
        "still": (texture for _ in numbers),
        "ramp": (ramp for _ in numbers),
        "fade": ((texture * (number / FRAMES)).astype(np.uint8) for number in numbers),
        "noise": (noise() for _ in numbers),
        "dither": (dither() for _ in numbers),
        "half": (half(number) for number in numbers),
        "box": (box(number) for number in numbers),
        "cut": (flat(0) if number % 8 < 4 else texture for number in numbers),
    }


def encode(path: Path, how: Encoder, pictures: Iterator[NDArray[np.uint8]]) -> Path:
    with av.open(str(path), "w") as out:
        stream = out.add_stream(how.codec, rate=25)
        stream.pix_fmt, stream.options = how.pixel_format, how.options
        stream.codec_context.gop_size, stream.codec_context.thread_count = 12, 1
        for number, picture in enumerate(pictures):
            if not number:
                stream.height, stream.width = picture.shape[:2]
            frame = av.VideoFrame.from_ndarray(picture, "rgb24")
            frame.pts, frame.time_base = number, Fraction(1, 25)
            out.mux(stream.encode(frame))
        out.mux(stream.encode(None))
    return path


def files(folder: Path, size: tuple[int, int]) -> Iterator[tuple[str, Path]]:
    """(what it is, the file) of each scene by each encoder that this FFmpeg has; a file is gone when the next comes."""
    for name, how in ENCODERS.items():
        if how.codec not in av.codecs_available:
            continue
        for scene, pictures in scenes(*size).items():
            path = encode(folder / f"sound.{how.suffix}", how, pictures)
            yield f"{name}, {scene}", path
            path.unlink()
