"""Small random InternVL models with the real layout: an own tower with a class token, a Qwen inside."""

from __future__ import annotations

import json
import zlib
from functools import cache
from pathlib import Path

import torch
import transformers
from transformers import GenerationConfig, PreTrainedTokenizerFast

from tests.models import checkpoints_qwen
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
    inner = checkpoints_qwen.tokenizer()._tokenizer
    words = PreTrainedTokenizerFast(
        tokenizer_object=type(inner).from_str(inner.to_str()),
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        clean_up_tokenization_spaces=False,
    )
    words.add_special_tokens({"additional_special_tokens": [*checkpoints_qwen.SPECIALS, *MARKS]})
    return words


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
    rng = torch.Generator()
    with torch.no_grad():
        for name, weight in made.named_parameters():
            rng.manual_seed(seed + zlib.crc32(name.encode()))
            values = torch.randn(weight.shape, generator=rng)
            if "norm" in name or "lambda" in name:
                weight.copy_(0.2 * values + (0 if name.endswith("bias") else 1))
            elif "embed_tokens" in name or "lm_head" in name:
                weight.copy_(0.7 * values)
            elif weight.dim() == 1:
                weight.copy_(0.3 * values)
            else:
                weight.copy_((1.5 if "q_proj" in name else 1.0) * values / weight[0].numel() ** 0.5)
            weight.add_(noise * weight.std() * torch.randn(weight.shape, generator=rng))
    made.generation_config = GenerationConfig(
        eos_token_id=words.eos_token_id, pad_token_id=words.pad_token_id, do_sample=False
    )
    return made


def adapter(**options: object):
    """The same model behind vidspec's interface."""
    made = families.get("internvl")("tiny", stock(**options), tokenizer(), PROCESSOR)
    made.prepare("auto", packed=False)
    return made


def save(folder: Path, **options: object) -> Path:
    """Write a checkpoint as the library lays it out."""
    stock(**options).save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    (folder / "video_preprocessor_config.json").write_text(json.dumps(PROCESSOR), encoding="utf-8")
    return folder
