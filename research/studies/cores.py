"""Processor time by activity while a folder is captioned: ``python -m research.studies.cores CLIP... [--pair PAIR]``.

``vidspec caption`` runs over the clips with one torch thread per process. Processor time is read from ``/proc``, from
the first record written to the last, by part: the main thread, which decodes and prefills; other threads, which encode
the next clips; child processes, which read files. Prints Markdown, a line for each profile and batch size. Linux only,
on an idle machine.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from vidspec.bench.tables import table

__all__ = ["Busy", "busy", "main"]

TICK = os.sysconf("SC_CLK_TCK")


class Busy(NamedTuple):
    """Processor seconds so far of the main thread, other threads and child processes; and the clock."""

    main: float
    threads: float
    children: float
    clock: float


def _ticks(stat: Path) -> float:
    """Return user and system seconds of a process or thread; 0 if it has ended."""
    try:
        fields = stat.read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / TICK


def _children(pid: int) -> list[int]:
    """Return all descendant processes."""
    found: list[int] = []
    for file in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            own = [int(one) for one in file.read_text().split()]
        except OSError:
            continue
        found += [*own, *(deep for one in own for deep in _children(one))]
    return found


def busy(pid: int) -> Busy:
    """Return the processor time of a process and its descendants up to now."""
    main = _ticks(Path(f"/proc/{pid}/task/{pid}/stat"))
    whole = _ticks(Path(f"/proc/{pid}/stat"))
    children = sum(_ticks(Path(f"/proc/{child}/stat")) for child in _children(pid))
    return Busy(main, whole - main, children, time.monotonic())


def captioned(clips: Sequence[str], pair: str, profile: str, batch: int) -> tuple[str, ...]:
    """Return a line: clips per second, and busy shares of the time between the first record and the last."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "captions.jsonl"
        command = [sys.executable, "-m", "vidspec", "caption", *clips, "--pair", pair, "--profile", profile]
        command += ["--batch", str(batch), "--frames", "8", "--format", "jsonl", "-o", str(out), "--quiet"]
        command += ["--set", "models.threads=1"]
        process = subprocess.Popen(command, env={**os.environ, "OMP_NUM_THREADS": "1"})
        samples: list[tuple[int, Busy]] = []
        while process.poll() is None:
            lines = out.read_bytes().count(b"\n") if out.exists() else 0
            if lines and (not samples or lines > samples[-1][0]):
                samples.append((lines, busy(process.pid)))
            time.sleep(0.02)
    if process.returncode:
        raise SystemExit(f"vidspec caption: exit code {process.returncode}")
    if len(samples) < 2:  # all ended at once
        return (profile, str(batch), *["-"] * 5)
    (first, begun), (last, ended) = samples[0], samples[-1]
    seconds = ended.clock - begun.clock
    shares = [(now - before) / seconds for now, before in zip(ended[:3], begun[:3], strict=True)]
    return (profile, str(batch), f"{(last - first) / seconds:.2f}", *(f"{one:.0%}" for one in (*shares, sum(shares))))


def main(args: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("clips", nargs="+", type=Path)
    parser.add_argument("--pair", default="embedded-qwen")
    parser.add_argument("--profiles", default="ar,vanilla-sd-auto")
    parser.add_argument("--batch", default="1,8,16")
    asked = parser.parse_args(args)
    clips = [str(clip.resolve()) for clip in asked.clips]
    lines = [
        captioned(clips, asked.pair, profile, int(batch))
        for profile in asked.profiles.split(",")
        for batch in asked.batch.split(",")
    ]
    heads = ("profile", "at once", "clips/s", "decoding, prompts", "looking at clips to come", "reading files")
    print(table((*heads, f"of {os.cpu_count()} cores"), lines))
    return 0


if __name__ == "__main__":
    sys.exit(main())
