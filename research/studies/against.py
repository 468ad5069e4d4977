"""Compare this checkout with another: ``python -m research.studies.against OTHER [--pair embedded-qwen]``.

Each checkout captions the shipped clips in its own process with one thread; the two take turns profile by profile.
Prints Markdown: tokens per second of decoding alone, medians over the turns, and whether the tokens are the same. For a
change that should alter neither; on an idle machine.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from statistics import median
from typing import TypedDict

from vidspec.bench.tables import table

__all__ = ["Turn", "compared", "main"]

PROFILES = "ar,vanilla-sd,specvlm,self-sd,sd-adaptive-tree,hybrid"

#: Program run in both checkouts; it uses only names that both have.
WORKER = """
import json, sys
from vidspec import Captioner
from vidspec.embedded.samples import shipped

pair, frames, profiles = sys.argv[1], int(sys.argv[2]), sys.argv[3].split(",")
settings = {"models.pair": pair, "video.frames": frames, "models.threads": 1, "models.device": "cpu"}
captioners = {name: Captioner.from_profile(name, overrides=settings) for name in profiles}
clips = [(str(path), captioners[profiles[0]].read(path)) for path in shipped()]
print("ready", flush=True)
for line in sys.stdin:
    captions = [captioners[line.strip()].caption(path, clip=clip) for path, clip in clips]
    turn = {
        "tokens": sum(len(one.token_ids) - 1 for one in captions),
        "seconds": sum(one.timings["decode"] for one in captions),
        "ids": [one.token_ids for one in captions],
    }
    print(json.dumps(turn), flush=True)
"""


class Turn(TypedDict):
    """One profile over all clips: tokens after the first of each text, their seconds, and all token ids."""

    tokens: int
    seconds: float
    ids: list[list[int]]


def compared(turns: dict[str, tuple[list[Turn], list[Turn]]]) -> str:
    """Return a table of profiles, from the turns of the other checkout and of this one."""
    rows = []
    for name, (before, now) in turns.items():
        rates = [median(turn["tokens"] / turn["seconds"] for turn in side) for side in (before, now)]
        same = "yes" if all(turn["ids"] == before[0]["ids"] for turn in (*before, *now)) else "no"
        rows.append((name, f"{rates[0]:.1f}", f"{rates[1]:.1f}", f"{rates[1] / rates[0]:.3f}", same))
    return table(("profile", "other, tokens/s", "this", "ratio", "same tokens"), rows)


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; returns the exit code: 1 if tokens differ."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("other", type=Path, help="root of the other checkout")
    parser.add_argument("--pair", default="embedded-qwen")
    parser.add_argument("--frames", type=int, default=16)
    parser.add_argument("--profiles", default=PROFILES)
    parser.add_argument("--repeats", type=int, default=5)
    wanted = parser.parse_args(arguments)
    names = wanted.profiles.split(",")
    roots = wanted.other.resolve(), Path(__file__).resolve().parents[2]
    workers = [_started(root, [wanted.pair, str(wanted.frames), wanted.profiles]) for root in roots]
    try:
        for worker in workers:
            _answer(worker)
        turns: dict[str, tuple[list[Turn], list[Turn]]] = {name: ([], []) for name in names}
        for number in range(wanted.repeats + 1):
            for name in names:
                for side in (0, 1) if number % 2 else (1, 0):
                    print(name, file=workers[side].stdin, flush=True)
                    turn: Turn = json.loads(_answer(workers[side]))
                    if number:  # the first warms up
                        turns[name][side].append(turn)
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()
    text = compared(turns)
    print(text)
    return 1 if "| no |" in text else 0


def _started(root: Path, about: list[str]) -> subprocess.Popen[str]:
    env = {**os.environ, "PYTHONPATH": str(root), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", WORKER, *about]
    return subprocess.Popen(command, cwd=root, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def _answer(worker: subprocess.Popen[str]) -> str:
    assert worker.stdout is not None
    line: str = worker.stdout.readline()
    if not line:
        raise SystemExit(f"a checkout's process ended with exit code {worker.wait()}")
    return line


if __name__ == "__main__":
    sys.exit(main())
