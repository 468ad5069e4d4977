"""Memory of a long run: ``python -m research.studies.memory CLIP...``, resident bytes of the process and its children.

The clips are captioned again under other names, ``--count`` in all, eight at once, with one thread and 8 frames. Prints
Markdown.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
from pathlib import Path
from statistics import fmean, median

from research.peers.sampler import MemorySampler
from research.peers.throughput import Throughput, start_contenders
from vidspec.bench.loaded import ModelSource
from vidspec.bench.tables import table
from vidspec.cli.printed import print_note

BATCH = 8


def main(args: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("clips", nargs="+", type=Path)
    parser.add_argument("--pair", default="embedded-qwen")
    parser.add_argument("--profile", default="vanilla-sd-auto")
    parser.add_argument("--count", type=int, default=300, help="clips in all")
    asked = parser.parse_args(args)
    with tempfile.TemporaryDirectory() as folder:
        clips = [_linked(asked.clips[number % len(asked.clips)], Path(folder), number) for number in range(asked.count)]
        source = ModelSource(asked.pair, device="cpu", dtype="float32")
        plan = Throughput(clips, [asked.profile], batches=[BATCH], source=source, frames=8, threads=1)
        with start_contenders(plan, print_note) as workers:
            (worker,) = workers.values()
            with MemorySampler(worker.pid, 0.2) as watch:
                done = worker.ask("run", clips=clips, batch=BATCH)
    held = [one / 2**20 for _, one in watch.samples]

    def part(low: float, high: float) -> str:
        some = held[int(low * len(held)) : max(int(low * len(held)) + 1, int(high * len(held)))]
        return f"{median(some):.0f} MiB ({min(some):.0f}-{max(some):.0f})"

    print(f"### {asked.pair}: memory of {asked.profile} at batch {BATCH} over {asked.count} clips\n")
    cells = [("first tenth", part(0.0, 0.1)), ("second tenth", part(0.1, 0.2)), ("middle tenth", part(0.45, 0.55))]
    cells += [("last tenth", part(0.9, 1.0)), ("peak", f"{max(held):.0f} MiB"), ("mean", f"{fmean(held):.0f} MiB")]
    print(table(("resident, with children", "median (least-greatest)"), cells))
    print(f"\n{len(done['ids'])} captioned, {len(done['errors'])} failed, {done['seconds']:.0f} s")
    return 0


def _linked(clip: Path, folder: Path, number: int) -> str:
    """Return another name of a clip in a folder."""
    name = folder / f"{number:04d}-{clip.name}"
    try:
        os.link(clip, name)
    except OSError:
        shutil.copy(clip, name)
    return str(name)


if __name__ == "__main__":
    sys.exit(main())
