"""Small random MiniCPM-V 4.6 models with the real layout: a merger after the tower's second block, Qwen3.5 inside."""

from __future__ import annotations

from functools import cache, partial
from pathlib import Path
from typing import Any

import transformers
from transformers import PreTrainedTokenizerFast

from tests.checkpoints import qwen
from tests.checkpoints.recipe import draw_weights, extend_tokenizer, greedy_generation, save_files
from vidspec.models.base import families

#: A view has about 32 x 32 pixels, a token 16 x 16.
PATCH, SIDE, MOST = 4, 32, 9
MARKS = ("<image>", "</image>", "<slice>", "</slice>", "<image_id>", "</image_id>")
PROCESSOR = {
    "patch_size": PATCH,
    "scale_resolution": SIDE,
    "max_slice_nums": MOST,
    "slice_mode": True,
    "downsample_mode": "16x",
    "use_image_id": True,
    "stack_frames": 1,
    "resample": 3,
    "rescale_factor": 1 / 255,
    "image_mean": [0.5] * 3,
    "image_std": [0.5] * 3,
}


@cache
def tokenizer() -> PreTrainedTokenizerFast:
    roles = {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"}
    return extend_tokenizer(qwen.tokenizer(), [*qwen.SPECIALS, *MARKS], **roles)


def config() -> transformers.PreTrainedConfig:
    words = tokenizer()
    text = qwen.config(qwen.QwenKind("qwen3_5", tied=False)).text_config.to_dict()
    text["vocab_size"] = len(words) + 3
    text["rope_parameters"] = {
        key: value for key, value in text["rope_parameters"].items() if not key.startswith("mrope")
    }
    vision = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3, "num_attention_heads": 2}
    return transformers.MiniCPMV4_6Config(
        text_config=text,
        vision_config={**vision, "patch_size": PATCH, "image_size": 10 * PATCH},
        insert_layer_id=1,
        image_token_id=words.convert_tokens_to_ids("<|image_pad|>"),
        video_token_id=words.convert_tokens_to_ids("<|video_pad|>"),
        tie_word_embeddings=False,
    )


def stock(noise: float = 0.0, seed: int = 0) -> transformers.PreTrainedModel:
    """A new model, untouched by vidspec; the same numbers at every call with a seed."""
    made = transformers.MiniCPMV4_6ForConditionalGeneration(config()).eval()
    made.set_attn_implementation("sdpa")
    draw_weights(made, partial(qwen.draw_qwen_weight, "qwen3_5"), noise=noise, seed=seed)
    made.generation_config = greedy_generation(tokenizer())
    return made


def adapter(processor: dict[str, object] | None = None, **options: Any):
    """The same model behind vidspec's interface."""
    given = {**PROCESSOR, **(processor or {})}
    made = families.get("minicpmv4_6")("tiny", stock(**options), tokenizer(), given)
    made.prepare("auto", packed=False)
    return made


def save(folder: Path, _kind: str, *, max_shard_size: str | None = None, **options: Any) -> None:
    """Write a checkpoint as the library lays it out."""
    files = {"processor_config.json": {"video_processor": PROCESSOR}}
    save_files(folder, stock(**options), tokenizer(), files, max_shard_size=max_shard_size)
