"""Small random VideoLLaMA 3 models with the real layout: rotated patches, a projector of two layers, Qwen2 inside."""

from __future__ import annotations

from pathlib import Path

import transformers

from tests.checkpoints import qwen
from tests.checkpoints.recipe import draw_weights, greedy_generation, save_files
from vidspec.models.base import families

PROCESSOR = {
    "size": {"shortest_edge": 4 * qwen.UNIT**2, "longest_edge": 100 * qwen.UNIT**2},
    "patch_size": qwen.PATCH,
    "temporal_patch_size": 1,
    "merge_size": 2,
    "resample": 3,
    "rescale_factor": 1 / 255,
    "image_mean": [0.5] * 3,
    "image_std": [0.5] * 3,
    "use_token_compression": True,
}


def stock(noise: float = 0.0, seed: int = 0) -> transformers.PreTrainedModel:
    """A new model, untouched by vidspec; the same numbers at every call with a seed."""
    words = qwen.tokenizer()
    ids = words.get_vocab()
    vision = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3, "num_attention_heads": 2}
    text = {
        "model_type": "qwen2",
        "vocab_size": len(words) + 3,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 4096,
        "tie_word_embeddings": False,
        "eos_token_id": words.eos_token_id,
        "pad_token_id": words.pad_token_id,
    }
    config = transformers.VideoLlama3Config(
        vision_config={**vision, "patch_size": qwen.PATCH},
        text_config=text,
        image_token_id=ids["<|image_pad|>"],
        video_token_id=ids["<|video_pad|>"],
        tie_word_embeddings=False,
    )
    made = transformers.VideoLlama3ForConditionalGeneration(config).eval()
    draw_weights(made, noise=noise, seed=seed)
    made.generation_config = greedy_generation(words)
    return made


def adapter(**options: object):
    """The same model behind vidspec's interface."""
    made = families.get("video_llama_3")("tiny", stock(**options), qwen.tokenizer(), PROCESSOR)
    made.prepare("auto", packed=False)
    return made


def save(folder: Path, _kind: str, *, max_shard_size: str | None = None, **options: object) -> None:
    """Write a checkpoint as the library lays it out."""
    files = {"video_preprocessor_config.json": PROCESSOR}
    save_files(folder, stock(**options), qwen.tokenizer(), files, max_shard_size=max_shard_size)
