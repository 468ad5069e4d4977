"""Measure the cost of a second prompt about a clip: ``research.studies.prompts [--pair PAIR] [--profile NAME]``.

Draws clips as ``research.draw`` does and answers one prompt and two about each, in turns, from the file on: up to the
first token of each answer, which is all but the decoding, and whole. Prints Markdown: seconds, the least of the
repeats, and how many times as much two prompts took as one: up to the first tokens, whole, and whole but for the
decoding of the second. Meant for a quiet machine.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from research.world.samples import draw
from vidspec.bench.tables import table
from vidspec.captioner import Captioner
from vidspec.config import profiles
from vidspec.embedded.prompts import PROMPTS


def seconds(captioner: Captioner, clip: Path, prompts: Sequence[str]) -> float:
    begun = time.perf_counter()
    captioner.captions(clip, prompts)
    return time.perf_counter() - begun


def measured(captioner: Captioner, clips: Sequence[Path], repeats: int) -> list[tuple[float, float]]:
    """Return the seconds of one prompt and of two, by clip."""
    found = []
    for clip in clips:
        times: dict[int, list[float]] = {1: [], 2: []}
        for turn in range(repeats):
            for count in (1, 2) if turn % 2 else (2, 1):
                times[count].append(seconds(captioner, clip, PROMPTS[:count]))
        found.append((min(times[1]), min(times[2])))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--pair", default="embedded")
    parser.add_argument("--profile", default="vanilla-sd")
    parser.add_argument("--clips", type=int, default=12)
    parser.add_argument("--seed", type=int, default=17)
    parser.add_argument("--repeats", type=int, default=3)
    asked = parser.parse_args()
    overrides = {"models.pair": asked.pair, "models.dtype": "float32"}
    with tempfile.TemporaryDirectory() as folder, Captioner.from_profile(asked.profile, overrides=overrides) as whole:
        clips = draw(Path(folder), asked.clips, asked.seed)
        one_token = profiles.override(whole.client.profile, {"generate.max_new_tokens": 1})
        setup = whole.client.setup
        first = Captioner(one_token, setup.target.model, setup.draft.model if setup.draft else None)
        for captioner in (first, whole):
            captioner.captions(clips[0], PROMPTS[:2])  # warm-up
        columns = [measured(captioner, clips, asked.repeats) for captioner in (first, whole)]
    rows, ratios = [], []
    for clip, (one, two), (one_whole, two_whole) in zip(clips, *columns, strict=True):
        ratios.append((two / one, two_whole / one_whole, 1 + (two - one) / one_whole))
        rows.append(
            [clip.name, *(f"{one:.3f} {two:.3f} {one_whole:.3f} {two_whole:.3f}".split()), *map(ratio, ratios[-1])]
        )
    for name, of in (("median", median), ("most", max)):
        rows.append([name, "", "", "", "", *(ratio(of(column)) for column in zip(*ratios, strict=True))])
    header = "clip", "one, first token", "two", "one, whole", "two", "first tokens", "whole", "second not decoded"
    print(table(header, rows))


def ratio(value: float) -> str:
    return f"{value:.2f}x"


if __name__ == "__main__":
    main()
