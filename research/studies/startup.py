"""Acceptance of the parallel profiles' start-up tokens.

``python -m research.studies.startup CLIPS... --pair PAIR``

Start-up tokens are drafted during the target's prefill; all are lost if the first is not the target's first token.
Prints the shares of first words in drawn training captions, which need no model, and by profile the number of clips
whose first start-up token was the target's. Times are not measured.
"""

from __future__ import annotations

import argparse
import random
from collections import Counter
from pathlib import Path

from research.world.captions import caption
from research.world.scene import draw_scene
from vidspec.captioner import Captioner
from vidspec.events.events import Round

PROFILES = ("parallelvlm", "pearl-syn-prefill", "hippo")


def first_words(count: int, seed: int) -> dict[str, float]:
    """Return the share of each first word among ``count`` drawn captions."""
    rng = random.Random(seed)
    words = Counter(caption(draw_scene(rng), rng).split()[0] for _ in range(count))
    return {word: seen / count for word, seen in words.most_common()}


def fates(captioner: Captioner, clips: list[Path]) -> Counter[str]:
    """Count the fates of clips' first start-up tokens: accepted, rejected, or later than the target's token."""
    found: Counter[str] = Counter()
    for clip in clips:
        first = next(event for event in list(captioner.stream(clip)) if isinstance(event, Round))
        rejected = "rejected" if "correction" in first.origins else "not there"
        found["accepted" if first.accepted else rejected] += 1
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("clips", type=Path, nargs="+")
    parser.add_argument("--pair", default="embedded")
    parser.add_argument("--captions", type=int, default=200)
    parser.add_argument("--seed", type=int, default=20_000_000)
    asked = parser.parse_args()
    print(f"first words of {asked.captions} drawn captions: {first_words(asked.captions, asked.seed)}")
    for profile in PROFILES:
        settings = {"models.pair": asked.pair, "generate.max_new_tokens": 8}
        with Captioner.from_profile(profile, overrides=settings) as captioner:
            print(f"{asked.pair}, {profile}: {dict(fates(captioner, asked.clips))} of {len(asked.clips)}", flush=True)


if __name__ == "__main__":
    main()
