"""Small random Gemma 4 models with the real layout: two kinds of heads, shared caches, an input for each block."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import PreTrainedTokenizerFast

from tests.checkpoints import qwen
from tests.checkpoints.recipe import draw_weights, extend_tokenizer, greedy_generation, save_files
from vidspec.models.base import families

PATCH, POOL, MOST, WINDOW = 4, 2, 12, 16
MARKS = ("<bos>", "<|turn>", "<turn|>", "<|image>", "<image|>", "<|image|>", "<|video|>", "<|audio|>")
PROCESSOR = {"patch_size": PATCH, "pooling_kernel_size": POOL, "max_soft_tokens": MOST, "resample": 3}
#: E2B's pattern cut short: the last two keep nothing.
KINDS = ("sliding_attention", "sliding_attention", "full_attention", "sliding_attention", "full_attention")


@cache
def tokenizer() -> PreTrainedTokenizerFast:
    specials = [*qwen.SPECIALS, *MARKS]
    return extend_tokenizer(
        qwen.tokenizer(), specials, bos_token="<bos>", eos_token="<turn|>", pad_token="<|endoftext|>"
    )


def config(**text: Any) -> transformers.Gemma4Config:
    words = tokenizer()
    ids = {name: words.convert_tokens_to_ids(mark) for name, mark in zip(("boi", "eoi"), MARKS[3:5], strict=True)}
    ids |= {name: words.convert_tokens_to_ids(f"<|{name}|>") for name in ("image", "video", "audio")}
    return transformers.Gemma4Config(
        text_config={
            "vocab_size": len(words) + 3,
            "vocab_size_per_layer_input": len(words) + 3,
            "hidden_size": 64,
            "intermediate_size": 96,
            "num_hidden_layers": len(KINDS),
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 16,
            "global_head_dim": 32,
            "hidden_size_per_layer_input": 8,
            "num_kv_shared_layers": 2,
            "sliding_window": WINDOW,
            "layer_types": list(KINDS),
            "max_position_embeddings": 4096,
            "final_logit_softcapping": 30.0,
            "tie_word_embeddings": False,
            "bos_token_id": words.bos_token_id,
            "eos_token_id": words.eos_token_id,
            "pad_token_id": words.pad_token_id,
            **text,
        },
        vision_config={
            "hidden_size": 32,
            "intermediate_size": 48,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "num_key_value_heads": 2,
            "head_dim": 16,
            "patch_size": PATCH,
            "pooling_kernel_size": POOL,
            "position_embedding_size": 64,
        },
        audio_config=None,
        tie_word_embeddings=False,
        **{f"{name}_token_id": token for name, token in ids.items()},
    )


def unified_config(**text: Any) -> transformers.PreTrainedConfig:
    """A config of the models without a tower; the same language model without inputs for each block."""
    made = config(**text).to_dict()
    dropped = ("hidden_size_per_layer_input", "vocab_size_per_layer_input", "enable_moe_block", "num_experts")
    dropped += ("top_k_experts", "moe_intermediate_size", "model_type", "per_layer_config", "rope_parameters")
    own = {key: value for key, value in made["text_config"].items() if key not in dropped}
    return transformers.Gemma4UnifiedConfig(
        text_config={**own, "global_head_dim": 32, "use_bidirectional_attention": "vision"},
        vision_config={
            "patch_size": PATCH,
            "pooling_kernel_size": POOL,
            "mm_embed_dim": 32,
            "mm_posemb_size": 64,
            "output_proj_dims": 32,
        },
        audio_config=None,
        tie_word_embeddings=False,
        **{key: value for key, value in made.items() if key.endswith("_token_id")},
    )


def draw_weight(name: str, noise: torch.Tensor) -> torch.Tensor:
    if "norm" in name:
        return 1 + 0.2 * noise
    if "embed_tokens" in name:
        return 0.1 * noise
    return 0.3 * noise if noise.dim() == 1 else noise / noise[0].numel() ** 0.5


def stock(noise: float = 0.0, seed: int = 0, *, unified: bool = False, **text: Any) -> transformers.PreTrainedModel:
    """A new model, untouched by vidspec; the same numbers at every call."""
    words = tokenizer()
    if unified:
        made = transformers.Gemma4UnifiedForConditionalGeneration(unified_config(**text)).eval()
    else:
        made = transformers.Gemma4ForConditionalGeneration(config(**text)).eval()
    made.set_attn_implementation("sdpa")
    draw_weights(made, draw_weight, noise=noise, seed=seed)
    with torch.no_grad():
        made.lm_head.weight[words.convert_tokens_to_ids(list(MARKS[3:]))] = 0  # nobody says a placeholder
    made.generation_config = greedy_generation(words)
    return made


def adapter(**options: Any):
    """The same model behind vidspec's interface."""
    family = "gemma4_unified" if options.get("unified") else "gemma4"
    made = families.get(family)("tiny", stock(**options), tokenizer(), PROCESSOR)
    made.prepare("auto", packed=False)
    return made


def save(folder: Path, kind: str, *, max_shard_size: str | None = None, **options: Any) -> None:
    """Write a checkpoint as the library lays it out."""
    files = {"processor_config.json": {"video_processor": PROCESSOR}}
    save_files(
        folder, stock(unified=kind == "gemma4_unified", **options), tokenizer(), files, max_shard_size=max_shard_size
    )
