"""Small random Qwen3-Omni models with the real layout: experts, deepstack, sound convolved in pieces of a second."""

from __future__ import annotations

from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import PreTrainedTokenizerFast

from tests.checkpoints import qwen, qwen2_5_omni
from tests.checkpoints.recipe import draw_weight, draw_weights, extend_tokenizer, greedy_generation
from vidspec.models.base import Pixels
from vidspec.models.families.qwen3_omni_moe import Qwen3OmniMoe
from vidspec.models.families.qwen3_vl import CHAT_TEMPLATE

#: By the attributes that the library's processor reads of the published tokenizer.
NAMED = {
    "audio_token": "<|audio_pad|>",
    "audio_bos_token": "<|audio_start|>",
    "audio_eos_token": "<|audio_end|>",
    "vision_bos_token": "<|vision_start|>",
    "vision_eos_token": "<|vision_end|>",
    "image_token": "<|image_pad|>",
    "video_token": "<|video_pad|>",
}
PATCH, HIDDEN, EXPERTS, RATE = 16, 64, 4, 13
#: The published ``preprocessor_config.json``, but for the number of bins.
PROCESSOR: dict[str, Any] = {
    **qwen2_5_omni.PROCESSOR,
    "chunk_length": 300,
    "image_mean": [0.5] * 3,
    "image_std": [0.5] * 3,
    "patch_size": PATCH,
}


@cache
def tokenizer() -> PreTrainedTokenizerFast:
    marks = [token for token in NAMED.values() if "audio" in token]
    return extend_tokenizer(qwen.tokenizer(), marks, eos_token="<|im_end|>", pad_token="<|endoftext|>")


def config(padding: int = 7) -> transformers.Qwen3OmniMoeConfig:
    """Config of the whole model; talker and vocoder are the library's defaults, as nobody builds them."""
    words = tokenizer()
    ids = words.get_vocab()
    text = {
        "vocab_size": len(words) + padding,
        "hidden_size": HIDDEN,
        "intermediate_size": 96,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 24,
        "max_position_embeddings": 4096,
        "num_experts": EXPERTS,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 48,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [6, 3, 3], "interleaved": True},
    }
    vision = {"depth": 4, "hidden_size": 32, "intermediate_size": 48, "num_heads": 2, "patch_size": PATCH}
    vision |= {"out_hidden_size": HIDDEN, "num_position_embeddings": 36, "deepstack_visual_indexes": [0, 1, 2]}
    sound = {"num_mel_bins": 16, "encoder_layers": 2, "encoder_attention_heads": 2, "encoder_ffn_dim": 48}
    sound |= {"d_model": 32, "output_dim": HIDDEN, "n_window": 50, "n_window_infer": 200, "downsample_hidden_size": 8}
    thinker = {
        "text_config": text,
        "vision_config": vision,
        "audio_config": sound,
        **{f"{kind}_token_id": ids[f"<|{kind}_pad|>"] for kind in ("audio", "image", "video")},
        "audio_start_token_id": ids["<|audio_start|>"],
        "audio_end_token_id": ids["<|audio_end|>"],
        "vision_start_token_id": ids["<|vision_start|>"],
        "vision_end_token_id": ids["<|vision_end|>"],
        "position_id_per_seconds": RATE,
        "seconds_per_chunk": 2,
    }
    return transformers.Qwen3OmniMoeConfig(thinker_config=thinker)


def stock(seed: int = 0, noise: float = 0.0, padding: int = 7) -> Any:
    """A new thinker, untouched by vidspec; the same numbers at every call, ``noise`` away from those without any."""
    made = transformers.Qwen3OmniMoeThinkerForConditionalGeneration(config(padding).thinker_config).eval()
    made.set_attn_implementation("sdpa")
    draw_weights(made, partial(draw_weight, norms=("norm", "ln_")), noise=noise, seed=seed)
    made.generation_config = greedy_generation(tokenizer())
    return made


def adapter(seed: int = 0, decoder: str = "auto") -> Qwen3OmniMoe:
    """The same model behind vidspec's interface."""
    made = Qwen3OmniMoe("tiny", stock(seed), tokenizer(), {**PROCESSOR, "feature_extractor": PROCESSOR})
    made.prepare(decoder, packed=False)
    return made


def save(folder: Path, _kind: str, **options: Any) -> None:
    """Write a checkpoint as it is published: every expert by itself."""
    whole = config(options.get("padding", 7))
    weights = published(stock(**options))
    qwen2_5_omni.save_thinker(folder, weights, whole, tokenizer(), PROCESSOR, CHAT_TEMPLATE)


def published(model: Any) -> dict[str, torch.Tensor]:
    """The weights under the names of the published thinker."""
    found = {}
    for name, weight in qwen2_5_omni.published(model).items():
        experts, _, kind = name.partition("experts.")
        if not kind:
            found[name] = weight
            continue
        for number, matrix in enumerate(weight):
            halves = {"gate_up_proj": ("gate_proj", "up_proj")}.get(kind, (kind,))
            for half, rows in zip(halves, matrix.chunk(len(halves)), strict=True):
                found[f"{experts}experts.{number}.{half}.weight"] = rows.clone()
    return found


def pixels(model: Qwen3OmniMoe, **shape: Any) -> Pixels:
    """A clip of noise, as of Qwen2.5-Omni."""
    return qwen2_5_omni.pixels(model, unit=2 * PATCH, **shape)
