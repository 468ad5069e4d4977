"""Train a built-in pair: ``python -m research.training.train --family llava_onevision --out DIR`` runs every stage.

It starts from the shipped pair's weights, which the stage ``shipped`` takes apart, and keeps their towers: in
``language`` the language models learn from fresh scenes as the oracle's codes, in ``joint`` also from the clips that
the towers look at in ``bank``. ``--from nothing`` trains ``language`` and ``vision``, side by side, one core each, and
has a last stage ``polish``; there the Qwen2.5-VL pair's language models start from the shipped LLaVA-OneVision pair's:
the text is the same, only the positions of visual tokens are new. ``export`` writes the pair, ``scores`` captions
held-out clips. ``--stage`` runs one stage. Finished stages are not run again: delete their file in DIR to repeat one.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch

from research.training.architecture import Architecture, architecture
from research.training.evaluate import digest
from research.training.stage_joint import Bank, build_bank, grow
from research.training.stage_language import Fresh, Reader, train_readers
from research.training.stage_vision import train_vision
from vidspec.models.loading import embedded_folder

#: Freed memory is kept: giving it back and asking for it again at every step takes half of the processor's time.
KEPT = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(2**40)}
FAMILIES = ("llava_onevision", "qwen2_5_vl")
#: The shipped pairs.
PAIRS = {"llava_onevision": "embedded", "qwen2_5_vl": "embedded-qwen"}
#: The last training from shipped weights: seed, and steps of the stages ``language`` and ``joint``.
LAST = {"llava_onevision": (1, 1100, 300), "qwen2_5_vl": (2, 400, 250)}
#: Training settings by starting point; recorded with the weights.
SETTINGS: dict[str, dict[str, dict[str, Any]]] = {
    "shipped": {
        family: {
            "seed": seed,
            "language": [{"steps": language, "batch": 4, "peak": 3e-4, "draft_every": 2}],
            "bank": {"clips": 240},
            "joint": [
                {"steps": joint, "batch": 4, "peak": 1.5e-4, "floor": 0.02, "draft_every": 2, "part": 0.4}
                | {"keep": (128, 192, 256), "keep_late": (256, 512, 1024)}
            ],
        }
        for family, (seed, language, joint) in LAST.items()
    },
    "nothing": {
        "llava_onevision": {
            "seed": 1,
            "language": [{"steps": 3600, "batch": 4, "peak": 1e-3, "easy": True}],
            "vision": [{"steps": 4000, "scenes": 12, "peak": 1e-3}],
            "bank": {"clips": 1500},
            "joint": [{"steps": 800, "batch": 4, "peak": 6e-4}],
            "polish": [{"steps": 340, "batch": 4, "peak": 3e-4}],
        },
        "qwen2_5_vl": {
            "seed": 1,
            "language": [{"steps": 1400, "batch": 4, "peak": 3.5e-4}],
            "vision": [
                {"steps": 3800, "of": 5600, "scenes": 12, "peak": 1e-3},
                {"steps": 700, "scenes": 12, "peak": 3e-4, "floor": 0.02},
            ],
            "bank": {"clips": 200, "parts": 4},
            "joint": [{"steps": 300, "batch": 8, "peak": 2.5e-4, "floor": 0.2, "keep": (96, 128, 192, 256)}],
            "polish": [{"steps": 290, "batch": 8, "peak": 1.2e-4, "floor": 0.02, "keep": (256, 384, 560)}],
        },
    },
}


class Run:
    """One family's training in one folder, from ``shipped`` weights or from ``nothing``."""

    def __init__(self, family: Architecture, out: Path, begin: str):
        from transformers import PreTrainedTokenizerFast

        self.family, self.out, self.begin, self.settings = family, out, begin, SETTINGS[begin][family.family]
        self.seed = self.settings["seed"]
        if not (out / "tokenizer").exists():
            known = embedded_folder(PAIRS[family.family], "target")
            tokenizer = PreTrainedTokenizerFast.from_pretrained(known) if begin == "shipped" else family.tokenizer()
            tokenizer.save_pretrained(out / "tokenizer")
        self.tokenizer = PreTrainedTokenizerFast.from_pretrained(out / "tokenizer")
        self.configs = {name: family.config(size, self.tokenizer) for name, size in family.sizes.items()}

    def shipped(self) -> None:
        """Take the shipped pair apart; its towers stay as they are."""
        readers, seers = {}, {}
        for name, config in self.configs.items():
            reader, seer = Reader(self.family, config), self.family.seer(config)
            self.family.take_apart(embedded_folder(PAIRS[self.family.family], name), reader, seer)
            readers[name], seers[name] = reader.state_dict(), seer.state_dict()
        torch.save(readers, self.out / "shipped.pt")
        torch.save(seers, self.out / "vision.pt")

    def language(self) -> None:
        if self.begin == "shipped":
            readers = self.readers("shipped")
        else:
            readers = self._seeded() if self.family.seeded else self._shallow()
        for number, phase in enumerate(self.settings["language"]):
            settings = dict(phase)
            batch, easy = settings.pop("batch"), settings.pop("easy", False)
            source = Fresh(self.family, self.widths(), batch, self.seed, easy=easy)
            self._read(readers, source, "language", number, settings)

    def _read(self, readers: dict[str, Reader], source: Any, stage: str, number: int, settings: dict[str, Any]) -> None:
        seed = self.seed + STAGES.index(stage) + 10 * number
        train_readers(self.family, readers, source, self.tokenizer, self.out, stage=stage, seed=seed, **settings)

    def widths(self) -> dict[str, int]:
        return {name: size.hidden for name, size in self.family.sizes.items()}

    def _shallow(self) -> dict[str, Reader]:
        """Fresh readers, the target at half its depth: it learns faster, and is grown later."""
        size = self.family.sizes["target"]
        shallow = self.family.config(size, self.tokenizer, layers=size.layers // 2)
        return {"target": Reader(self.family, shallow), "draft": Reader(self.family, self.configs["draft"])}

    def _seeded(self) -> dict[str, Reader]:
        """Readers with the language models of the shipped LLaVA-OneVision pair."""
        from transformers import LlavaOnevisionForConditionalGeneration

        readers = {}
        for name, config in self.configs.items():
            folder = embedded_folder("embedded", name)
            known = LlavaOnevisionForConditionalGeneration.from_pretrained(folder, dtype=torch.float32)
            readers[name] = Reader(self.family, config)
            readers[name].model.load_state_dict(known.model.language_model.state_dict())
        return readers

    def vision(self) -> None:
        seers = {name: self.family.seer(config) for name, config in self.configs.items()}
        for number, phase in enumerate(self.settings["vision"]):
            train_vision(self.family, seers, self.widths(), self.out, seed=self.seed + 10 * number, **phase)

    def seers(self) -> dict[str, Any]:
        saved = torch.load(self.out / "vision.pt")
        seers = {name: self.family.seer(config).eval() for name, config in self.configs.items()}
        for name, seer in seers.items():
            seer.load_state_dict(saved[name])
        return seers

    def bank(self) -> None:
        """Clips of ``parts`` streams of random numbers, as many at a time as there are threads."""
        settings = dict(self.settings["bank"])
        parts = settings.pop("parts", 1)
        jobs = [
            (self.family.family, self.begin, self.out, self.seed + 1 + 1000 * part, settings["clips"])
            for part in range(parts)
        ]
        context = multiprocessing.get_context("spawn")
        with context.Pool(torch.get_num_threads()) as pool:
            for part, _ in enumerate(pool.imap(_bank_part, jobs)):
                print(json.dumps({"stage": "bank", "part": part + 1}), flush=True)
        clips = [clip for job in jobs for clip in torch.load(_part_file(job), weights_only=False)]
        torch.save(clips, self.out / "bank.part")
        for job in jobs:
            _part_file(job).unlink()
        (self.out / "bank.part").rename(self.out / "bank.pt")

    def readers(self, stage: str) -> dict[str, Reader]:
        saved = torch.load(self.out / f"{stage}.pt")
        readers = {name: Reader(self.family, config) for name, config in self.configs.items()}
        for name, reader in readers.items():
            reader.load_state_dict(saved[name])
        return readers

    def joint(self) -> None:
        if self.begin == "shipped" or self.family.seeded:
            readers = self.readers("language")
        else:
            readers, saved = self._shallow(), torch.load(self.out / "language.pt")
            for name, reader in readers.items():
                reader.load_state_dict(saved[name])
            readers["target"] = grow(self.family, readers["target"], self.configs["target"])
        self._together(readers, torch.load(self.out / "bank.pt", weights_only=False), "joint")

    def polish(self) -> None:
        """Continue joint training with fewer clips of a single object, which are learned first."""
        clips = torch.load(self.out / "bank.pt", weights_only=False)
        clips = [clip for k, clip in enumerate(clips) if len(clip.scene.things) > 1 or k % 4 == 0]
        self._together(self.readers("joint"), clips, "polish")

    def _together(self, readers: dict[str, Reader], clips: list[Any], stage: str) -> None:
        for number, phase in enumerate(self.settings[stage]):
            settings, seed = dict(phase), self.seed + 100 * number + STAGES.index(stage)
            shown = {key: settings.pop(key) for key in ("part", "keep", "keep_late") if key in settings}
            batch = settings.pop("batch")
            fresh = Fresh(self.family, self.widths(), batch, seed + 50, easy=False)
            self._read(readers, Bank(clips, batch, seed, fresh=fresh, **shown), stage, number, settings)

    def export(self) -> None:
        """Write the pair of the last finished stage."""
        stage = next(stage for stage in ("polish", "joint", "language") if (self.out / f"{stage}.pt").exists())
        readers, seers = self.readers(stage), self.seers()
        for name, config in self.configs.items():
            self.family.assemble(config, readers[name], seers[name], self.tokenizer, self.out / "pair" / name)
        began: dict[str, Any] = {"family": self.family.family, "from": self.begin}
        if self.begin == "shipped":
            began["shipped"] = {name: digest(embedded_folder(PAIRS[self.family.family], name)) for name in self.configs}
        text = json.dumps(began | {"settings": self.settings}, indent=2) + "\n"
        (self.out / "pair" / "training.json").write_text(text, encoding="utf-8")

    def scores(self) -> None:
        pair = self.out / "pair"
        subprocess.run(
            [sys.executable, "-m", f"{__package__}.evaluate", "--pair", str(pair), "--json", str(pair / "scores.json")],
            check=True,
        )


def _part_file(job: tuple[str, str, Path, int, int]) -> Path:
    return job[2] / f"bank-{job[3]}.part"


def _bank_part(job: tuple[str, str, Path, int, int]) -> None:
    """Build one part of the bank in a separate process, and write it to a file."""
    family, begin, out, seed, clips = job
    torch.set_num_threads(1)
    run = Run(architecture(family), out, begin)
    torch.save(build_bank(run.family, run.seers(), clips, seed), _part_file(job))


STAGES = ("shipped", "language", "vision", "bank", "joint", "polish", "export", "scores")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--family", choices=FAMILIES, default=FAMILIES[0])
    parser.add_argument("--out", type=Path, required=True, help="folder for checkpoints and the finished pair")
    parser.add_argument("--from", dest="begin", choices=tuple(SETTINGS), default="shipped")
    parser.add_argument("--stage", choices=STAGES, help="run only this stage")
    parser.add_argument("--threads", type=int, default=1, help="threads of one stage")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(args.threads)
    settings = SETTINGS[args.begin][args.family]
    torch.manual_seed(settings["seed"])
    run = Run(architecture(args.family), args.out, args.begin)
    if args.stage:
        getattr(run, args.stage)()
        return
    command = [sys.executable, "-m", f"{__package__}.train", "--family", args.family, "--out", str(args.out)]
    command += ["--from", args.begin]
    first = ("shipped",) if args.begin == "shipped" else ("language", "vision")
    env = {**KEPT, **os.environ}
    running = [subprocess.Popen([*command, "--stage", one], env=env) for one in first if not _done(args.out, one)]
    if any([stage.wait() for stage in running]):
        raise SystemExit("a half failed")
    for stage in ("language", "bank", "joint", "polish", "export", "scores"):
        if stage in ("export", "scores") or (stage in settings and not _done(args.out, stage)):
            subprocess.run([*command, "--stage", stage, "--threads", str(args.threads)], check=True, env=env)


def _done(out: Path, stage: str) -> bool:
    return (out / f"{stage}.pt").exists()


if __name__ == "__main__":
    main()
