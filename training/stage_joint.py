"""Training stage 2: the halves together. The language models learn to live with what the vision towers really see.

Towers are frozen, so their features are computed once for a bank of clips; wordings, prompts, clip lengths and dropped
visual tokens are drawn anew each time a clip is read.
"""

from __future__ import annotations

import json
import random
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import distributed as dist

from training.architecture import Architecture, Grid
from training.codes import shares
from training.stage_language import (
    FRAMES,
    FRAMES_WEIGHT,
    Learner,
    Reader,
    Shown,
    choose_visible,
    draw_prompt,
    encode,
    fact_ids,
    interval,
    learning_rate,
    read_loss,
    save,
    text_batch,
)
from training.stage_vision import pixels
from vidspec.embedded.captions import caption
from vidspec.embedded.world import Scene, draw_scene

__all__ = ["BankClip", "build_bank", "grow", "train_joint"]


@dataclass
class BankClip:
    """A scene, its visual tokens per model (tokens, hidden) in half precision, and each patch's things."""

    scene: Scene
    frames: int
    grid: Grid
    features: dict[str, torch.Tensor]
    share: np.ndarray


@torch.no_grad()
def build_bank(family: Architecture, seers: dict[str, Any], clips: int, seed: int) -> list[BankClip]:
    """Draw clips and look at them with both towers."""
    py, rng = random.Random(seed), np.random.default_rng(seed)
    bank = []
    for _ in range(clips):
        scene = draw_scene(py)
        frames = py.choices(FRAMES, FRAMES_WEIGHT)[0]
        (grid,) = py.choices(tuple(family.grids), tuple(family.grids.values()))
        times = np.linspace(0, 1, frames)
        shown = pixels(family, scene, times, grid, rng)
        with torch.autocast("cpu", torch.bfloat16):
            features = {name: seer.tokens(shown).flatten(0, 2).half() for name, seer in seers.items()}
        bank.append(BankClip(scene, frames, grid, features, shares(scene, times, grid).astype(np.float16)))
    return bank


def grow(family: Architecture, reader: Reader, config: Any) -> Reader:
    """A reader of ``config``'s depth that computes what ``reader`` does: each block is followed by an idle one.

    The idle blocks' output projections are zero.
    """
    deeper = Reader(family, config)
    if reader.newline is not None and deeper.newline is not None:
        deeper.newline.data.copy_(reader.newline.data)
    deeper.model.embed_tokens.load_state_dict(reader.model.embed_tokens.state_dict())
    deeper.model.norm.load_state_dict(reader.model.norm.state_dict())
    shallow, deep = len(reader.model.layers), len(deeper.model.layers)
    filled = {round((i + 1) * deep / shallow) - 1: i for i in range(shallow)}
    blocks: Any = deeper.model.layers
    for index, block in enumerate(blocks):
        if index in filled:
            block.load_state_dict(reader.model.layers[filled[index]].state_dict())
        else:
            torch.nn.init.zeros_(block.self_attn.o_proj.weight)
            torch.nn.init.zeros_(block.mlp.down_proj.weight)
    return deeper


def train_joint(
    family: Architecture,
    readers: dict[str, Reader],
    bank: list[BankClip],
    tokenizer: Any,
    out: Path,
    *,
    steps: int,
    batch: int,
    seed: int,
    peak: float,
    stage: str = "joint",
    of: int | None = None,
    floor: float = 0.05,
    keep: tuple[int, ...] = (128, 192, 256, 384, 512),
    keep_late: tuple[int, ...] = (192, 384, 1024, 1024),
) -> None:
    """Continue training the language models on the bank; writes ``<stage>.pt`` to ``out`` every 100 steps.

    In a process group every process reads samples of its own, of the same size, and gradients are averaged.
    Arguments as :func:`~training.stage_language.train_language` has them; ``keep`` are the numbers of visual
    tokens to choose from that a sample shows, ``keep_late`` those of the last 30% of the steps.
    """
    rank = dist.get_rank() if dist.is_initialized() else 0
    shape = random.Random(seed)
    py, rng = random.Random(seed + 1000 * rank), np.random.default_rng(seed + 1000 * rank)
    facts = fact_ids(tokenizer)
    learners = {name: Learner(name, reader, peak) for name, reader in readers.items()}
    groups: dict[tuple[int, Grid], list[BankClip]] = {}
    for clip in bank:
        groups.setdefault((clip.frames, clip.grid), []).append(clip)
    groups = {kind: clips for kind, clips in groups.items() if len(clips) >= batch}
    sizes = [len(clips) for clips in groups.values()]
    begun = time.monotonic()
    for step in range(steps):
        ((frames, grid),) = shape.choices(tuple(groups), sizes)
        clips = py.sample(groups[frames, grid], batch)
        count = min(shape.choice(keep if step < 0.7 * steps else keep_late), frames // grid.frames * grid.tokens)
        texts = [encode(family, tokenizer, draw_prompt(py), caption(clip.scene, py)) for clip in clips]
        shown = [
            Shown(
                choose_visible(rng, clip.share.astype(np.float32), grid, count, family.trailing),
                frames // grid.frames,
                grid,
                interval(py, frames, grid),
            )
            for clip in clips
        ]
        samples = text_batch(family, texts, shown)
        for name, learner in learners.items():
            reader: Any = learner.module
            visual = torch.stack(
                [
                    reader.visual(clip.features[name][torch.from_numpy(video.kept[:count])].float())
                    for clip, video in zip(clips, shown, strict=True)
                ]
            )
            loss, plain = read_loss(reader, samples, visual, facts)
            learner.learn(loss, learning_rate(step, of or steps, 1.0, warmup=min(50, steps // 10), floor=floor), plain)
        if rank:
            continue
        if (step + 1) % 25 == 0:
            row = {name: learner.mean(25) for name, learner in learners.items()}
            print(json.dumps({"stage": stage, "step": step + 1, "nats": row,
                              "s": round(time.monotonic() - begun, 1)}), flush=True)  # fmt: skip
        if (step + 1) % 100 == 0 or step + 1 == steps:
            save(learners, out / f"{stage}.pt")
