"""Training stage 2: language models on features of the frozen vision towers.

Features are computed once for a bank of clips; wordings, prompts, clip lengths and dropped visual tokens are drawn
again each time a clip is read.
"""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch

from research.training.architecture import Architecture, Grid
from research.training.codes import shares
from research.training.stage_language import FRAMES, FRAMES_WEIGHT, Reader, Seen, Source
from research.training.stage_vision import pixels
from research.world.scene import draw_scene
from vidspec.models.placement import has_slow_half_precision


@torch.no_grad()
def build_bank(family: Architecture, seers: dict[str, Any], clips: int, seed: int) -> list[Seen]:
    """Draw clips and encode them with both towers."""
    py, rng = random.Random(seed), np.random.default_rng(seed)
    bank = []
    for _ in range(clips):
        scene = draw_scene(py)
        frames = py.choices(FRAMES, FRAMES_WEIGHT)[0]
        (grid,) = py.choices(tuple(family.grids), tuple(family.grids.values()))
        times = np.linspace(0, 1, frames)
        shown = pixels(family, scene, times, grid, rng)
        with torch.autocast("cpu", torch.bfloat16, enabled=not has_slow_half_precision()):
            features = {name: seer.tokens(shown).flatten(0, 2).half() for name, seer in seers.items()}
        bank.append(Seen(scene, frames, grid, features, shares(scene, times, grid).astype(np.float16)))
    return bank


def grow(family: Architecture, reader: Reader, config: Any) -> Reader:
    """Return a deeper reader that computes the same as ``reader``: each block is followed by an idle one.

    The idle blocks' output projections are zero.
    """
    deeper = Reader(family, config)
    if reader.newline is not None and deeper.newline is not None:
        deeper.newline.data.copy_(reader.newline.data)
    deeper.model.embed_tokens.load_state_dict(reader.model.embed_tokens.state_dict())
    if reader.hints is not None and deeper.hints is not None:
        deeper.hints.load_state_dict(reader.hints.state_dict())
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


class Bank:
    """Clips encoded by the towers, mixed with fresh scenes.

    Args:
        clips: of any sizes; a size of which there are fewer than ``batch`` is not shown.
        batch, seed: clips of a step; ``seed`` decides them.
        fresh: where other scenes come from, for ``part`` of the steps.
        keep: numbers of visual tokens to choose from that a sample shows; ``keep_late`` those of the last 30%.
    """

    def __init__(
        self,
        clips: list[Seen],
        batch: int,
        seed: int,
        *,
        fresh: Source | None = None,
        part: float = 0.0,
        keep: tuple[int, ...] = (128, 192, 256, 384, 512),
        keep_late: tuple[int, ...] = (192, 384, 1024, 1024),
    ) -> None:
        groups: dict[tuple[int, Grid], list[Seen]] = {}
        for clip in clips:
            groups.setdefault((clip.frames, clip.grid), []).append(clip)
        self.groups = {kind: found for kind, found in groups.items() if len(found) >= batch}
        self.batch, self.fresh, self.part, self.keep, self.keep_late = batch, fresh, part, keep, keep_late
        self.begin(seed)

    def begin(self, seed: int) -> None:
        self.shape, self.py = random.Random(seed), random.Random(seed)
        if self.fresh is not None:
            self.fresh.begin(seed + 50)

    def __call__(self, progress: float) -> tuple[list[Seen], int]:
        if self.fresh is not None and self.shape.random() < self.part:
            return self.fresh(progress)
        (kind,) = self.shape.choices(tuple(self.groups), [len(clips) for clips in self.groups.values()])
        count = self.shape.choice(self.keep if progress < 0.7 else self.keep_late)
        return self.py.sample(self.groups[kind], self.batch), count
