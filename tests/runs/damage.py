"""Ten ways in which a clip can be broken, each with the kind of error that names it."""

import os
import random
from pathlib import Path

import av

__all__ = ["WAYS", "damage"]


def empty(whole, path):
    path.write_bytes(b"")


def text(whole, path):
    path.write_text("<html><body>404 Not Found</body></html>\n" * 20)


def half(whole, path):
    """The index of these clips is at their end, and so it is gone."""
    path.write_bytes(whole.read_bytes()[: whole.stat().st_size // 2])


def cut(whole, path):
    """Index first, then fewer frames than it promises."""
    with av.open(str(whole)) as source, av.open(str(path), "w", options={"movflags": "faststart"}) as file:
        stream = file.add_stream_from_template(source.streams.video[0])
        for packet in source.demux(source.streams.video[0]):
            if packet.dts is not None:
                packet.stream = stream
                file.mux(packet)
    os.truncate(path, path.stat().st_size * 6 // 10)


def zeros(whole, path):
    path.write_bytes(bytes(whole.stat().st_size))


def noise(whole, path):
    path.write_bytes(random.Random(0).randbytes(whole.stat().st_size))


def sound(whole, path):
    with av.open(str(path), "w") as file:
        stream = file.add_stream("aac", rate=8000, layout="mono")
        for number in range(8):
            frame = av.AudioFrame(format="fltp", layout="mono", samples=1024)
            frame.sample_rate, frame.pts = 8000, number * 1024
            frame.planes[0].update(bytes(4096))
            file.mux(stream.encode(frame))
        file.mux(stream.encode(None))


def beheaded(whole, path):
    data = bytearray(whole.read_bytes())
    data[:64] = random.Random(1).randbytes(64)
    path.write_bytes(data)


def dangling(whole, path):
    path.symlink_to("nowhere.mp4")


def pipe(whole, path):
    os.mkfifo(path)


#: Way of damage, and the kind of the error.
WAYS = {
    empty: "empty",
    text: "not_video",
    half: "truncated",
    cut: "truncated",
    zeros: "not_video",
    noise: "not_video",
    sound: "no_video_stream",
    beheaded: "not_video",
    dangling: "missing",
    pipe: "unsupported",
}


def damage(whole: Path, folder: Path, copies: int = 1) -> dict[str, str]:
    """Make ``copies`` of each way in ``folder``; returns the kind of error by path."""
    made = {}
    for number in range(copies):
        for way, kind in WAYS.items():
            path = folder / f"{number:02d}-{way.__name__}.mp4"
            way(whole, path)
            made[str(path)] = kind
    return made
