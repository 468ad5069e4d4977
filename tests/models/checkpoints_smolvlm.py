"""Small random SmolVLM models with the real layout: a tower without a class token, folded patches, Llama."""

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

IMAGE_SIZE, PATCH, SCALE = 24, 4, 2
#: Tokens per side of a frame.
SIDE = IMAGE_SIZE // PATCH // SCALE
MARKS = ("<fake_token_around_image>", "<global-img>", "<image>", "<end_of_utterance>")
PROCESSOR = {
    "size": {"longest_edge": 36},
    "max_image_size": {"longest_edge": IMAGE_SIZE},
    "resample": 1,
    "rescale_factor": 1 / 255,
    "image_mean": [0.5, 0.5, 0.5],
    "image_std": [0.5, 0.5, 0.5],
}
#: As the published ones: it knows images only, and the library's processor takes another for a video.
TEMPLATE = "{% for message in messages %}{{ message['content'][0]['type'] }}{% endfor %}"


@cache
def tokenizer() -> PreTrainedTokenizerFast:
    inner = checkpoints_qwen.tokenizer()._tokenizer
    words = PreTrainedTokenizerFast(
        tokenizer_object=type(inner).from_str(inner.to_str()),
        eos_token="<end_of_utterance>",
        pad_token="<|im_end|>",
        clean_up_tokenization_spaces=False,
    )
    words.add_special_tokens({"additional_special_tokens": [*checkpoints_qwen.SPECIALS, *MARKS]})
    return words


def stock(noise: float = 0.0, seed: int = 0) -> transformers.PreTrainedModel:
    """A new model, untouched by vidspec; the same numbers at every call."""
    words = tokenizer()
    text = {
        "model_type": "llama",
        "vocab_size": len(words) + 3,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 4096,
        "tie_word_embeddings": False,
        "bos_token_id": None,
        "eos_token_id": words.eos_token_id,
        "pad_token_id": words.pad_token_id,
    }
    vision = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = transformers.SmolVLMConfig(
        text_config=text,
        vision_config={**vision, "image_size": IMAGE_SIZE, "patch_size": PATCH},
        scale_factor=SCALE,
        image_token_id=words.convert_tokens_to_ids("<image>"),
        tie_word_embeddings=False,
    )
    made = transformers.SmolVLMForConditionalGeneration(config).eval()
    made.set_attn_implementation("sdpa")
    rng = torch.Generator()
    with torch.no_grad():
        for name, weight in made.named_parameters():
            rng.manual_seed(seed + zlib.crc32(name.encode()))
            values = torch.randn(weight.shape, generator=rng)
            if "norm" in name:
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


def adapter(**options: float):
    """The same model behind vidspec's interface."""
    made = families.get("smolvlm")("tiny", stock(**options), tokenizer(), PROCESSOR, TEMPLATE)
    made.prepare("auto", packed=False)
    return made


def save(folder: Path, **options: float) -> Path:
    """Write a checkpoint as the library lays it out."""
    stock(**options).save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    (folder / "preprocessor_config.json").write_text(json.dumps(PROCESSOR), encoding="utf-8")
    (folder / "chat_template.json").write_text(json.dumps({"chat_template": TEMPLATE}), encoding="utf-8")
    return folder
