"""New heads before training: their config, and their weights from the last blocks of a target.

A new head has the form of DSpark (arXiv 2607.05147) in the layout of ``speculators``: blocks of Qwen3's form, a Markov
head, confidences. Its blocks are sliding-window ones with a window as long as the text, in which rows of a draft see
none after them: a draft of a few tokens is a pass of a few rows.
"""

from __future__ import annotations

import os
import statistics
from typing import Any

import torch

from vidspec.engine.fused import FusedDecoder
from vidspec.engine.matrix import Matrix
from vidspec.errors import ModelError
from vidspec.models.video_language_model import VideoLanguageModel

__all__ = ["BLOCK"]

#: Tokens of a block, and most numbers of a token in the Markov head.
BLOCK, RANK = 16, 256
#: States of the target that a new head reads.
TAPS = 5
#: Share of the other tapped states in a new head's context beside the one that enters the copied blocks.
OTHERS = 0.1
_LINEARS = (
    ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    ("self_attn.o_proj",),
    ("mlp.gate_proj", "mlp.up_proj"),
    ("mlp.down_proj",),
)
_BLOCK_NORMS = ("input_layernorm", "post_attention_layernorm")
_HEAD_NORMS = ("self_attn.q_norm", "self_attn.k_norm")


def begin_head(
    target: VideoLanguageModel, words: int, blocks: int, seed: int
) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    """Return config and tensors of a head that computes with the target's last blocks over the states that enter them.

    Weights that a target's blocks lack, or have in another shape, are random, and norms ones.

    Args:
        target: the loaded target.
        words: rows of its output head.
        blocks: of the head.
        seed: of the random weights.

    Raises:
        ModelError: the target has fewer blocks.
    """
    config = new_config(target, words, blocks)
    layers = config["transformer_layer_config"]
    hidden, inner, width = layers["hidden_size"], layers["intermediate_size"], layers["head_dim"]
    heads, kv_heads, rank = layers["num_attention_heads"], layers["num_key_value_heads"], config["markov_rank"]
    taps = config["aux_hidden_state_layer_ids"]
    rng = torch.Generator().manual_seed(seed)

    def random(rows: int, columns: int) -> torch.Tensor:
        return torch.randn(rows, columns, generator=rng).mul_(columns**-0.5)

    made = {"fc.weight": OTHERS * random(hidden, len(taps) * hidden)}
    entering = taps.index(target.layers - blocks)
    made["fc.weight"][:, entering * hidden : (entering + 1) * hidden] += torch.eye(hidden)
    rows = (heads * width, kv_heads * width, kv_heads * width, hidden, inner, inner, hidden)
    columns = (hidden, hidden, hidden, heads * width, hidden, hidden, inner)
    shapes: dict[str, tuple[int, ...]] = dict(zip(sum(_LINEARS, ()), zip(rows, columns, strict=True), strict=True))
    shapes |= dict.fromkeys(_BLOCK_NORMS, (hidden,)) | dict.fromkeys(_HEAD_NORMS, (width,))
    for index in range(blocks):
        known = _block_weights(target, target.layers - blocks + index)
        for name, shape in shapes.items():
            begun = known.get(name)
            if begun is None or begun.shape != shape:
                begun = torch.ones(shape) if len(shape) == 1 else random(*shape)
            made[f"layers.{index}.{name}.weight"] = begun.cpu()
    norm = _norm_weight(target.language, "norm")
    made["norm.weight"] = torch.ones(hidden) if norm is None else norm.cpu()
    made["hidden_norm.weight"] = made["layers.0.input_layernorm.weight"].clone()
    made["markov_head.markov_w1.weight"] = torch.randn(words, rank, generator=rng)
    made["markov_head.markov_w2.weight"] = torch.zeros(words, rank)
    made["confidence_head.proj.weight"] = torch.zeros(1, hidden + rank)
    made["confidence_head.proj.bias"] = torch.zeros(1)
    return config, made


def new_config(target: VideoLanguageModel, words: int, blocks: int) -> dict[str, Any]:
    """Return the config of a new head in the layout of ``speculators``.

    Raises:
        ModelError: the target has fewer blocks.
    """
    language, layers = target.language.config, target.layers
    last_block = language.per_layer_config[-1] if getattr(language, "per_layer_config", None) else language
    if not 1 <= blocks < layers:
        raise ModelError(f"{target.name} has {layers} blocks, and its head cannot have {blocks}", hint="--blocks 1")
    hidden, heads = int(language.hidden_size), int(last_block.num_attention_heads)
    inner = getattr(last_block, "intermediate_size", None)
    longest = int(language.max_position_embeddings)
    rope = getattr(language, "rope_parameters", None) or {}
    thetas = [
        part["rope_theta"]
        for part in (rope, *(one for one in rope.values() if isinstance(one, dict)))
        if "rope_theta" in part
    ]
    last = layers - blocks  # numbers states by the block that reads them
    taps = sorted({round(min(2, last) + at * (last - min(2, last)) / (TAPS - 1)) for at in range(TAPS)})
    return {
        "architectures": ["DSparkSpeculator"],
        "speculators_model_type": "dspark",
        "speculators_version": "0.9.0",
        "speculators_config": {
            "algorithm": "dspark",
            "default_proposal_method": "greedy",
            "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": BLOCK}],
            "verifier": {
                "name_or_path": os.path.abspath(target.name) if os.path.isdir(target.name) else target.name,
                "architectures": [type(target.model).__name__],
            },
        },
        "transformer_layer_config": {
            "model_type": "qwen3",
            "hidden_act": "silu",
            "hidden_size": hidden,
            "intermediate_size": int(inner) if isinstance(inner, int) else 3 * hidden,
            "num_attention_heads": heads,
            "num_key_value_heads": int(last_block.num_key_value_heads),
            "head_dim": int(getattr(last_block, "head_dim", None) or hidden // heads),
            "num_hidden_layers": blocks,
            "attention_bias": False,
            "rms_norm_eps": float(getattr(language, "rms_norm_eps", 1e-6)),
            "rope_parameters": {"rope_type": "default", "rope_theta": thetas[0] if thetas else 1e6},
            "max_position_embeddings": longest,
            "vocab_size": words,
            "layer_types": ["sliding_attention"] * blocks,
            "sliding_window": longest,
            "use_sliding_window": True,
        },
        "draft_vocab_size": words,
        "block_size": BLOCK,
        "aux_hidden_state_layer_ids": taps,
        "mask_token_id": _mask_token(target, words),
        "sample_from_anchor": True,
        "sliding_window_non_causal": False,
        "markov_rank": max(16, min(RANK, hidden // 4)),
        "markov_head_type": "vanilla",
        "enable_confidence_head": True,
        "confidence_head_with_markov": True,
    }


def _mask_token(target: VideoLanguageModel, words: int) -> int:
    """Return an id for masked positions that no text has and whose embedding is not empty."""
    table: torch.Tensor = target.language.embed_tokens.weight.detach()
    usual = statistics.median(table[:256].float().norm(dim=-1).tolist())
    candidates: list[int] = [target.visual_id, words - 1, *sorted(target.eos)]
    fitting = [one for one in candidates if one < min(words, len(table))]
    return next((one for one in fitting if float(table[one].float().norm()) > 0.1 * usual), fitting[-1])


def dense_weight(layer: Any, like: torch.Tensor) -> torch.Tensor | None:
    """Return the weight (out, in) of a layer or matrix as numbers, on the device and in the dtype of ``like``."""
    matrix = getattr(layer, "matrix", layer)
    if isinstance(matrix, Matrix):
        return matrix.dense(like.dtype, like.device)
    weight: torch.Tensor | None = getattr(layer, "weight", None)
    if weight is None or weight.dim() != 2 or not weight.numel() or not weight.is_floating_point():
        return None
    return weight.detach().to(like)


def _block_weights(target: VideoLanguageModel, index: int) -> dict[str, torch.Tensor]:
    """Return weights of a block in float32 by the names that a head gives them, as far as the block has them."""
    layer, decoder, like = target.language.layers[index], target.decoder, target.language.embed_tokens.weight
    found: dict[str, torch.Tensor] = {}
    if isinstance(decoder, FusedDecoder):
        rows = [heads * decoder.width for heads in (decoder.heads, decoder.kv_heads, decoder.kv_heads)]
        for names, matrix in zip(_LINEARS, decoder.blocks[index].matrices, strict=True):
            weight = matrix.dense(like.dtype, like.device)
            parts = weight.split(rows if len(names) == 3 else len(weight) // len(names))
            found |= {name: part.float() for name, part in zip(names, parts, strict=True)}
    else:
        for name in sum(_LINEARS, ()):
            if (weight_of := dense_weight(_submodule(layer, name), like)) is not None:
                found[name] = weight_of.float()
    norms = ((name, _norm_weight(layer, name)) for name in (*_BLOCK_NORMS, *_HEAD_NORMS))
    return found | {name: weight for name, weight in norms if weight is not None}


def _submodule(module: Any, name: str) -> Any:
    for part in name.split("."):
        module = getattr(module, part, None)
    return module


@torch.no_grad()
def _norm_weight(module: Any, name: str) -> torch.Tensor | None:
    """Return what a norm multiplies with, whatever it stores: its output for ones; None if there is none."""
    norm = _submodule(module, name)
    weight = getattr(norm, "weight", None)
    if weight is None or weight.dim() != 1:
        return None
    made: torch.Tensor = norm(torch.ones(1, len(weight), dtype=weight.dtype, device=weight.device))[0].float()
    usable = bool(made.isfinite().all()) and float(made.abs().mean()) > 1e-3  # a norm that centres gives zeros
    return made if usable else None
