"""Small random SmolVLM models with the real layout: a tower without a class token, folded patches, Llama."""

from __future__ import annotations

from functools import cache, partial
from pathlib import Path

import transformers
from transformers import PreTrainedTokenizerFast

from tests.checkpoints import qwen
from tests.checkpoints.recipe import draw_weight, draw_weights, extend_tokenizer, greedy_generation, save_files
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
    specials = [*qwen.SPECIALS, *MARKS]
    return extend_tokenizer(qwen.tokenizer(), specials, eos_token="<end_of_utterance>", pad_token="<|im_end|>")


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
    draw_weights(made, partial(draw_weight, peaked=("q_proj",)), noise=noise, seed=seed)
    made.generation_config = greedy_generation(words)
    return made


def adapter(**options: float):
    """The same model behind vidspec's interface."""
    made = families.get("smolvlm")("tiny", stock(**options), tokenizer(), PROCESSOR, TEMPLATE)
    made.prepare("auto", packed=False)
    return made


def save(folder: Path, _kind: str, *, max_shard_size: str | None = None, **options: float) -> None:
    """Write a checkpoint as the library lays it out."""
    files = {"preprocessor_config.json": PROCESSOR, "chat_template.json": {"chat_template": TEMPLATE}}
    save_files(folder, stock(**options), tokenizer(), files, max_shard_size=max_shard_size)
