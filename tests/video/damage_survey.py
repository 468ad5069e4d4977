"""Damages small videos in many ways and counts what reading them gives: an error, the very frames, or others.

``python -m tests.video.damage_survey --files 600 --seed 0`` prints the tables of docs/research/measured/damage.json;
``--sound`` counts sound files instead, of the kinds of ``sound_kinds``, and those of them that are refused. Every
damaged file is read in a process of its own, so that one that brings the reader down is counted and not the end.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import NamedTuple

import av
import numpy as np
from numpy.typing import NDArray

from vidspec import video
from vidspec.errors import VidspecError

try:
    from . import sound_kinds
except ImportError:  # run as a script
    import sound_kinds

Bytes = bytearray

FRAMES = 75
#: Name of a source: how it is encoded, and the files it is put into.
SOURCES: dict[str, tuple[str, dict[str, str], tuple[str, ...]]] = {
    "h264": ("libx264", {"preset": "veryfast", "crf": "26"}, ("mp4", "mkv", "ts", "avi")),
    "hevc": ("libx265", {"preset": "ultrafast", "x265-params": "crf=30:log-level=none"}, ("mp4", "mkv", "ts")),
    "hevc-plain": ("libx265", {"preset": "ultrafast", "x265-params": "crf=30:wpp=0:log-level=none"}, ("mp4", "ts")),
    "vp8": ("libvpx", {"cpu-used": "8", "deadline": "realtime", "b": "300k"}, ("webm",)),
    "mpeg2": ("mpeg2video", {"b": "1000k"}, ("mpg", "ts", "mkv")),
    "cavlc": ("libx264", {"preset": "veryfast", "crf": "26", "x264-params": "cabac=0"}, ("mp4", "ts")),
    "vp9": ("libvpx-vp9", {"cpu-used": "8", "deadline": "realtime", "b": "300k"}, ("webm", "mp4")),
    "mpeg4": ("mpeg4", {"b": "500k"}, ("avi", "mp4", "mkv", "ts")),
    "av1": ("libsvtav1", {"preset": "13", "crf": "50", "svtav1-params": "keyint=15"}, ("mp4", "webm")),
    "mjpeg": ("mjpeg", {"q": "8"}, ("avi", "mov")),
}


def scene(width: int, height: int) -> Iterator[NDArray[np.uint8]]:
    """Pictures that move everywhere: a panning texture and two boxes that bounce."""
    rng = np.random.default_rng(0)
    coarse = rng.integers(30, 226, (height // 4, width // 4, 3)).astype(np.uint8)
    texture = coarse.repeat(8, 0).repeat(8, 1)
    for number in range(FRAMES):
        picture = texture[number : number + height, 2 * number : 2 * number + width].copy()
        left, top = 3 * number % (width - 40), 2 * number % (height - 40)
        picture[top : top + 40, left : left + 40] = (250, 20 + 3 * number, 40)
        picture[-top - 30 :, -30:] = (10, 90, 200)
        yield picture


def encode(path: Path, codec: str, options: dict[str, str], size: tuple[int, int] = (256, 192)) -> Path:
    with av.open(str(path), "w") as out:
        stream = out.add_stream(codec, rate=25)
        stream.width, stream.height = size
        stream.pix_fmt = "yuvj420p" if codec == "mjpeg" else "yuv420p"
        stream.codec_context.gop_size, stream.codec_context.thread_count = 15, 1
        stream.options = options
        for number, picture in enumerate(scene(*size)):
            frame = av.VideoFrame.from_ndarray(picture, "rgb24")
            frame.pts, frame.time_base = number, Fraction(1, 25)
            out.mux(stream.encode(frame))
        out.mux(stream.encode(None))
    return path


def one_bit(data: Bytes, rng: np.random.Generator) -> None:
    data[rng.integers(len(data))] ^= 1 << rng.integers(8)


def some_bytes(data: Bytes, rng: np.random.Generator) -> None:
    for at in rng.integers(len(data), size=rng.integers(2, 17)):
        data[at] = rng.integers(256)


def zeros(data: Bytes, rng: np.random.Generator) -> None:
    size = int(rng.integers(32, max(33, len(data) // 8)))
    at = int(rng.integers(len(data) - size))
    data[at : at + size] = bytes(size)


def few_zeros(data: Bytes, rng: np.random.Generator) -> None:
    _filled(data, rng, b"\0")


def few_ones(data: Bytes, rng: np.random.Generator) -> None:
    _filled(data, rng, b"\xff")


def _filled(data: Bytes, rng: np.random.Generator, byte: bytes) -> None:
    """A run that lies inside of one or two compressed pictures."""
    size = int(2 ** rng.uniform(4, 9))
    at = int(rng.integers(len(data) - size))
    data[at : at + size] = byte * size


def noise(data: Bytes, rng: np.random.Generator) -> None:
    size = int(rng.integers(8, 1500))
    at = int(rng.integers(len(data) - size))
    data[at : at + size] = rng.bytes(size)


def hole(data: Bytes, rng: np.random.Generator) -> None:
    size = int(rng.integers(1, max(2, len(data) // 8)))
    at = int(rng.integers(len(data) - size))
    del data[at : at + size]


def lost_packets(data: Bytes, rng: np.random.Generator) -> None:
    size = 188 * int(rng.integers(1, 20))
    at = int(rng.integers(len(data) - size)) // 188 * 188
    del data[at : at + size]


def twice(data: Bytes, rng: np.random.Generator) -> None:
    size = int(rng.integers(1, max(2, len(data) // 8)))
    at = int(rng.integers(len(data) - size))
    data[at:at] = data[at : at + size]


def cut(data: Bytes, rng: np.random.Generator) -> None:
    del data[int(rng.integers(len(data) // 10, len(data))) :]


DAMAGE: dict[str, Callable[[Bytes, np.random.Generator], None]] = {
    "a bit flipped": one_bit,
    "2 to 16 bytes changed": some_bytes,
    "a run of zeros": zeros,
    "16 to 512 zeros": few_zeros,
    "16 to 512 bytes 0xFF": few_ones,
    "a run of noise": noise,
    "a run cut out": hole,
    "188-byte packets cut out": lost_packets,
    "a run repeated": twice,
    "the end cut off": cut,
}


class Result(NamedTuple):
    codec: str
    container: str
    damage: str
    number: int
    verdict: str
    detail: str


def judge(path: Path, whole: video.Clip, decoder: str) -> tuple[str, str]:
    """``error``, ``exact`` or ``different``, and what exactly."""
    try:
        got = video.read(path, decoder=decoder)
    except VidspecError as error:
        return "error", error.message.partition(": ")[2]
    if len(got) != len(whole):
        return "different", f"{len(got)} frames"
    if np.abs(got.timestamps - whole.timestamps).max() > 1e-3:
        return "different", f"times {got.timestamps[:3]}"
    most = 0 if got.facts.decoder == whole.facts.decoder else 3  # swscale's versions round differently
    apart = np.abs(got.frames.astype(int) - whole.frames).max((1, 2, 3)) > most
    if apart.any():
        return "different", f"{int(apart.sum())} pictures ({got.facts.decoder})"
    return "exact", ""


def judge_allowed(path: Path, whole: video.Clip, decoder: str) -> tuple[str, str]:
    """Judge what ``allow_damaged`` delivers of all frames: ``partial`` is a part of them, listed, and nothing else.

    ``different``: a wrong picture or time beside listed damage; ``silent``: without; ``unlisted``: no damage is listed
    although the file is refused otherwise.
    """
    try:
        got = video.read(path, decoder=decoder, frames=FRAMES, allow_damaged=True)
    except VidspecError as error:
        return "error", error.message.partition(": ")[2]
    at = np.abs(got.timestamps[:, None] - whole.timestamps).argmin(1)
    wrong = np.abs(got.timestamps - whole.timestamps[at]) > 1e-3
    wrong |= np.abs(got.frames.astype(int) - whole.frames[at]).max((1, 2, 3)) > 0
    detail = f"{got.timestamps[wrong].round(2).tolist()[:4]} {got.facts.damage}"
    if got.facts.damage:
        return "different" if wrong.any() else "partial", detail
    try:
        video.read(path, decoder=decoder, frames=FRAMES)
    except VidspecError as error:
        return "unlisted", error.message.partition(": ")[2]
    return "exact" if len(got) == len(whole) and not wrong.any() else "silent", detail


def isolated(
    path: Path, whole: video.Clip, decoder: str, by: Callable[[Path, video.Clip, str], tuple[str, str]] = judge
) -> tuple[str, str]:
    """``by`` in a process of its own; ``crashed`` or ``hung`` where it does not come back."""
    context = multiprocessing.get_context("fork")
    here, there = context.Pipe(False)
    child = context.Process(target=lambda: there.send(by(path, whole, decoder)))
    child.start()
    there.close()
    try:
        verdict = here.recv() if here.poll(60) else ("hung", "")
    except EOFError:
        verdict = ("crashed", "")
    if verdict[0] == "hung":
        child.kill()
    child.join()
    return verdict


def survey(
    folder: Path,
    files: int,
    seed: int,
    names: Sequence[str],
    *,
    size: tuple[int, int] = (256, 192),
    ways: Sequence[str] = tuple(DAMAGE),
    decoder: str = "auto",
    frames: int | None = None,
    judged: Callable[[Path, video.Clip, str], tuple[str, str]] = isolated,
) -> Iterator[Result]:
    """Damages ``files`` files of the codecs ``names`` in turn, each container and each way in turn."""
    kinds = [(name, suffix) for name in names for suffix in SOURCES[name][2]]
    wholes = {}
    for name, suffix in kinds:
        path = encode(folder / f"{name}.{suffix}", *SOURCES[name][:2], size)
        wholes[name, suffix] = path.read_bytes(), video.read(path, decoder=decoder, frames=frames)
    per_source: Counter[str] = Counter()
    for number in range(files):
        name = names[number % len(names)]
        suffixes = SOURCES[name][2]
        way = ways[per_source[name] % len(ways)]
        suffix = suffixes[(per_source[name] + per_source[name] // len(ways)) % len(suffixes)]
        per_source[name] += 1
        data, whole = bytearray(wholes[name, suffix][0]), wholes[name, suffix][1]
        DAMAGE[way](data, np.random.default_rng((seed, number)))
        path = folder / f"damaged.{suffix}"
        path.write_bytes(data)
        yield Result(name, suffix, way, number, *judged(path, whole, decoder))


def sound_survey(folder: Path, sizes: Sequence[tuple[int, int]]) -> tuple[int, list[str]]:
    """Count the sound files of these sizes, and describe those that are not read whole."""
    count, refused = 0, []
    for size in sizes:
        for name, path in sound_kinds.files(folder, size):
            count += 1
            try:
                got = len(video.read(path, frames=1000, max_pixels=4096))
                wrong = None if got == sound_kinds.FRAMES else f"{got} frames"
            except VidspecError as error:
                wrong = error.message
            if wrong:
                refused.append(f"{name}, {size[0]}x{size[1]}: {str(wrong).replace(str(folder), '').lstrip('/')}")
    return count, refused


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--files", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--decoder", default="auto")
    parser.add_argument("--codecs", default="h264,hevc,vp9,mpeg4,av1", help="of " + ", ".join(SOURCES))
    parser.add_argument("--size", default="256x192", help="of the pictures")
    parser.add_argument("--ways", default=",".join(DAMAGE), help="of damage")
    parser.add_argument("--sound", action="store_true", help="count sound files that are refused, of all --sizes")
    parser.add_argument("--sizes", default="320x240,1280x720", help="of the pictures of sound files")
    parser.add_argument("--allow-damaged", action="store_true", help="judge what is captioned of damaged files")
    parser.add_argument("--verbose", action="store_true")
    asked = parser.parse_args()
    if asked.sound:
        with tempfile.TemporaryDirectory() as folder:
            sizes = [(int(size.split("x")[0]), int(size.split("x")[1])) for size in asked.sizes.split(",")]
            count, refused = sound_survey(Path(folder), sizes)
        print(f"{count} sound files, {len(refused)} refused", *refused, sep="\n")
        return
    results = []
    with tempfile.TemporaryDirectory() as folder:
        names = asked.codecs.split(",")
        width, height = map(int, asked.size.split("x"))
        how = {"size": (width, height), "ways": asked.ways.split(","), "decoder": asked.decoder}
        if asked.allow_damaged:
            how |= {"frames": FRAMES, "judged": partial(isolated, by=judge_allowed)}
        for result in survey(Path(folder), asked.files, asked.seed, names, **how):
            results.append(result)
            if asked.verbose and result.verdict != "exact":
                print(*result, sep="\t", file=sys.stderr)
    verdicts = [
        "error",
        "exact",
        *(["partial", "unlisted", "silent"] if asked.allow_damaged else []),
        "different",
        "other",
    ]
    for column in ("codec", "container", "damage"):
        count = Counter((getattr(r, column), r.verdict if r.verdict in verdicts else "other") for r in results)
        print(f"\n{column:28}{'files':>8}" + "".join(f"{verdict:>10}" for verdict in verdicts))
        for key in dict.fromkeys(getattr(r, column) for r in results):
            known = [count[key, verdict] for verdict in verdicts]
            print(f"{key:28}{sum(known):8}" + "".join(f"{number:10}" for number in known))


if __name__ == "__main__":
    main()
