"""Training stage 2: the halves together. The language models learn to live with what the vision towers really see.

Towers are frozen, so their features are computed once for a bank of clips; wordings, prompts and dropped visual tokens
are drawn anew each time a clip is read. The target grows to its full depth first: blocks whose output projections are
zero leave the function as it was.
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

from vidspec.embedded.captions import PROMPTS, caption
from vidspec.embedded.codes import Codes
from vidspec.embedded.stage_language import (
    TOKENS,
    Reader,
    choose_visible,
    encode,
    fact_ids,
    learning_rate,
    read_loss,
    text_batch,
)
from vidspec.embedded.stage_vision import Seer, pixels
from vidspec.embedded.world import Scene, draw_scene

__all__ = ["BankClip", "assemble", "build_bank", "grow", "train_joint"]

#: Frames per clip and how often; the default of the tool is 32, and 64 must work.
_FRAMES, _FRAMES_WEIGHT = (16, 24, 32, 48, 64), (1, 1, 5, 1, 2)


@dataclass
class BankClip:
    """A scene, its visual tokens per model (frames * TOKENS, hidden) in half precision, and each patch's things."""

    scene: Scene
    frames: int
    features: dict[str, torch.Tensor]
    share: np.ndarray


@torch.no_grad()
def build_bank(seers: dict[str, Seer], clips: int, seed: int) -> list[BankClip]:
    """Draw clips and look at them with both towers."""
    py, rng = random.Random(seed), np.random.default_rng(seed)
    bank = []
    for _ in range(clips):
        scene = draw_scene(py)
        frames = py.choices(_FRAMES, _FRAMES_WEIGHT)[0]
        times = np.linspace(0, 1, frames)
        shown = pixels(scene, times, rng)
        codes = Codes(next(iter(seers.values())).multi_modal_projector.linear_2.out_features)
        features = {name: codes.tokens(seer(shown)).half() for name, seer in seers.items()}
        bank.append(BankClip(scene, frames, features, codes.weights(scene, times).astype(np.float16)))
    return bank


def grow(reader: Reader, text_config: Any) -> Reader:
    """A reader of ``text_config``'s depth that computes what ``reader`` does: each block is followed by an idle one."""
    deeper = Reader(text_config)
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
) -> None:
    """Continue training the language models on the bank; writes ``<stage>.pt`` to ``out`` every 100 steps."""
    py, rng = random.Random(seed), np.random.default_rng(seed)
    facts = fact_ids(tokenizer)
    optimisers = {
        name: torch.optim.AdamW(reader.parameters(), lr=peak, betas=(0.9, 0.98), weight_decay=0.01)
        for name, reader in readers.items()
    }
    recent: dict[str, list[float]] = {name: [] for name in readers}
    begun = time.monotonic()
    for step in range(steps):
        frames = py.choices(_FRAMES, _FRAMES_WEIGHT)[0]
        clips = py.sample([clip for clip in bank if clip.frames == frames], batch)
        keep = py.choice((128, 192, 256, 384, 513)) if step < 0.7 * steps else py.choice((192, 384, 1024, 1024))
        keep = min(keep, frames * TOKENS)
        texts = [
            encode(tokenizer, PROMPTS[0] if py.random() < 0.6 else py.choice(PROMPTS), caption(clip.scene, py))
            for clip in clips
        ]
        kept = [choose_visible(rng, clip.share.astype(np.float32), keep) for clip in clips]
        samples = text_batch(texts, kept, [frames * TOKENS + 1] * batch)
        for name, reader in readers.items():
            visual = torch.stack(
                [
                    torch.cat([clip.features[name][torch.from_numpy(k[:-1])].float(), reader.newline[None]])
                    for clip, k in zip(clips, kept, strict=True)
                ]
            )
            loss, plain = read_loss(reader, samples, visual, facts)
            optimiser = optimisers[name]
            for group in optimiser.param_groups:
                group["lr"] = learning_rate(step, steps, peak * (2.0 if name == "draft" else 1.0), warmup=50)
            optimiser.zero_grad(set_to_none=True)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(reader.parameters(), 1.0)
            optimiser.step()
            recent[name].append(plain)
        if (step + 1) % 25 == 0:
            row = {name: round(sum(v[-25:]) / 25, 4) for name, v in recent.items()}
            print(json.dumps({"stage": stage, "step": step + 1, "nats": row,
                              "s": round(time.monotonic() - begun, 1)}), flush=True)  # fmt: skip
        if (step + 1) % 100 == 0 or step + 1 == steps:
            torch.save({name: reader.state_dict() for name, reader in readers.items()}, out / f"{stage}.part")
            (out / f"{stage}.part").rename(out / f"{stage}.pt")


def assemble(config: Any, reader: Reader, seer: Seer, tokenizer: Any, folder: Path) -> None:
    """Write one model as stock ``transformers`` loads it: half-precision safetensors, tokenizer, processor config."""
    from transformers import GenerationConfig, LlavaOnevisionForConditionalGeneration

    from vidspec.embedded.architecture import IMAGE_SIZE

    model = LlavaOnevisionForConditionalGeneration(config)
    model.model.language_model.load_state_dict(reader.model.state_dict())
    model.model.vision_tower.load_state_dict(seer.vision_tower.state_dict())
    model.model.multi_modal_projector.load_state_dict(seer.multi_modal_projector.state_dict())
    model.model.image_newline.data.copy_(reader.newline.data)
    model.tie_weights()
    model.generation_config = GenerationConfig(
        eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id, do_sample=False
    )
    model.half().save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    processor = {
        "video_processor_type": "LlavaOnevisionVideoProcessor",
        "size": {"height": IMAGE_SIZE, "width": IMAGE_SIZE},
        "image_mean": [0.5, 0.5, 0.5],
        "image_std": [0.5, 0.5, 0.5],
        "resample": 3,
        "rescale_factor": 1 / 255,
    }
    (folder / "video_preprocessor_config.json").write_text(json.dumps(processor, indent=2) + "\n", encoding="utf-8")
