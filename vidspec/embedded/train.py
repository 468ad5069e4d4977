"""Train the built-in pair: ``python -m vidspec.embedded.train --out DIR`` runs every stage and writes the pair.

``language`` and ``vision`` are independent and run side by side, one core each; ``bank``, ``joint`` and ``polish``
need both.
``--stage`` runs one of them. Finished stages are not run again: delete their file in DIR to repeat one.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch

from vidspec.embedded.architecture import DRAFT, TARGET, build_tokenizer, config
from vidspec.embedded.stage_joint import assemble, build_bank, grow, train_joint
from vidspec.embedded.stage_language import Reader, train_language
from vidspec.embedded.stage_vision import Seer, train_vision

SHALLOW = TARGET.layers // 2
#: What the shipped pair was trained with; recorded beside the weights.
SETTINGS: dict[str, Any] = {
    "seed": 1,
    "language": {"steps": 3600, "batch": 4, "peak": 1e-3},
    "vision": {"steps": 4000, "scenes": 12, "peak": 1e-3},
    "bank": {"clips": 1500},
    "joint": {"steps": 800, "batch": 4, "peak": 6e-4},
    "polish": {"steps": 340, "batch": 4, "peak": 3e-4},
}


def _configs(out: Path) -> tuple[Any, dict[str, Any]]:
    """The run's tokenizer, made once and kept in ``out``, and the configs it decides the ids of."""
    from transformers import PreTrainedTokenizerFast

    folder = out / "tokenizer"
    if not folder.exists():
        build_tokenizer().save_pretrained(folder)
    tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)
    return tokenizer, {"target": config(TARGET, tokenizer), "draft": config(DRAFT, tokenizer)}


def language(out: Path) -> None:
    tokenizer, configs = _configs(out)
    shallow = {"target": config(TARGET, tokenizer, layers=SHALLOW), "draft": configs["draft"]}
    readers = {name: Reader(c.text_config) for name, c in shallow.items()}
    train_language(readers, tokenizer, out, seed=SETTINGS["seed"], **SETTINGS["language"])


def vision(out: Path) -> None:
    _, configs = _configs(out)
    seers = {name: Seer(c) for name, c in configs.items()}
    train_vision(seers, out, seed=SETTINGS["seed"], **SETTINGS["vision"])


def _seers(out: Path, configs: dict[str, Any]) -> dict[str, Seer]:
    saved = torch.load(out / "vision.pt")
    seers = {name: Seer(c).eval() for name, c in configs.items()}
    for name, seer in seers.items():
        seer.load_state_dict(saved[name])
    return seers


def bank(out: Path) -> None:
    _, configs = _configs(out)
    clips = build_bank(_seers(out, configs), seed=SETTINGS["seed"] + 1, **SETTINGS["bank"])
    torch.save(clips, out / "bank.part")
    (out / "bank.part").rename(out / "bank.pt")


def joint(out: Path) -> None:
    tokenizer, configs = _configs(out)
    saved = torch.load(out / "language.pt")
    shallow = Reader(config(TARGET, tokenizer, layers=SHALLOW).text_config)
    shallow.load_state_dict(saved["target"])
    draft = Reader(configs["draft"].text_config)
    draft.load_state_dict(saved["draft"])
    readers = {"target": grow(shallow, configs["target"].text_config), "draft": draft}
    clips = torch.load(out / "bank.pt", weights_only=False)
    train_joint(readers, clips, tokenizer, out, seed=SETTINGS["seed"] + 2, **SETTINGS["joint"])


def polish(out: Path) -> None:
    """More of the same, with fewer clips of a single object: they are mastered first."""
    tokenizer, configs = _configs(out)
    saved = torch.load(out / "joint.pt")
    readers = {name: Reader(c.text_config) for name, c in configs.items()}
    for name, reader in readers.items():
        reader.load_state_dict(saved[name])
    clips = torch.load(out / "bank.pt", weights_only=False)
    clips = [clip for k, clip in enumerate(clips) if len(clip.scene.things) > 1 or k % 4 == 0]
    settings = {"seed": SETTINGS["seed"] + 3, "stage": "polish", **SETTINGS["polish"]}
    train_joint(readers, clips, tokenizer, out, **settings)


def export(out: Path) -> None:
    tokenizer, configs = _configs(out)
    seers = _seers(out, configs)
    saved = torch.load(out / "polish.pt")
    for name, c in configs.items():
        reader = Reader(c.text_config)
        reader.load_state_dict(saved[name])
        assemble(c, reader, seers[name], tokenizer, out / "pair" / name)
    (out / "pair" / "training.json").write_text(json.dumps({"settings": SETTINGS}, indent=2) + "\n", encoding="utf-8")


_STAGES = {"language": language, "vision": vision, "bank": bank, "joint": joint, "polish": polish, "export": export}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder for checkpoints and the finished pair")
    parser.add_argument("--stage", choices=tuple(_STAGES), help="run only this stage")
    parser.add_argument("--threads", type=int, default=1, help="threads of one stage (joint: take all cores)")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(args.threads)
    torch.manual_seed(SETTINGS["seed"])
    if args.stage:
        _STAGES[args.stage](args.out)
        return
    _configs(args.out)
    command = [sys.executable, "-m", "vidspec.embedded.train", "--out", str(args.out), "--stage"]
    halves = [subprocess.Popen([*command, half]) for half in ("language", "vision") if not _done(args.out, half)]
    if any([half.wait() for half in halves]):
        raise SystemExit("a half failed")
    for stage in ("bank", "joint", "polish", "export"):
        if stage == "export" or not _done(args.out, stage):
            subprocess.run([*command, stage, "--threads", "2"], check=True)


def _done(out: Path, stage: str) -> bool:
    return (out / f"{stage}.pt").exists()


if __name__ == "__main__":
    main()
