"""Caption 10,000 tiny clips in 100 tar shards with a built-in pair: ``python -m research.studies.shards``.

The shards are made first, 24 frames of 64 x 64 pixels per clip, drawn by number; then ``vidspec caption`` turns them
into Parquet parts in a separate process. Prints for each number of shards its clips, the command's seconds (loading
included), the clips per second, and the peak resident memory of the largest process (that of the models, or a reader).
Several numbers, ``--shards 1,2,4``, show whether memory grows with the shards.
"""

from __future__ import annotations

import argparse
import io
import os
import sys
import tarfile
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import av
import numpy as np

from vidspec.bench.tables import table

ROOT = Path(__file__).resolve().parents[2]
SIDE, FRAMES = 64, 24


class Run(NamedTuple):
    """One run of the command; ``peak`` is the largest process's, in bytes."""

    shards: int
    clips: int
    seconds: float
    peak: int
    code: int


def clip(number: int) -> bytes:
    """Return an MP4 of a square that moves right; colours and row follow from the number."""
    rng = np.random.default_rng(number)
    back, colour = rng.integers(0, 256, (2, 3), dtype=np.uint8)
    row = int(rng.integers(0, SIDE - 16))
    file = io.BytesIO()
    with av.open(file, mode="w", format="mp4") as container:
        stream = container.add_stream("mpeg4", rate=8)
        stream.width = stream.height = SIDE
        stream.pix_fmt = "yuv420p"
        for frame in range(FRAMES):
            picture = np.broadcast_to(back, (SIDE, SIDE, 3)).copy()
            picture[row : row + 16, 2 * frame : 2 * frame + 16] = colour
            container.mux(stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
        container.mux(stream.encode())
    return file.getvalue()


def write_shards(folder: Path, shards: int, clips: int) -> None:
    """Write ``00000.tar`` and so on, each of ``clips`` clips; existing ones are kept."""
    folder.mkdir(parents=True, exist_ok=True)
    for shard in range(shards):
        path = folder / f"{shard:05d}.tar"
        if path.exists():
            continue
        with tarfile.open(path.with_suffix(".part"), "w") as tar:
            for number in range(shard * clips, (shard + 1) * clips):
                content = clip(number)
                info = tarfile.TarInfo(f"{number:07d}.mp4")
                info.size = len(content)
                tar.addfile(info, io.BytesIO(content))
        path.with_suffix(".part").rename(path)


def captioned(folder: Path, shards: int, clips: int, out: Path, *options: str) -> Run:
    """Caption the first ``shards`` shards in a separate process."""
    names = [str(folder / f"{shard:05d}.tar") for shard in range(shards)]
    command = [sys.executable, "-m", "vidspec", "caption", *names, "--output-dir", str(out), "--quiet", *options]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    began = time.monotonic()
    child = os.spawnve(os.P_NOWAIT, command[0], command, environment)
    _, status, used = os.wait4(child, 0)
    seconds = time.monotonic() - began
    return Run(shards, shards * clips, seconds, used.ru_maxrss << 10, os.waitstatus_to_exitcode(status))


def main(args: list[str] | None = None) -> int:
    """Run the command line; returns the exit code, 1 if any run failed."""
    parser = argparse.ArgumentParser(prog="python -m research.studies.shards", description=__doc__)
    parser.add_argument("--shards", default="100", help="how many; or several numbers, each a run")
    parser.add_argument("--clips", type=int, default=100, help="in each shard")
    parser.add_argument("--pair", default="embedded")
    parser.add_argument("--frames", type=int, default=4)
    parser.add_argument("--max-new-tokens", type=int, default=8)
    parser.add_argument("--folder", type=Path, help="where shards are made, or are already (default: a temporary one)")
    given, others = parser.parse_known_args(args)
    numbers = [int(number) for number in given.shards.split(",")]
    with tempfile.TemporaryDirectory() as temporary:
        folder = given.folder or Path(temporary, "shards")
        write_shards(folder, max(numbers), given.clips)
        how = ["--pair", given.pair, "--frames", str(given.frames), "--max-new-tokens", str(given.max_new_tokens)]
        runs = [
            captioned(folder, number, given.clips, Path(temporary, f"out-{number}"), *how, *others)
            for number in numbers
        ]
    heads = ["shards", "clips", "seconds", "clips/s", "peak MiB", "exit code"]
    rows = [
        [
            *(str(run.shards), str(run.clips), f"{run.seconds:.1f}"),
            *(f"{run.clips / run.seconds:.2f}", f"{run.peak / 2**20:.0f}", str(run.code)),
        ]
        for run in runs
    ]
    print(table(heads, rows))
    return max(min(run.code, 1) for run in runs)


if __name__ == "__main__":
    sys.exit(main())
