"""Train a built-in pair: ``python -m training.train --family llava_onevision --out DIR`` runs every stage.

``language`` and ``vision`` are independent and run side by side, one core each; ``bank``, ``joint`` and ``polish``
need both. The LLaVA-OneVision pair is trained from nothing. The Qwen2.5-VL pair's language models start from the
shipped LLaVA-OneVision pair's: its text is the same, only where visual tokens stand is new.
``--stage`` runs one stage. Finished stages are not run again: delete their file in DIR to repeat one.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch

from training.architecture import Architecture, architecture
from training.stage_joint import build_bank, grow, train_joint
from training.stage_language import Reader, train_language
from training.stage_vision import train_vision
from vidspec.models.loading import embedded_folder

#: Processes that train together, each with batches of its own.
PROCESSES = {("qwen2_5_vl", "joint"): 2, ("qwen2_5_vl", "polish"): 2}
#: Where the processes of a stage meet, on this machine only.
PORT = 29_571
FAMILIES = ("llava_onevision", "qwen2_5_vl")
#: What the shipped pairs were trained with; recorded beside the weights.
SETTINGS: dict[str, dict[str, Any]] = {
    "llava_onevision": {
        "seed": 1,
        "language": [{"steps": 3600, "batch": 4, "peak": 1e-3}],
        "vision": [{"steps": 4000, "scenes": 12, "peak": 1e-3}],
        "bank": {"clips": 1500},
        "joint": {"steps": 800, "batch": 4, "peak": 6e-4},
        "polish": [{"steps": 340, "batch": 4, "peak": 3e-4}],
    },
    "qwen2_5_vl": {
        "seed": 1,
        "language": [
            {"steps": 1000, "of": 1600, "batch": 4, "peak": 3.5e-4, "easy": False, "floor": 0.4},
            {"steps": 400, "of": 800, "batch": 4, "peak": 3e-4, "easy": False},
        ],
        "vision": [
            {"steps": 3800, "of": 5600, "scenes": 12, "peak": 1e-3},
            {"steps": 700, "scenes": 12, "peak": 3e-4, "floor": 0.02},
        ],
        "bank": {"clips": 200, "parts": 4},
        "joint": {
            "steps": 300,
            "batch": 4,
            "peak": 2.5e-4,
            "floor": 0.2,
            "keep": (96, 128, 192, 256),
            "keep_late": (192, 384),
        },
        "polish": [
            {"steps": 100, "of": 320, "batch": 4, "peak": 1.5e-4, "keep": (128, 192, 256)},
            {
                "steps": 190,
                "batch": 4,
                "peak": 1.2e-4,
                "floor": 0.02,
                "keep": (256, 384, 560),
                "keep_late": (560, 1024),
            },
        ],
    },
}


class Run:
    """One family's training in one folder."""

    def __init__(self, family: Architecture, out: Path):
        from transformers import PreTrainedTokenizerFast

        self.family, self.out, self.settings = family, out, SETTINGS[family.family]
        self.seed = self.settings["seed"]
        if not (out / "tokenizer").exists():
            family.tokenizer().save_pretrained(out / "tokenizer")
        self.tokenizer = PreTrainedTokenizerFast.from_pretrained(out / "tokenizer")
        self.configs = {name: family.config(size, self.tokenizer) for name, size in family.sizes.items()}

    def language(self) -> None:
        readers = self._seeded() if self.family.seeded else self._shallow()
        for number, phase in enumerate(self.settings["language"]):
            seed = self.seed + 10 * number
            train_language(self.family, readers, self.tokenizer, self.out, seed=seed, **phase)

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
        widths = {name: size.hidden for name, size in self.family.sizes.items()}
        for number, phase in enumerate(self.settings["vision"]):
            train_vision(self.family, seers, widths, self.out, seed=self.seed + 10 * number, **phase)

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
        jobs = [(self.family.family, self.out, self.seed + 1 + 1000 * part, settings["clips"]) for part in range(parts)]
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
        if self.family.seeded:
            readers = self.readers("language")
        else:
            readers, saved = self._shallow(), torch.load(self.out / "language.pt")
            for name, reader in readers.items():
                reader.load_state_dict(saved[name])
            readers["target"] = grow(self.family, readers["target"], self.configs["target"])
        clips = torch.load(self.out / "bank.pt", weights_only=False)
        train_joint(self.family, readers, clips, self.tokenizer, self.out, seed=self.seed + 2, **self.settings["joint"])

    def polish(self) -> None:
        """More of the same, with fewer clips of a single object: they are mastered first."""
        clips = torch.load(self.out / "bank.pt", weights_only=False)
        clips = [clip for k, clip in enumerate(clips) if len(clip.scene.things) > 1 or k % 4 == 0]
        readers = self.readers("joint")
        for number, phase in enumerate(self.settings["polish"]):
            settings = {"seed": self.seed + 3 + 10 * number, "stage": "polish", **phase}
            train_joint(self.family, readers, clips, self.tokenizer, self.out, **settings)

    def export(self) -> None:
        """Write the pair of the last stage that is done."""
        stage = next(stage for stage in ("polish", "joint", "language") if (self.out / f"{stage}.pt").exists())
        readers, seers = self.readers(stage), self.seers()
        for name, config in self.configs.items():
            self.family.assemble(config, readers[name], seers[name], self.tokenizer, self.out / "pair" / name)
        text = json.dumps({"family": self.family.family, "settings": self.settings}, indent=2) + "\n"
        (self.out / "pair" / "training.json").write_text(text, encoding="utf-8")


def _part_file(job: tuple[str, Path, int, int]) -> Path:
    return job[1] / f"bank-{job[2]}.part"


def _bank_part(job: tuple[str, Path, int, int]) -> None:
    """Build one part of the bank in a process of its own, and leave it in a file."""
    family, out, seed, clips = job
    torch.set_num_threads(1)
    run = Run(architecture(family), out)
    torch.save(build_bank(run.family, run.seers(), clips, seed), _part_file(job))


def _member(rank: int, size: int, family: str, out: Path, stage: str) -> None:
    """One of ``size`` processes of a stage: with a thread each they wait for each other once a step, not in a layer."""
    torch.set_num_threads(1)
    store = torch.distributed.TCPStore(  # type: ignore[attr-defined]
        "127.0.0.1", PORT, size, is_master=rank == 0
    )
    torch.distributed.init_process_group("gloo", store=store, rank=rank, world_size=size)
    torch.manual_seed(rank)
    getattr(Run(architecture(family), out), stage)()
    torch.distributed.destroy_process_group()


STAGES = ("language", "vision", "bank", "joint", "polish", "export")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--family", choices=FAMILIES, default=FAMILIES[0])
    parser.add_argument("--out", type=Path, required=True, help="folder for checkpoints and the finished pair")
    parser.add_argument("--stage", choices=STAGES, help="run only this stage")
    parser.add_argument("--threads", type=int, default=1, help="threads of one stage (joint: take all cores)")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(args.threads)
    family = architecture(args.family)
    torch.manual_seed(SETTINGS[family.family]["seed"])
    run = Run(family, args.out)
    members = PROCESSES.get((args.family, args.stage), 1)
    if members > 1:
        torch.multiprocessing.spawn(  # type: ignore[attr-defined, no-untyped-call]
            _member, (members, args.family, args.out, args.stage), members
        )
        return
    if args.stage:
        getattr(run, args.stage)()
        return
    command = [sys.executable, "-m", "training.train", "--family", args.family, "--out", str(args.out)]
    halves = [
        subprocess.Popen([*command, "--stage", half]) for half in ("language", "vision") if not _done(args.out, half)
    ]
    if any([half.wait() for half in halves]):
        raise SystemExit("a half failed")
    for stage in ("bank", "joint", "polish", "export"):
        if stage == "export" or not _done(args.out, stage):
            subprocess.run([*command, "--stage", stage, "--threads", "2"], check=True)


def _done(out: Path, stage: str) -> bool:
    return (out / f"{stage}.pt").exists()


if __name__ == "__main__":
    main()
