"""Makes small clips whose frames carry their own number, and reads that number back; it knows nothing of vidspec.

A frame is a grid of 4 x 3 cells. The corners say which way is up (top left red, the others black); the eight cells
between are the bits of the frame's number, white or black, big enough to survive 4:2:0 and lossy coding.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
from numpy.typing import NDArray

COLUMNS, ROWS = 4, 3
BITS = [(0, 1), (0, 2), (1, 0), (1, 1), (1, 2), (1, 3), (2, 1), (2, 2)]


def draw(number: int, width: int, height: int) -> NDArray[np.uint8]:
    """The upright picture (height, width, 3) that stands for ``number`` (0 to 255)."""
    grid = np.zeros((ROWS, COLUMNS, 3), np.uint8)
    grid[0, 0] = (255, 0, 0)
    for bit, cell in enumerate(BITS):
        if number >> bit & 1:
            grid[cell] = 255
    rows = np.arange(height) * ROWS // height
    columns = np.arange(width) * COLUMNS // width
    return grid[rows][:, columns]


def number_of(frame: NDArray[np.uint8]) -> int:
    """The number drawn on an upright ``frame``; raises AssertionError when it is turned, mirrored or grey mush."""
    height, width, _ = frame.shape
    cells = np.zeros((ROWS, COLUMNS, 3))
    for r in range(ROWS):
        for c in range(COLUMNS):
            top, left = r * height / ROWS, c * width / COLUMNS
            patch = frame[
                int(top + height / ROWS * 0.3) : int(top + height / ROWS * 0.7) + 1,
                int(left + width / COLUMNS * 0.3) : int(left + width / COLUMNS * 0.7) + 1,
            ]
            cells[r, c] = patch.mean((0, 1))
    red = cells[0, 0]
    assert red[0] > 150 and red[1] < 90 and red[2] < 90, f"top left is not red: {red}"
    for corner in [(0, 3), (2, 0), (2, 3)]:
        assert cells[corner].max() < 90, f"corner {corner} is not black: {cells[corner]}"
    number = 0
    for bit, cell in enumerate(BITS):
        value = cells[cell].mean()
        assert value < 80 or value > 175, f"bit {bit} is unreadable: {value}"
        number |= int(value > 127) << bit
    return number


def numbers(frames: NDArray[np.uint8]) -> list[int]:
    return [number_of(frame) for frame in frames]


def make(
    path: Path,
    *,
    pts: Sequence[int] | int = 40,
    time_base: Fraction = Fraction(1, 25),
    size: tuple[int, int] = (96, 64),
    codec: str = "libx264",
    pixel_format: str = "yuv420p",
    container: str | None = None,
    options: dict[str, str] | None = None,
    container_options: dict[str, str] | None = None,
    gop: int = 12,
    b_frames: int = 0,
    rotation: int = 0,
    audio: bool = False,
    aspect: Fraction | None = None,
    transfer: int | None = None,
) -> Path:
    """Writes a clip of one frame for each of ``pts`` (a number means 0, 1, 2, ...), in units of ``time_base``.

    ``rotation`` (counter-clockwise degrees, what FFmpeg calls it) is written as display metadata, and the pictures
    are drawn so that a player that honours it shows them upright. ``aspect`` of a pixel and ``transfer`` (H.273) are
    written as they are.
    """
    times = list(range(pts)) if isinstance(pts, int) else list(pts)
    width, height = size
    with av.open(str(path), "w", format=container, options=container_options or {}) as out:
        rate = Fraction(1) / time_base
        stream = out.add_stream(codec, rate=rate if rate < 1000 else 25)
        assert isinstance(stream, av.VideoStream)
        stream.width, stream.height, stream.pix_fmt = width, height, pixel_format
        context = stream.codec_context
        context.time_base = stream.time_base = time_base
        context.gop_size, context.max_b_frames, context.thread_count = gop, b_frames, 1
        stream.options = (
            {"crf": "18", "preset": "veryfast", **(options or {})} if codec.startswith("libx26") else options or {}
        )
        if aspect is not None:
            context.sample_aspect_ratio = aspect
        if transfer is not None:
            context.color_trc = transfer
        if rotation:
            stream.set_display_rotation(rotation)
        sound = out.add_stream("aac", rate=16000) if audio else None
        for number, time in enumerate(times):
            turned = rotation % 180 != 0
            upright = draw(number % 256, *((height, width) if turned else (width, height)))
            picture = np.ascontiguousarray(np.rot90(upright, -rotation // 90))
            frame = av.VideoFrame.from_ndarray(picture, "rgb24")
            frame.pts, frame.time_base = time, time_base
            out.mux(stream.encode(frame))
        out.mux(stream.encode(None))
        if sound is not None:
            samples = np.zeros((1, 16000), np.float32)
            tone = av.AudioFrame.from_ndarray(samples, "fltp", "mono")
            tone.sample_rate = 16000
            tone.pts = 0
            out.mux(sound.encode(tone))
            out.mux(sound.encode(None))
    return path


def make_audio(path: Path) -> Path:
    with av.open(str(path), "w") as out:
        stream = out.add_stream("aac", rate=16000)
        frame = av.AudioFrame.from_ndarray(np.zeros((1, 16000), np.float32), "fltp", "mono")
        frame.sample_rate, frame.pts = 16000, 0
        out.mux(stream.encode(frame))
        out.mux(stream.encode(None))
    return path


def make_picture(path: Path, number: int, codec: str, pixel_format: str) -> Path:
    """A still picture of ``number``, 96 x 64."""
    with av.open(str(path), "w", format="image2", options={"update": "1"}) as out:
        stream = out.add_stream(codec, rate=1)
        assert isinstance(stream, av.VideoStream)
        stream.width, stream.height, stream.pix_fmt = 96, 64, pixel_format
        out.mux(stream.encode(av.VideoFrame.from_ndarray(draw(number, 96, 64), "rgb24")))
        out.mux(stream.encode(None))
    return path


def patch_box(path: Path, kind: bytes, offset: int, values: Sequence[int]) -> None:
    """Overwrites big-endian 32-bit ``values`` at ``offset`` behind the name of an MP4's only box of this kind."""
    data = bytearray(path.read_bytes())
    assert data.count(kind) == 1, f"{data.count(kind)} boxes {kind!r}"
    at = data.index(kind) + 4 + offset
    for number, value in enumerate(values):
        data[at + 4 * number : at + 4 * number + 4] = (value & 0xFFFFFFFF).to_bytes(4, "big")
    path.write_bytes(bytes(data))


def copy_from_keyframe(path: Path, source: Path, number: int) -> Path:
    """The packets of ``source`` from its keyframe ``number`` (from 0) on, as ``ffmpeg -ss ... -c copy`` leaves them."""
    with av.open(str(source)) as container, av.open(str(path), "w") as out:
        stream = container.streams.video[0]
        copied = out.add_stream_from_template(stream)
        seen, origin = -1, None
        for packet in container.demux(stream):
            if packet.dts is None or packet.pts is None:
                continue
            seen += packet.is_keyframe
            if seen >= number:
                origin = packet.dts if origin is None else origin
                packet.dts, packet.pts, packet.stream = packet.dts - origin, packet.pts - origin, copied
                out.mux(packet)
    return path


def cut(path: Path, source: Path, share: float) -> Path:
    """The first ``share`` of ``source``'s bytes."""
    data = source.read_bytes()
    path.write_bytes(data[: int(len(data) * share)])
    return path
