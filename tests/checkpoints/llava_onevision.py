"""Small random LLaVA-OneVision models with the real layout: SigLIP, Qwen2 with grouped queries, byte-level tokenizer.

Weights are far from the usual tiny initialisation: attention is peaked, so that a wrong mask or position shows, and
heads are scaled so that the two best logits lie far further apart than rounding errors.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import LlavaOnevisionConfig, LlavaOnevisionForConditionalGeneration

from research.training.architecture import SPECIALS, build_tokenizer
from tests.checkpoints.recipe import draw_weight, greedy_generation, save_files
from vidspec.models.base import Pixels, VisionOutput
from vidspec.models.families.llava_onevision import LlavaOnevision

#: Five patches per side, pooled to three: an odd number, as 384 / 14 = 27 is.
IMAGE_SIZE, PATCH, CELLS = 60, 12, 3
HIDDEN, LAYERS, HEADS, KV_HEADS = 64, 4, 4, 2
PROCESSOR = {
    "video_processor_type": "LlavaOnevisionVideoProcessor",
    "size": {"height": IMAGE_SIZE, "width": IMAGE_SIZE},
    "image_mean": [0.5, 0.5, 0.5],
    "image_std": [0.5, 0.5, 0.5],
    "resample": 3,
    "rescale_factor": 1 / 255,
}


@dataclass(frozen=True)
class OnevisionKind:
    """Variant of a checkpoint; ``padding`` rows of its head are beyond the tokenizer."""

    family: str = "llava_onevision"
    tied: bool = True
    padding: int = 0
    tokenizer_seed: int = 7
    seed: int = 0


TIED, UNTIED = OnevisionKind(), OnevisionKind(tied=False)
PADDED, FOREIGN = OnevisionKind(padding=57, seed=1), OnevisionKind(tokenizer_seed=8)


@functools.cache
def tokenizer(seed: int = 7):
    return build_tokenizer(samples=200, seed=seed)


def config(kind: OnevisionKind) -> LlavaOnevisionConfig:
    words = tokenizer(kind.tokenizer_seed)
    ids = {token: int(words.convert_tokens_to_ids(token)) for token in SPECIALS}
    ends = {"bos_token_id": None, "eos_token_id": ids["<|im_end|>"], "pad_token_id": ids["<|endoftext|>"]}
    return LlavaOnevisionConfig(
        vision_config={
            "model_type": "siglip_vision_model",
            "hidden_size": 32,
            "intermediate_size": 48,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "image_size": IMAGE_SIZE,
            "patch_size": PATCH,
            "vision_use_head": False,
        },
        text_config={
            "model_type": "qwen2",
            "vocab_size": len(words) + kind.padding,
            "hidden_size": HIDDEN,
            "intermediate_size": 96,
            "num_hidden_layers": LAYERS,
            "num_attention_heads": HEADS,
            "num_key_value_heads": KV_HEADS,
            "max_position_embeddings": 4096,
            "rope_theta": 10000.0,
            "tie_word_embeddings": kind.tied,
            **ends,
        },
        image_token_index=ids["<image>"],
        video_token_index=ids["<video>"],
        image_token_id=ids["<image>"],
        video_token_id=ids["<video>"],
        vision_feature_select_strategy="full",
        vision_feature_layer=-1,
        image_grid_pinpoints=[[IMAGE_SIZE, IMAGE_SIZE]],
        tie_word_embeddings=kind.tied,
        **ends,
    )


def stock(kind: OnevisionKind = TIED, attention: str = "sdpa") -> LlavaOnevisionForConditionalGeneration:
    """A new model of ``kind``, untouched by vidspec; the same numbers at every call."""
    model = LlavaOnevisionForConditionalGeneration(config(kind)).eval()
    model.set_attn_implementation(attention)
    rng = torch.Generator().manual_seed(kind.seed)
    with torch.no_grad():
        for name, weight in sorted(model.named_parameters()):
            weight.copy_(draw_weight(name, torch.randn(weight.shape, generator=rng)))
    model.generation_config = greedy_generation(tokenizer(kind.tokenizer_seed))
    return model


def adapter(kind: OnevisionKind = TIED, decoder: str = "auto") -> LlavaOnevision:
    """The same model behind vidspec's interface."""
    made = LlavaOnevision("tiny", stock(kind), tokenizer(kind.tokenizer_seed), PROCESSOR)
    made.prepare(decoder, packed=False)
    return made


def save(folder: Path, family: str, *, max_shard_size: str | None = None, **options: Any) -> None:
    """Write a checkpoint as the library lays it out."""
    kind = OnevisionKind(family, **options)
    files = {"video_preprocessor_config.json": PROCESSOR}
    save_files(folder, stock(kind), tokenizer(kind.tokenizer_seed), files, max_shard_size=max_shard_size)


def pixels(frames: int, seed: int = 0) -> Pixels:
    """(frames, 3, S, S) as the vision tower takes them."""
    values = torch.randn(frames, 3, IMAGE_SIZE, IMAGE_SIZE, generator=torch.Generator().manual_seed(seed))
    return as_pixels(values)


def as_pixels(values: torch.Tensor) -> Pixels:
    """Normalised frames (T, 3, S, S) as the vision tower takes them."""
    side = values.shape[-1] // PATCH
    return Pixels(values, (len(values), side, side), tuple(map(float, range(len(values)))))


def blank(frames: int) -> VisionOutput:
    """A video of so many frames in which nothing is to be seen."""
    count = frames * CELLS**2 + 1
    cell = torch.arange(count)
    newline = cell == count - 1
    return VisionOutput(
        torch.zeros(count, HIDDEN),
        (cell // CELLS**2).clamp(max=frames - 1),
        (cell % CELLS**2 // CELLS).masked_fill(newline, -1),
        (cell % CELLS).masked_fill(newline, -1),
        (frames, CELLS, CELLS),
        tuple(map(float, range(frames))),
    )


def causal(length: int) -> torch.Tensor:
    """(1, 1, length, length) additive."""
    return torch.full((length, length), float("-inf")).triu(1)[None, None]


def as_masks(mask: torch.Tensor) -> dict[str, torch.Tensor]:
    """A mask that the library takes as it is, whatever the positions."""
    return {"full_attention": mask, "sliding_attention": mask}
