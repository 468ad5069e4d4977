"""Cost of reading frames: seconds, processor seconds and memory, by decoder and seek mode.

``python -m research.studies.frames --repeats 3``

Drawn files, a keyframe every 10 s: a long one of 1080p in H.264, shorter ones up to 4K, and one in each other codec.
Every reading has its own process, which has read another file before; all take turns. Prints Markdown: medians, and
whether the frames equal those of the first mode. Linux only.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from statistics import median
from typing import NamedTuple, cast

import av
import numpy as np
from numpy.typing import NDArray

from vidspec.bench.tables import table

RATE = 25


class File(NamedTuple):
    """A test file to draw."""

    seconds: float
    width: int
    height: int
    codec: str = "libx264"

    @property
    def name(self) -> str:
        """File name."""
        return f"{self.seconds:g}s-{self.width}x{self.height}-{self.codec}.{'webm' if 'vpx' in self.codec else 'mp4'}"

    @property
    def shown(self) -> str:
        """Name in the table."""
        return f"{self.seconds:g} s, {self.width}x{self.height}, {CODECS[self.codec][0]}"


INTERVAL = 10 * RATE
#: By encoder: the codec, and options that make it fast and its keyframes regular.
CODECS: dict[str, tuple[str, dict[str, str]]] = {
    "libx264": (
        "H.264",
        {"preset": "veryfast", "crf": "23", "x264-params": f"keyint={INTERVAL}:min-keyint={INTERVAL}:scenecut=0"},
    ),
    "libx265": (
        "HEVC",
        {
            "preset": "ultrafast",
            "x265-params": f"keyint={INTERVAL}:min-keyint={INTERVAL}:scenecut=0:bframes=3:log-level=none",
        },
    ),
    "libvpx-vp9": ("VP9", {"deadline": "realtime", "cpu-used": "8", "b": "2M", "g": f"{INTERVAL}"}),
    "libsvtav1": ("AV1", {"preset": "12", "crf": "40", "g": f"{INTERVAL}"}),
    "mpeg4": ("MPEG-4", {"q": "5", "g": f"{INTERVAL}", "bf": "2"}),
}
SHORT = (
    File(3, 320, 240),
    File(10, 640, 360),
    File(10, 1280, 720),
    File(20, 1920, 1080),
    File(5, 3840, 2160),
    File(10, 1280, 720, "libx265"),
    File(10, 1280, 720, "libvpx-vp9"),
    File(10, 1280, 720, "libsvtav1"),
    File(10, 1280, 720, "mpeg4"),
)
#: Options of ``vidspec.video.read``, with 32 frames.
WAYS: dict[str, dict[str, object]] = {
    "default": {},
    "decord": {"decoder": "decord"},
    "default, 600,000 pixels": {"max_pixels": 600_000},
    "keyframes": {"seek": "keyframes"},
}

CHILD = """
import hashlib, json, sys, time
from vidspec import video
path, warm, arguments = json.loads(sys.argv[1])
video.read(warm, frames=2)
began, used = time.perf_counter(), time.process_time()
clip = video.read(path, frames=32, **arguments)
wall, cpu = time.perf_counter() - began, time.process_time() - used
lines = open("/proc/self/status").read().splitlines()
held = next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:")) / 1024
print(json.dumps([wall, cpu, held, len(clip), hashlib.sha256(clip.frames.tobytes()).hexdigest()]))
"""


class Reading(NamedTuple):
    """One reading: wall and processor seconds, peak MB, frames and their digest."""

    wall: float
    cpu: float
    memory: float
    frames: int
    digest: str


def pictures(seconds: float, width: int, height: int) -> Iterator[NDArray[np.uint8]]:
    """Yield frames (height, width, 3) of a panning texture with grain, and a box that crosses it."""
    rng = np.random.default_rng(0)
    y, x = np.mgrid[0 : 2 * height, 0 : 2 * width]
    waves = [120 + 50 * np.sin(x / (23 + 9 * c) + y / 41) + 40 * np.sin(y / (17 + 7 * c) - x / 67) for c in range(3)]
    texture = np.stack(waves, -1) + rng.normal(0, 6, (2 * height, 2 * width, 1))
    drawn: NDArray[np.uint8] = texture.clip(0, 255).astype(np.uint8)
    side = height // 4
    for number in range(round(seconds * RATE)):
        top, left = number % height, 2 * number % width
        picture = drawn[top : top + height, left : left + width].copy()
        top, left = 5 * number % (height - side), 7 * number % (width - side)
        picture[top : top + side, left : left + side] = (240, number % 200, 30)
        yield picture


def write(path: Path, file: File) -> str:
    """Draw and write the file."""
    with av.open(str(path), "w") as out:
        stream = cast(av.VideoStream, out.add_stream(file.codec, rate=RATE))
        stream.width, stream.height, stream.pix_fmt = file.width, file.height, "yuv420p"
        stream.options = dict[str, object](CODECS[file.codec][1])
        for number, picture in enumerate(pictures(file.seconds, file.width, file.height)):
            frame = av.VideoFrame.from_ndarray(picture, "rgb24")
            frame.pts, frame.time_base = number, Fraction(1, RATE)
            out.mux(stream.encode(frame))
        out.mux(stream.encode(None))
    return str(path)


def measured(path: str, warm: str, arguments: dict[str, object]) -> Reading | None:
    """Measure one reading in its own process; None if it refuses the file."""
    command = [sys.executable, "-c", CHILD, json.dumps([path, warm, arguments])]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    if ran.returncode:
        print(f"{path}, {arguments}: {ran.stderr.strip().splitlines()[-1]}", file=sys.stderr)
        return None
    return Reading(*json.loads(ran.stdout))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=180, help="of the long file")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--folder", type=Path, help="where the files are kept, or made if they are not there")
    asked = parser.parse_args()
    drawn = (File(asked.seconds, 1920, 1080), *SHORT)
    found: dict[tuple[str, str], list[Reading]] = defaultdict(list)
    with tempfile.TemporaryDirectory() as temporary:
        folder = asked.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        files = {}
        for file in drawn:
            path = folder / file.name
            files[file.shown] = str(path) if path.exists() else write(path, file)
        warm = files[SHORT[0].shown]
        for _ in range(asked.repeats):
            for shown, file_path in files.items():
                for way, arguments in WAYS.items():
                    if (reading := measured(file_path, warm, arguments)) is not None:
                        found[shown, way].append(reading)
    rows = []
    for (shown, way), readings in found.items():
        wall, cpu, memory = (median(getattr(one, key) for one in readings) for key in ("wall", "cpu", "memory"))
        same = {one.digest for one in readings} == {found[shown, "default"][0].digest}
        numbers = f"{wall:.2f}", f"{cpu:.2f}", f"{memory:.0f}", str(readings[0].frames)
        rows.append((shown, way, *numbers, "yes" if same else "no"))
    print(table(("file", "read by", "wall s", "CPU s", "memory MB", "frames", "same frames"), rows))


if __name__ == "__main__":
    main()
