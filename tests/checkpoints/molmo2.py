"""Small random Molmo 2 models with the real layout: joined projections, an embedding in two parts, Qwen3's blocks."""

from __future__ import annotations

import json
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import PreTrainedTokenizerFast

from tests.checkpoints import qwen
from tests.checkpoints.recipe import draw_weight, draw_weights, extend_tokenizer, greedy_generation
from vidspec.models.base import families
from vidspec.models.families.molmo2 import CHAT_TEMPLATE, MARKS

PATCH, SIDE, HIDDEN, BEYOND = 4, 8, 64, 16
PROCESSOR: dict[str, Any] = {
    "size": {"height": SIDE * PATCH, "width": SIDE * PATCH},
    "patch_size": PATCH,
    "pooling_size": [3, 3],
    "resample": 2,
    "image_mean": [0.5] * 3,
    "image_std": [0.5] * 3,
}


@cache
def tokenizer() -> PreTrainedTokenizerFast:
    """Its BOS is its end token, as of the published ones."""
    roles = {"eos_token": "<|im_end|>", "bos_token": "<|im_end|>", "pad_token": "<|endoftext|>"}
    return extend_tokenizer(qwen.tokenizer(), [*MARKS, "<|image|>", "<|video|>"], **roles)


def config(**text: object) -> transformers.Molmo2Config:
    """The head ends before the tokens of pictures, which only the embedding has."""
    words = tokenizer()
    ids = words.get_vocab()
    shape = {
        "vocab_size": ids["<im_patch>"],
        "additional_vocab_size": BEYOND,
        "hidden_size": HIDDEN,
        "intermediate_size": 96,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 24,
        "max_position_embeddings": 4096,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e4},
    }
    vision = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 4, "num_attention_heads": 2}
    vision |= {"num_key_value_heads": 2, "head_dim": 16, "patch_size": PATCH, "image_size": [SIDE * PATCH] * 2}
    adapter = {"hidden_size": 32, "num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 16}
    adapter |= {"intermediate_size": 48, "text_hidden_size": HIDDEN, "vision_feature_layer": [3, 1]}
    return transformers.Molmo2Config(
        text_config={**shape, **text},
        vision_config=vision,
        adapter_config=adapter,
        image_patch_id=ids["<im_patch>"],
        image_start_token_id=ids["<im_start>"],
        image_end_token_id=ids["<im_end>"],
        low_res_image_start_token_id=ids["<low_res_im_start>"],
        frame_start_token_id=ids["<frame_start>"],
        frame_end_token_id=ids["<frame_end>"],
    )


def stock(noise: float = 0.0, seed: int = 0, **text: object) -> transformers.PreTrainedModel:
    """A new model, untouched by vidspec; the same numbers at every call with a seed."""
    made = transformers.Molmo2ForConditionalGeneration(config(**text)).eval()
    draw_weights(made, partial(draw_weight, norms=("norm",)), noise=noise, seed=seed)
    made.generation_config = greedy_generation(tokenizer())
    return made


def adapter(processor: dict[str, Any] = PROCESSOR, **options: object):
    """The same model behind vidspec's interface."""
    made = families.get("molmo2")("tiny", stock(**options), tokenizer(), processor)
    made.prepare("auto", packed=False)
    return made


def save(folder: Path, _kind: str, **options: Any) -> None:
    """Write a checkpoint under the names of the published weights."""
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    made = stock(**options)
    save_file(published(made.state_dict()), folder / "model.safetensors", {"format": "pt"})
    made.config.save_pretrained(folder)
    made.generation_config.save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    (folder / "preprocessor_config.json").write_text(json.dumps(PROCESSOR), encoding="utf-8")
    (folder / "chat_template.jinja").write_text(CHAT_TEMPLATE, encoding="utf-8")


def published(weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The weights under the names of the published models."""
    text, tower = "model.transformer", "model.vision_backbone"
    found = {"lm_head.weight": weights["lm_head.weight"]}
    language = "model.language_model"
    size = weights["lm_head.weight"].shape[0]
    table = weights[f"{language}.embed_tokens.weight"]
    found[f"{text}.wte.embedding"], found[f"{text}.wte.new_embedding"] = table[:size].clone(), table[size:].clone()
    found[f"{text}.ln_f.weight"] = weights[f"{language}.norm.weight"]
    names = {
        "input_layernorm": "attn_norm",
        "post_attention_layernorm": "ff_norm",
        "self_attn.o_proj": "self_attn.attn_out",
    }
    names |= {
        "mlp.down_proj": "mlp.ff_out",
        "self_attn.q_norm": "self_attn.q_norm",
        "self_attn.k_norm": "self_attn.k_norm",
    }
    for block in range(4):
        ours, theirs = f"{language}.layers.{block}", f"{text}.blocks.{block}"
        for name, their in names.items():
            found[f"{theirs}.{their}.weight"] = weights[f"{ours}.{name}.weight"]
        parts = [weights[f"{ours}.self_attn.{kind}_proj.weight"] for kind in "qkv"]
        found[f"{theirs}.self_attn.att_proj.weight"] = torch.cat(parts)
        halves = [weights[f"{ours}.mlp.{kind}_proj.weight"] for kind in ("up", "gate")]
        found[f"{theirs}.mlp.ff_proj.weight"] = torch.cat(halves)
    renamed = {"q_proj": "wq", "k_proj": "wk", "v_proj": "wv", "o_proj": "wo"}
    for name, weight in weights.items():
        if name.startswith("model.vision_tower."):
            rest = name.removeprefix("model.vision_tower.")
            for ours, theirs in (*renamed.items(), ("fc1", "w1"), ("fc2", "w2")):
                rest = rest.replace(f".{ours}.", f".{theirs}.")
            for ours, theirs in (("self_attn", "attention"), ("mlp", "feed_forward")):
                rest = rest.replace(f".{ours}.", f".{theirs}.")
            rest = rest.replace("layer_norm1", "attention_norm").replace("layer_norm2", "ffn_norm")
            found[f"{tower}.image_vit.{rest.replace('layers.', 'transformer.resblocks.')}"] = weight
        elif name.startswith("model.multi_modal_projector."):
            rest = name.removeprefix("model.multi_modal_projector.")
            for ours, theirs in (*renamed.items(), ("gate_proj", "w1"), ("down_proj", "w2"), ("up_proj", "w3")):
                rest = rest.replace(f".{ours}.", f".{theirs}.")
            found[f"{tower}.{rest}"] = weight
    return {name: weight.clone() for name, weight in found.items()}
