"""Training stage 1b: vision towers and projectors alone, by regression onto the codes of every patch."""

from __future__ import annotations

import json
import random
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from vidspec.embedded.architecture import CELLS, IMAGE_SIZE
from vidspec.embedded.codes import Codes
from vidspec.embedded.drawing import frames
from vidspec.embedded.stage_language import learning_rate
from vidspec.embedded.world import Scene, draw_scene

__all__ = ["Seer", "pixels", "train_vision"]


class Seer(torch.nn.Module):
    """A SigLIP tower and a LLaVA projector, as LlavaOnevisionModel holds them."""

    def __init__(self, config: Any):
        super().__init__()
        from transformers.models.llava_onevision.modeling_llava_onevision import LlavaOnevisionMultiModalProjector
        from transformers.models.siglip.modeling_siglip import SiglipVisionModel

        self.vision_tower = SiglipVisionModel(config.vision_config)
        self.multi_modal_projector = LlavaOnevisionMultiModalProjector(config)
        # Nothing normalises the last block's output: start with small residual branches, or deep towers learn slowly.
        with torch.no_grad():
            layers: Any = self.vision_tower.encoder.layers
            for layer in layers:
                layer.self_attn.out_proj.weight.mul_(0.3)
                layer.mlp.fc2.weight.mul_(0.3)

    def forward(self, frames: torch.Tensor) -> torch.Tensor:
        """Projected patch features (T, CELLS, CELLS, hidden) of pixels (T, 3, IMAGE_SIZE, IMAGE_SIZE)."""
        # LLaVA takes the last block's output as it is, without the tower's final norm.
        states = self.vision_tower(pixel_values=frames, output_hidden_states=True).hidden_states[-1]
        return self.multi_modal_projector(states).reshape(len(frames), CELLS, CELLS, -1)  # type: ignore[no-any-return]


def pixels(scene: Scene, times: Any, rng: np.random.Generator) -> torch.Tensor:
    """Normalised frames (T, 3, IMAGE_SIZE, IMAGE_SIZE) as a lossy video would show them: noise, gain, soft edges."""
    drawn = torch.from_numpy(frames(scene, times, IMAGE_SIZE, IMAGE_SIZE)).permute(0, 3, 1, 2).float()
    if rng.random() < 0.6:
        soft = torch.nn.functional.avg_pool2d(drawn, 3, stride=1, padding=1, count_include_pad=False)
        drawn = torch.lerp(drawn, soft, float(rng.uniform(0, 0.9)))
    drawn = drawn * float(rng.uniform(0.94, 1.05)) + float(rng.uniform(-5, 5))
    drawn = drawn + float(rng.uniform(0, 5)) * torch.randn_like(drawn)
    return drawn.clamp(0, 255) / 127.5 - 1.0


def train_vision(seers: dict[str, Seer], out: Path, *, steps: int, scenes: int, seed: int, peak: float) -> None:
    """Train all towers on the same frames (two of each scene); writes ``vision.pt`` to ``out``."""
    py, rng = random.Random(seed), np.random.default_rng(seed)
    hidden = {name: seer.multi_modal_projector.linear_2.out_features for name, seer in seers.items()}
    codes = {name: Codes(width) for name, width in hidden.items()}
    optimisers = {
        name: torch.optim.AdamW(seer.parameters(), lr=peak, betas=(0.9, 0.98), weight_decay=0.01)
        for name, seer in seers.items()
    }
    recent: dict[str, list[float]] = {name: [] for name in seers}
    begun = time.monotonic()
    for step in range(steps):
        drawn = [draw_scene(py) for _ in range(scenes)]
        times = [np.sort(rng.uniform(0, 1, 2)) for _ in drawn]
        shown = torch.cat([pixels(scene, t, rng) for scene, t in zip(drawn, times, strict=True)])
        shares = [codes["target"].weights(scene, t) for scene, t in zip(drawn, times, strict=True)]
        objects = torch.cat([torch.from_numpy(share.sum(0)) for share in shares])
        weight = 1.0 + 6.0 * objects
        for name, seer in seers.items():
            wanted = torch.cat([codes[name].patches(s, t, w) for s, t, w in zip(drawn, times, shares, strict=True)])
            error = (seer(shown) - wanted).square().sum(-1)
            loss = (error * weight).sum() / weight.sum()
            optimiser = optimisers[name]
            for group in optimiser.param_groups:
                group["lr"] = learning_rate(step, steps, peak * (1.5 if name == "draft" else 1.0), warmup=200)
            optimiser.zero_grad(set_to_none=True)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(seer.parameters(), 1.0)
            optimiser.step()
            recent[name].append((error * objects).sum().item() / max(1e-6, objects.sum().item()))
        if (step + 1) % 50 == 0:
            row = {name: round(sum(v[-50:]) / 50, 4) for name, v in recent.items()}
            print(json.dumps({"stage": "vision", "step": step + 1, "object_patch_error": row,
                              "s": round(time.monotonic() - begun, 1)}), flush=True)  # fmt: skip
        if (step + 1) % 200 == 0 or step + 1 == steps:
            torch.save({name: seer.state_dict() for name, seer in seers.items()}, out / "vision.part")
            (out / "vision.part").rename(out / "vision.pt")
