"""Train a block head for a built-in target: ``python -m research.training.stage_block --pair PAIR --out DIR``.

The target captions fresh scenes, and :mod:`vidspec.training` trains a head on these captions, as ``vidspec train`` does
on those of users; but some readings of a caption have visual rows too, so that the head drafts with them as well. DIR
receives the head with its matrices in eight bits (use it with ``--draft DIR --profile sparrow``), the captions in
``texts/``, and in ``training.pt`` what the same command continues from.
"""

from __future__ import annotations

import argparse
import itertools
import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from research.training.architecture import architecture
from research.training.int8_rows import INT8_ROWS, int8_rows
from research.training.record_texts import Recorded, read_texts, record_texts, save_texts
from research.training.stage_head import clips
from research.world.samples import HELD_OUT_SEED
from vidspec.captioner import Captioner
from vidspec.config import profiles
from vidspec.models import dflash, loading
from vidspec.models.placement import resolve_placement
from vidspec.training.head import SharedWeights, TrainedBlocks
from vidspec.training.new_head import BLOCK
from vidspec.training.states import TextStates
from vidspec.training.steps import HeadTraining, TrainingLimits

#: Scenes come from random streams that no other training, held-out clip or test uses.
SEEDS = {"embedded": 40_000_000, "embedded-qwen": 50_000_000}
FAMILIES = {"embedded": "llava_onevision", "embedded-qwen": "qwen2_5_vl"}
#: Clips of a recorded batch.
BATCH = 32
#: Share of the readings with visual rows, and parts of them.
SEEING, PARTS = 0.4, (0.1, 0.5, 1.0)


class RecordedTexts:
    """Recorded captions, by the names of their batches and their place there; the first batch is held out.

    Args:
        folder: of the batches.
        seed: of the visual rows that a reading has.
    """

    def __init__(self, folder: Path, seed: int = 1) -> None:
        self._texts: dict[str, Recorded] = {}
        self._rng = torch.Generator().manual_seed(seed)
        self.held_out: list[str] = []
        self.trained: list[str] = []
        for number, file in enumerate(sorted(folder.glob("*.pt"))):
            for at, text in enumerate(read_texts(file)):
                key = f"{file.stem}-{at}"
                self._texts[key] = text
                (self.trained if number else self.held_out).append(key)

    def read(self, key: str) -> TextStates:
        """Return a caption; one that is trained on sometimes with visual rows."""
        drawn = torch.rand(2, generator=self._rng).tolist()
        sees = key not in self.held_out and drawn[0] < SEEING
        return self._texts[key].with_visual(PARTS[int(drawn[1] * len(PARTS))] if sees else 0.0, self._rng)


def save_small(source: Path, out: Path) -> None:
    """Write a head with its matrices as int8 and a scale for each row."""
    out.mkdir(parents=True, exist_ok=True)
    save_file(int8_rows(load_file(source / "model.safetensors")), out / "model.safetensors")
    settings = json.loads((source / "config.json").read_text(encoding="utf-8")) | {"quantization_config": INT8_ROWS}
    (out / "config.json").write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")


def record(pair: str, target: Any, blocks: list[int], folder: Path, clips: int) -> None:
    """Record captions into a folder, batch by batch, until there are so many; batches that are there are kept."""
    folder.mkdir(parents=True, exist_ok=True)
    family = architecture(FAMILIES[pair])
    for number in range(-(-clips // BATCH)):
        if (file := folder / f"{number:04d}.pt").exists():
            continue
        for texts in record_texts(family, target, blocks, BATCH, BATCH, SEEDS[pair] + number):
            save_texts(file, texts)


def accepted_by_position(pair: str, target: Any, head: Path, profile: str, count: int) -> dict[str, Any]:
    """Caption drawn clips that no training used, from pixels; return the acceptance of the whole block.

    Returns:
        ``tau``, tokens of a round with the target's own; ``positions``, the share of rounds that accept the 1st, 2nd,
        ... position of those that accept all before it; ``reached``, the share of all rounds that accept it.
    """
    loaded = dflash.load_block_head(str(head), target, resolve_placement("cpu", "float32"))
    settings = {"models.pair": pair, "video.frames": 32, "draft.gamma": BLOCK - 1}
    captioner = Captioner(profiles.load(profile, settings, env={}), target, None, head=loaded)
    lengths = list[int]()
    for number, (clip, _) in enumerate(clips(count, 32, HELD_OUT_SEED + 7)):
        lengths += captioner.caption(f"{number}", clip=clip).counters["accepted_lengths"]
    reached = [sum(length >= at for length in lengths) for at in range(BLOCK)]
    return {
        "profile": profile,
        "clips": count,
        "tau": round(1 + sum(lengths) / len(lengths), 2),
        "positions": [round(now / max(1, before), 2) for before, now in itertools.pairwise(reached)],
        "reached": [round(now / len(lengths), 2) for now in reached[1:]],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pair", choices=tuple(SEEDS), default="embedded-qwen")
    parser.add_argument("--out", type=Path, required=True, help="folder for the head")
    parser.add_argument("--clips", type=int, default=1500)
    parser.add_argument("--minutes", type=float, default=60, help="of training at most")
    parser.add_argument("--from", dest="begin", help="head to begin with (default: the target's last blocks)")
    parser.add_argument("--evaluate", type=int, metavar="CLIPS", help="only measure the head in DIR on unseen clips")
    parser.add_argument("--profile", default="sparrow", help="of the measurement")
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(1)
    target = loading.load_model(str(loading.embedded_folder(args.pair, "target")), resolve_placement("cpu", "float32"))
    if args.evaluate:
        print(json.dumps(accepted_by_position(args.pair, target, args.out, args.profile, args.evaluate)))
        return
    shared = SharedWeights.of(target)
    head = TrainedBlocks.read(args.begin, target, shared) if args.begin else TrainedBlocks.new(target, shared, 2, 1)
    record(args.pair, target, [block - 1 for block in head.taps], args.out / "texts", args.clips)
    texts = RecordedTexts(args.out / "texts")
    training = HeadTraining(head, texts, texts.trained, texts.held_out, args.out, limits=TrainingLimits(args.minutes))
    training.load()
    for progress in training.run():
        if progress.validated:
            row = {"stage": "block", "step": progress.step, "loss": round(progress.loss, 3), "tau": progress.tau}
            print(json.dumps({**row, "s": round(progress.seconds)}), flush=True)
    save_small(training.head_folder, args.out)


if __name__ == "__main__":
    main()
