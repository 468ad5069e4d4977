"""Small random GLM-4.1V, GLM-4.5V and GLM-4.6V models with the real layout: sandwich norms, half-rotated heads."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import torch
import transformers
from transformers import PreTrainedTokenizerFast

from tests.checkpoints import qwen
from tests.checkpoints.recipe import draw_weights, extend_tokenizer, greedy_generation, save_files
from vidspec.models.base import families

CLASSES = {"glm4v": "Glm4v", "glm46v": "Glm46V", "glm4v_moe": "Glm4vMoe"}
HIDDEN, PATCH = 64, 4
MARKS = (
    *("[gMASK]", "<sop>", "<|user|>", "<|assistant|>", "<|system|>", "<|image|>", "<|video|>"),
    *("<|begin_of_image|>", "<|end_of_image|>", "<|begin_of_video|>", "<|end_of_video|>", "/nothink"),
)


@cache
def tokenizer() -> PreTrainedTokenizerFast:
    return extend_tokenizer(qwen.tokenizer(), MARKS, eos_token="<|user|>", pad_token="<|endoftext|>")


def processor(family: str) -> dict[str, object]:
    """A video processor's config, keys as the published ones have them."""
    return {
        "size": {"shortest_edge": 4 * qwen.UNIT**2, "longest_edge": 100 * qwen.UNIT**2},
        "patch_size": PATCH,
        "temporal_patch_size": 2,
        "merge_size": 2,
        "resample": 3,
        "rescale_factor": 1 / 255,
        "image_mean": [0.48145466, 0.4578275, 0.40821073],
        "image_std": [0.26862954, 0.26130258, 0.27577711],
        "processor_class": "Glm46VProcessor" if family == "glm46v" else "Glm4vProcessor",
    }


def stock(family: str = "glm4v", noise: float = 0.0, seed: int = 0) -> transformers.PreTrainedModel:
    """A new model, untouched by vidspec; the same numbers at every call with a seed."""
    words = tokenizer()
    ids = words.get_vocab()
    vision = {"depth": 3, "hidden_size": 32, "num_heads": 2, "patch_size": PATCH, "image_size": 6 * PATCH}
    vision |= {"out_hidden_size": HIDDEN, "intermediate_size": 96, "spatial_merge_size": 2, "temporal_patch_size": 2}
    text = {
        "vocab_size": len(words) + 3,
        "hidden_size": HIDDEN,
        "intermediate_size": 96,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 4096,
        "eos_token_id": words.eos_token_id,
        "pad_token_id": words.pad_token_id,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 1e4,
            "partial_rotary_factor": 0.5,
            "mrope_section": [1, 1, 2],
        },
    }
    if family == "glm4v_moe":
        experts = {"n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 48, "n_shared_experts": 1}
        text |= {**experts, "first_k_dense_replace": 1}
    config = getattr(transformers, f"{CLASSES[family]}Config")(
        vision_config=vision,
        text_config=text,
        tie_word_embeddings=False,
        **{f"{kind}_token_id": ids[f"<|{kind}|>"] for kind in ("image", "video")},
        **{
            f"{kind}_{side}_token_id": ids[f"<|{mark}_of_{kind}|>"]
            for kind in ("image", "video")
            for side, mark in (("start", "begin"), ("end", "end"))
        },
    )
    made = getattr(transformers, f"{CLASSES[family]}ForConditionalGeneration")(config).eval()
    draw_weights(made, noise=noise, seed=seed)
    with torch.no_grad():
        for name, buffer in made.named_buffers():
            if name.endswith("e_score_correction_bias"):
                buffer.zero_()
    made.generation_config = greedy_generation(words)
    return made


def adapter(family: str = "glm4v", **options: object):
    """The same model behind vidspec's interface."""
    made = families.get(family)("tiny", stock(family, **options), tokenizer(), processor(family))
    made.prepare("auto", packed=False)
    return made


def save(folder: Path, family: str, *, max_shard_size: str | None = None, **options: object) -> None:
    """Write a checkpoint as the library lays it out."""
    files = {"video_preprocessor_config.json": processor(family)}
    save_files(folder, stock(family, **options), tokenizer(), files, max_shard_size=max_shard_size)
