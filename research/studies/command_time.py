"""Seconds from a command to the end of its caption.

``python -m research.studies.command_time [CLIP] [--runs N] [--earlier CHECKOUT]``

Every run is a process of its own, and all take turns after one that is not counted. ``import torch`` and the usual
import of transformers' model files are what a program that does nothing takes.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median

from vidspec.embedded.samples import shipped

ROOT = Path(__file__).parents[2]
PAIRS = ("embedded", "embedded-qwen")


def contenders(clip: str, earlier: Path | None) -> dict[str, tuple[Path, list[str]]]:
    """Return by name a checkout and the words after ``python`` that run in it."""
    found = {
        "import torch": (ROOT, ["-c", "import torch"]),
        "import transformers.modeling_utils": (ROOT, ["-c", "import transformers.modeling_utils"]),
    }
    for pair in PAIRS:
        words = ["-m", "vidspec", "caption", clip, "--quiet", "--set", f"models.pair={pair}"]
        found[f"vidspec caption, {pair}"] = ROOT, words
        if earlier is not None:
            found[f"version 0.1.0, {pair}"] = earlier, words
    return found


def seconds(checkout: Path, words: Sequence[str]) -> float:
    """Return how long a process takes.

    Raises:
        CalledProcessError: it fails.
    """
    begun = time.perf_counter()
    subprocess.run(
        [sys.executable, *words],
        cwd=checkout,
        env=os.environ | {"PYTHONPATH": str(checkout)},
        stdout=subprocess.DEVNULL,
        check=True,
    )
    return time.perf_counter() - begun


def table(found: Mapping[str, Sequence[float]]) -> list[str]:
    """Return the lines of the table of medians, in Markdown."""
    lines = ["| process | median s | least | greatest |", "|---|---|---|---|"]
    return lines + [
        f"| {name} | {median(all_):.1f} | {min(all_):.1f} | {max(all_):.1f} |" for name, all_ in found.items()
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("clip", type=Path, nargs="?", default=shipped()[0])
    parser.add_argument("--runs", type=int, default=7)
    parser.add_argument("--earlier", type=Path)
    asked = parser.parse_args()
    processes = contenders(str(asked.clip.resolve()), asked.earlier)
    found: dict[str, list[float]] = {name: [] for name in processes}
    for run in range(asked.runs + 1):
        for name, process in processes.items():
            taken = seconds(*process)
            if run:
                found[name].append(taken)
    print("\n".join(table(found)))


if __name__ == "__main__":
    main()
