"""Training stage 1b: vision towers and projectors alone, by regression onto every patch's codes."""

from __future__ import annotations

import json
import random
import time
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

from research.training.architecture import Architecture, Grid
from research.training.codes import Codes, pool_shares, shares
from research.training.stage_language import FRAMES, FRAMES_WEIGHT, Learner, learning_rate, save
from research.world.drawing import frames
from research.world.scene import Scene, draw_scene
from vidspec.models.placement import has_slow_half_precision


def pixels(family: Architecture, scene: Scene, times: Any, grid: Grid, rng: np.random.Generator) -> torch.Tensor:
    """Normalised frames (T, 3, height, width) as a lossy video would show them: noise, gain, soft edges."""
    height, width = (2 * family.patch * cells for cells in (grid.rows, grid.columns))
    drawn = torch.from_numpy(frames(scene, times, height, width)).permute(0, 3, 1, 2).float()
    if rng.random() < 0.6:
        soft = torch.nn.functional.avg_pool2d(drawn, 3, stride=1, padding=1, count_include_pad=False)
        drawn = torch.lerp(drawn, soft, float(rng.uniform(0, 0.9)))
    drawn = drawn * float(rng.uniform(0.94, 1.05)) + float(rng.uniform(-5, 5))
    drawn = drawn + float(rng.uniform(0, 5)) * _noise(drawn.shape, rng)
    mean, std = (torch.tensor(values)[:, None, None] for values in (family.mean, family.std))
    return (drawn.clamp(0, 255) / 255 - mean) / std


@cache
def _noises() -> torch.Tensor:
    return torch.randn(1 << 22, generator=torch.Generator().manual_seed(0))


def _noise(shape: torch.Size, rng: np.random.Generator) -> torch.Tensor:
    """Return white noise, cut from a store: drawing new noise takes as long as drawing the frames."""
    count = shape.numel()
    if count > len(_noises()) // 2:
        return torch.randn(shape)
    start = int(rng.integers(len(_noises()) - count))
    return _noises()[start : start + count].view(shape)


def train_vision(
    family: Architecture,
    seers: dict[str, Any],
    widths: dict[str, int],
    out: Path,
    *,
    steps: int,
    scenes: int,
    seed: int,
    peak: float,
    of: int | None = None,
    floor: float = 0.05,
) -> None:
    """Train all towers on the same frames (two of each scene); writes ``vision.pt`` to ``out``.

    Args:
        family: of the towers.
        seers: by the names ``target`` and ``draft``.
        widths: of their language models.
        out: folder.
        steps, scenes, seed, peak: of the training; ``scenes`` a step, ``peak`` is the highest learning rate.
        of: steps of the learning-rate schedule, if more than are made.
        floor: the last learning rate, as a part of the peak.
    """
    py, rng = random.Random(seed), np.random.default_rng(seed)
    codes = {name: Codes(width) for name, width in widths.items()}
    learners = {name: Learner("vision", seer, peak * (1.5 if name == "draft" else 1.0)) for name, seer in seers.items()}
    begun = time.monotonic()
    for step in range(steps):
        (grid,) = py.choices(tuple(family.grids), tuple(family.grids.values()))
        drawn = [draw_scene(py) for _ in range(scenes)]
        times = [_two_times(py, rng, grid) for _ in drawn]
        shown = torch.cat([pixels(family, scene, t, grid, rng) for scene, t in zip(drawn, times, strict=True)])
        parts = [shares(scene, t, grid) for scene, t in zip(drawn, times, strict=True)]
        if family.pooled:
            objects = torch.cat([torch.from_numpy(pool_shares(part, grid).sum(0)) for part in parts])
        else:
            objects = torch.cat([torch.from_numpy(part.sum(0)) for part in parts])
        weight = 1.0 + 6.0 * objects
        for name, learner in learners.items():
            wanted = torch.cat(
                [
                    codes[name].tokens(scene, part, grid) if family.pooled else codes[name].patches(scene, part)
                    for scene, part in zip(drawn, parts, strict=True)
                ]
            )
            with torch.autocast("cpu", torch.bfloat16, enabled=not has_slow_half_precision()):
                seen = learner.module(shown)
            error = (seen.float() - wanted).square().sum(-1)
            loss = (error * weight).sum() / weight.sum()
            plain = (error * objects).sum().item() / max(1e-6, objects.sum().item())
            learner.learn(loss, learning_rate(step, of or steps, 1.0, warmup=min(200, steps // 10), floor=floor), plain)
        if (step + 1) % 50 == 0:
            row = {name: learner.mean(50) for name, learner in learners.items()}
            print(json.dumps({"stage": "vision", "step": step + 1, "object_error": row,
                              "s": round(time.monotonic() - begun, 1)}), flush=True)  # fmt: skip
        if (step + 1) % 200 == 0 or step + 1 == steps:
            save(learners, out / "vision.pt")


def _two_times(py: random.Random, rng: np.random.Generator, grid: Grid) -> np.ndarray:
    """Return two frames of a clip: any two if every frame is a step, else adjacent ones."""
    if grid.frames == 1:
        return np.sort(rng.uniform(0, 1, 2))
    gap = 1 / (py.choices(FRAMES, FRAMES_WEIGHT)[0] - 1)
    first = rng.uniform(0, 1 - gap)
    return np.array([first, first + gap])
