"""Small random InternVL models with the real layout: an own tower with a class token, a Qwen inside."""

from __future__ import annotations

from functools import cache, partial
from pathlib import Path

import transformers
from transformers import PreTrainedTokenizerFast

from tests.checkpoints import qwen
from tests.checkpoints.recipe import draw_weight, draw_weights, extend_tokenizer, greedy_generation, save_files
from vidspec.models.base import families

IMAGE_SIZE, PATCH = 24, 4
#: Tokens per side of a frame.
SIDE = IMAGE_SIZE // PATCH // 2
MARKS = ("<img>", "</img>", "<IMG_CONTEXT>", "<video>")
PROCESSOR = {
    "size": {"height": IMAGE_SIZE, "width": IMAGE_SIZE},
    "resample": 3,
    "rescale_factor": 1 / 255,
    "image_mean": [0.485, 0.456, 0.406],
    "image_std": [0.229, 0.224, 0.225],
}


@cache
def tokenizer() -> PreTrainedTokenizerFast:
    specials = [*qwen.SPECIALS, *MARKS]
    return extend_tokenizer(qwen.tokenizer(), specials, eos_token="<|im_end|>", pad_token="<|endoftext|>")


def stock(noise: float = 0.0, language: str = "qwen3", seed: int = 0) -> transformers.PreTrainedModel:
    """A new model, untouched by vidspec; the same numbers at every call with a seed."""
    words = tokenizer()
    text = {
        "model_type": language,
        "vocab_size": len(words) + 3,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "max_position_embeddings": 4096,
        "tie_word_embeddings": False,
        "eos_token_id": words.eos_token_id,
        "pad_token_id": words.pad_token_id,
    }
    vision = {
        "image_size": [IMAGE_SIZE] * 2,
        "patch_size": [PATCH] * 2,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 3,
        "num_attention_heads": 2,
    }
    config = transformers.InternVLConfig(
        vision_config=vision,
        text_config=text,
        image_token_id=words.convert_tokens_to_ids("<IMG_CONTEXT>"),
        image_seq_length=SIDE**2,
        tie_word_embeddings=False,
    )
    made = transformers.InternVLForConditionalGeneration(config).eval()
    draw = partial(draw_weight, norms=("norm", "lambda"), peaked=("q_proj",))
    draw_weights(made, draw, noise=noise, seed=seed)
    made.generation_config = greedy_generation(words)
    return made


def adapter(**options: object):
    """The same model behind vidspec's interface."""
    made = families.get("internvl")("tiny", stock(**options), tokenizer(), PROCESSOR)
    made.prepare("auto", packed=False)
    return made


def save(folder: Path, _kind: str, *, max_shard_size: str | None = None, **options: object) -> None:
    """Write a checkpoint as the library lays it out."""
    files = {"video_preprocessor_config.json": PROCESSOR}
    save_files(folder, stock(**options), tokenizer(), files, max_shard_size=max_shard_size)
