"""Score a built-in pair on clips it has not seen: ``python -m research.training.evaluate --pair FOLDER --clips 200``.

Clips go the whole way (drawn, encoded as mp4, decoded, captioned). Reports fact F1 of target and draft, the share of
questions after the caption that they answer correctly, and ``tau`` at the default window; ``--json`` writes the file of
the weights' scores.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import random
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch

from research.world.questions import about_the_caption, is_right, questions
from research.world.samples import HELD_OUT_SEED, draw, draw_sample
from research.world.scene import Scene
from research.world.scoring import Score, score, total
from vidspec.captioner import Captioner
from vidspec.config import profiles
from vidspec.embedded import prompts
from vidspec.events.record import CountsRecord
from vidspec.models import loading
from vidspec.models.placement import resolve_placement
from vidspec.models.video_language_model import VideoLanguageModel

#: Questions after a caption: those answered by the clip, followed by those answered by the caption.
QUESTIONS = 2


def evaluate(
    target: VideoLanguageModel, draft: VideoLanguageModel, clips: int, seed: int, frames: int
) -> dict[str, Any]:
    """Caption held-out clips with the pair (losslessly, hence the target's captions) and with the draft alone."""
    shown = {"video.frames": frames}
    both = Captioner(profiles.load("vanilla-sd", shown), target, draft)
    alone = Captioner(profiles.load("ar", shown), draft, None)
    rng = random.Random(seed)
    scenes: list[Scene] = [draw_sample(rng.randrange(2**31)).scene for _ in range(clips)]
    scores: dict[str, list[Score]] = {"target": [], "draft": []}
    right: dict[str, dict[str, list[bool]]] = {"target": {}, "draft": {}}
    counters: list[CountsRecord] = []
    visual = 0
    with tempfile.TemporaryDirectory() as folder:
        for path, scene in zip(draw(Path(folder), clips, seed), scenes, strict=True):
            for name, captioner in (("target", both), ("draft", alone)):
                dialogue = captioner.dialogue(path)
                record = dialogue.ask(prompts.PROMPTS[0])
                scores[name].append(score(record.caption or "", scene))
                for asked in [*rng.sample(questions(scene), QUESTIONS), *about_the_caption(record.caption or "")]:
                    answer = dialogue.ask(asked.text).caption or ""
                    right[name].setdefault(asked.kind, []).append(is_right(answer, asked))
                if name == "target":
                    counters.append(record.counters)
                    visual = record.counters["visual_tokens"]
            if len(counters) % 20 == 0:
                print(f"{len(counters)} clips", file=sys.stderr, flush=True)
    windows = sum(len(c["accepted_lengths"]) for c in counters)
    return {
        "clips": clips,
        "seed": seed,
        "frames": frames,
        "visual_tokens": visual,
        **{f"{name}_{key}": round(getattr(total(rows), key), 4) for name, rows in scores.items() for key in _MEASURES},
        **{f"{name}_answers": _shares(kinds) for name, kinds in right.items()},
        "tau": round(sum(c["accepted"] for c in counters) / windows, 3),
        "gamma": both.client.profile.draft.gamma,
    }


def _shares(kinds: dict[str, list[bool]]) -> dict[str, float]:
    """Return the shares of answers that are right word for word, by kind and in total."""
    everything = [one for ones in kinds.values() for one in ones]
    found = {"all": everything, **{kind: kinds[kind] for kind in prompts.QUESTIONS if kind in kinds}}
    return {kind: round(sum(ones) / len(ones), 4) for kind, ones in found.items()}


_MEASURES = ("precision", "recall", "f1")


def digest(folder: Path) -> str:
    """Return the SHA-256 of a model's weights, so that stale scores are detected."""
    return hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    known_pair = loading.embedded_folder("embedded", "target").parent
    parser.add_argument("--pair", type=Path, default=known_pair, help="folder that holds target and draft")
    parser.add_argument("--clips", type=int, default=200)
    parser.add_argument("--seed", type=int, default=HELD_OUT_SEED)
    parser.add_argument("--frames", type=int, default=32)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    where = resolve_placement()
    target, draft = (loading.load_model(str(args.pair / role), where) for role in ("target", "draft"))
    weights = {role: digest(args.pair / role) for role in ("target", "draft")}
    found = {"sha256": weights} | evaluate(target, draft, args.clips, args.seed, args.frames)
    print(json.dumps(found, indent=2))
    if args.json:
        args.json.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
