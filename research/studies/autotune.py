"""Measures ``auto`` beside what it races: ``python -m research.studies.autotune --count 64``.

Draws clips that the built-in models have not seen. On each pair ``ar``, the candidates of the race and ``auto`` take
turns over all of them, each in a process of its own with one thread: clips one by one and eight at once. Every run of
``auto`` begins as if nothing was known, and holds its race where one pays. Prints Markdown: clips per second from the
first file opened to the last record written, medians with the least and greatest, and how far ``auto`` is behind the
fastest other profile. ``--json`` keeps all that was measured. For a machine that does nothing else.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from research.world.samples import draw
from vidspec.bench.loaded import Source
from vidspec.bench.tables import table
from vidspec.bench.throughput import Row, Throughput, contenders, measure

__all__ = ["behind", "compared", "main"]

#: The first seed that training has not drawn from.
SEED = 20_000_000
PROFILES = "ar,vanilla-sd+draft.gamma=auto,sd-adaptive-tree,hybrid,auto"
PAIRS = "embedded,embedded-qwen"
BATCHES = "1,8"


def behind(rates: dict[str, float]) -> float:
    """By which share of the fastest other profile's time ``auto`` takes longer; below 0 where it is the fastest.

    Args:
        rates: clips per second by profile.
    """
    return max(rate for name, rate in rates.items() if name != "auto") / rates["auto"] - 1


def compared(rows: Sequence[Row]) -> str:
    """A table of one pair, at each number of clips at once the fastest first."""
    lines: list[tuple[str, ...]] = []
    for batch in sorted({row.batch for row in rows}):
        alike = sorted((row for row in rows if row.batch == batch), key=lambda row: -row.clips_per_s)
        rates = {row.name: row.clips_per_s for row in alike}
        for row in alike:
            spread = f"{row.clips_per_s:.3f} ({row.spread[0]:.3f}-{row.spread[1]:.3f})"
            over = f"{row.clips_per_s / rates['ar']:.2f}x" if "ar" in rates else "-"
            late = f"{behind(rates):+.1%}" if row.name == "auto" and len(rates) > 1 else ""
            lines.append((str(batch), row.name, spread, over, f"{row.plain}/{row.clips}", late))
    return table(("clips at once", "profile", "clips/s", "over ar", "same tokens as ar", "behind the best"), lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=64, help="clips to draw")
    parser.add_argument("--seed", type=int, default=SEED, help="of the clips")
    parser.add_argument("--frames", type=int, default=8)
    parser.add_argument("--repeats", type=int, default=3, help="turns over all clips")
    parser.add_argument("--pairs", default=PAIRS)
    parser.add_argument("--profiles", default=PROFILES)
    parser.add_argument("--batch", default=BATCHES, help="clips at once, increasing")
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args(arguments)
    kept: dict[str, object] = {}
    with tempfile.TemporaryDirectory() as folder:
        clips = [str(path) for path in draw(Path(folder), asked.count, asked.seed)]
        for pair in asked.pairs.split(","):
            wanted = Throughput(
                clips,
                asked.profiles.split(","),
                batches=[int(size) for size in asked.batch.split(",")],
                repeats=asked.repeats,
                source=Source(pair, device="cpu", dtype="float32"),
                frames=asked.frames,
                threads=1,
            )
            with contenders(wanted, _say) as workers:
                outcome = measure(wanted, workers, _say)
            kept[pair] = outcome.to_dict()
            print(f"### {pair}, {len(clips)} clips\n\n{compared(outcome.rows)}\n", flush=True)
            if asked.json is not None:
                asked.json.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")
    return 0


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
