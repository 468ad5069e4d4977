"""Small random LLaVA-OneVision checkpoints: a target, and drafts that are the target with noise in its weights.

Weights are so large that each token depends on all before it and the two best logits are far apart; the head gives
no token that is not ASCII, so that what is generated can be read.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import torch
from transformers import AutoTokenizer, GenerationConfig, LlavaOnevisionConfig, LlavaOnevisionForConditionalGeneration

from research.training.architecture import Size
from tests.checkpoints.recipe import save_files
from vidspec.models.loading import embedded_folder

IMAGE_SIZE, PATCH = 32, 8
#: Pooled features of a frame, per side.
CELLS = IMAGE_SIZE // PATCH // 2
SIZE = Size(48, 3, 4, 2, 96, 32, 1, 2, 64)


@cache
def tokenizer() -> Any:
    """The built-in pair's: one that is trained anew breaks ties differently every time."""
    return AutoTokenizer.from_pretrained(embedded_folder("embedded", "target"))


def config(image_size: int = IMAGE_SIZE, context: int = 8192) -> LlavaOnevisionConfig:
    ids = {token: int(tokenizer().convert_tokens_to_ids(token)) for token in ("<image>", "<video>")}
    return LlavaOnevisionConfig(
        vision_config={
            "model_type": "siglip_vision_model",
            "hidden_size": SIZE.vision_hidden,
            "intermediate_size": SIZE.vision_intermediate,
            "num_hidden_layers": SIZE.vision_layers,
            "num_attention_heads": SIZE.vision_heads,
            "image_size": image_size,
            "patch_size": PATCH,
            "vision_use_head": False,
        },
        text_config={
            "model_type": "qwen2",
            "vocab_size": len(tokenizer()) + 5,  # a padded head
            "hidden_size": SIZE.hidden,
            "intermediate_size": SIZE.intermediate,
            "num_hidden_layers": SIZE.layers,
            "num_attention_heads": SIZE.heads,
            "num_key_value_heads": SIZE.kv_heads,
            "max_position_embeddings": context,
            "tie_word_embeddings": False,
            "eos_token_id": tokenizer().eos_token_id,
            "pad_token_id": tokenizer().pad_token_id,
        },
        image_token_id=ids["<image>"],
        video_token_id=ids["<video>"],
        vision_feature_select_strategy="full",
        vision_feature_layer=-1,
        image_grid_pinpoints=[[image_size, image_size]],
        tie_word_embeddings=False,
    )


def save(
    folder: Path,
    _kind: str,
    *,
    noise: float = 0.0,
    seed: int = 0,
    image_size: int = IMAGE_SIZE,
    context: int = 8192,
) -> None:
    """Write a checkpoint; those of equal ``noise`` and ``seed`` are equal, and 0 is the target."""
    with torch.random.fork_rng():
        torch.manual_seed(0)  # for what is left as it is initialised
        model = LlavaOnevisionForConditionalGeneration(config(image_size, context))
    drawn, disturbed = torch.Generator().manual_seed(2 * seed + 1), torch.Generator().manual_seed(2 * seed + 2)
    readable = torch.tensor([tokenizer().decode([i]).isascii() for i in range(len(tokenizer()))])
    special = torch.tensor(tokenizer().all_special_ids)
    with torch.no_grad():
        for name, weight in sorted(model.named_parameters()):
            if weight.dim() < 2 or "position_embedding" in name:
                continue
            std = 1.0 if "embed_tokens" in name else 1.5 * weight[0].numel() ** -0.5
            std *= 0.7 if "self_attn" in name else 1.0
            weight.copy_(torch.randn(weight.shape, generator=drawn) * std)
            weight.add_(torch.randn(weight.shape, generator=disturbed) * std * noise)
        head = model.lm_head.weight
        head.mul_(4)
        eos = head[tokenizer().eos_token_id].clone()
        head[: len(readable)][~readable] = 0
        head[special] = 0
        head[tokenizer().eos_token_id] = eos
        head[len(readable) :].mul_(3)  # must never be emitted
    model.generation_config = GenerationConfig(eos_token_id=tokenizer().eos_token_id, do_sample=False)
    processor = {"size": {"height": image_size, "width": image_size}}
    save_files(folder, model, tokenizer(), {"video_preprocessor_config.json": processor})
