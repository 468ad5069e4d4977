"""EAGLE-3 checkpoints: keys of a head's config, the blocks whose states it reads, and checks of its tensors.

The layout is that of published checkpoints (``LlamaForCausalLMEagle3``, and the ``speculators`` package's): config.json
with ``draft_vocab_size``, and in safetensors ``fc`` over the concatenated hidden states of several target blocks,
``midlayer.*`` (a Llama block whose queries, keys and values read the concatenation of an embedding and a state, each
after its own norm, ``input_layernorm`` and ``hidden_norm``), ``norm``, ``lm_head`` over the draft's vocabulary, ``d2t``
(offsets from the draft's ids to the target's), ``t2d`` (mask of the target's ids; unused), and optionally
``embed_tokens``; without it, the embeddings are the target's.

The states are the inputs of blocks 2, n // 2 and n - 3 of the target's n, unless the config names others:
``eagle_aux_hidden_state_layer_ids`` at its top level lists blocks whose input is read, as in vLLM; within
``eagle_config``, blocks whose output is read, as in SGLang.

EAGLE-3.1 and ``speculators`` add norms, read as vLLM and SGLang do: ``norm_before_fc`` an RMSNorm over the concatenated
states (``input_norm``), ``fc_norm`` one for each of them (``fc_norm.0`` and so on), both before ``fc``; with
``norm_output`` the state of the next step is the one after ``norm``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import torch

from vidspec.engine.rotary import STATIC_ROPE, mrope_sections
from vidspec.errors import ModelError
from vidspec.models.base import StockConfig
from vidspec.models.checkpoint_config import unread_keys_note
from vidspec.models.head import block_shapes, check_tensors, plain_rope
from vidspec.models.video_language_model import VideoLanguageModel

#: Keys of a head's own that are read, beside those of its block.
_OWN = (
    *("draft_vocab_size", "eagle_aux_hidden_state_layer_ids", "eagle_config", "fc_norm", "mlp_bias", "norm_before_fc"),
    *("norm_before_residual", "norm_output", "return_hidden_post_norm", "use_aux_norm", "transformer_layer_config"),
)
#: Keys that are read with one value only.
_FIXED = {
    "is_causal": True,
    "logit_scale": 1.0,
    "next_layer_regular": True,
    "parallel_draft_step": 1,
    "parallel_drafting": False,
    "speculators_model_type": "eagle3",
    "use_aux_hidden_state": True,
    "use_input_layernorm_in_first_layer": True,
    "use_last_layernorm": True,
    "use_mtp_layernorm": False,
}


def canonical_key(key: str) -> str:
    """Return a tensor's name in EAGLE's scheme: ``speculators`` names the block ``layers.0``."""
    return f"midlayer.{key.removeprefix('layers.0.')}" if key.startswith("layers.0.") else key


def check_keys(name: str, given: Mapping[str, Any]) -> tuple[str, ...]:
    """Refuse values of a head's config that change its computation and are not computed here.

    Returns:
        The note on keys that are not read; empty without any.

    Raises:
        ModelError: naming the first one.
    """
    parts = [given, given.get("transformer_layer_config") or {}, given.get("eagle_config") or {}]
    for part in parts:
        for key in part.keys() & _FIXED:
            if part[key] != _FIXED[key]:
                raise ModelError(f"{name}: its config says {key}: {json.dumps(part[key])[:80]}", kind="unreadable")
    return unread_keys_note(name, parts, {*_OWN, *_FIXED})


def head_config(given: dict[str, Any]) -> StockConfig:
    """Convert a head's config to a ``LlamaConfig``; the rope type ``mrope`` becomes ``default``."""
    import transformers

    inner, eagle = given.pop("transformer_layer_config", {}), given.get("eagle_config") or {}
    settings = {**inner, **{key: value for key, value in given.items() if key not in inner}}
    for key, other in (("norm_before_fc", ""), ("norm_output", "return_hidden_post_norm"), ("fc_norm", "use_aux_norm")):
        settings[key] = any(part.get(name) for part in (given, eagle) for name in (key, other))
    plain_rope(settings)
    for key in ("model_type", "architectures", "auto_map", "torch_dtype", "dtype"):
        settings.pop(key, None)
    return transformers.LlamaConfig(**settings)


def default_tap_blocks(layers: int) -> tuple[int, ...]:
    """Return the default target blocks whose input a head reads."""
    return 2, layers // 2, layers - 3


def tap_blocks(name: str, config: StockConfig, layers: int) -> tuple[int, ...]:
    """Return the target blocks whose input the head reads."""
    outputs = (getattr(config, "eagle_config", None) or {}).get("eagle_aux_hidden_state_layer_ids")
    inputs = getattr(config, "eagle_aux_hidden_state_layer_ids", None)
    if outputs:
        blocks = tuple(int(block) + 1 for block in outputs)
    else:
        blocks = tuple(map(int, inputs)) if inputs else default_tap_blocks(layers)
    if not all(0 <= block <= layers for block in blocks):
        raise ModelError(f"{name}: reads states of blocks {', '.join(map(str, blocks))} of a target that has {layers}")
    return blocks


def check_layout(
    name: str,
    config: StockConfig,
    tensors: Mapping[str, torch.Tensor],
    embedding: torch.Tensor | None,
    target: VideoLanguageModel,
    blocks: int,
) -> None:
    """Refuse a checkpoint that is not a head, has another layout, or was trained for another target.

    Raises:
        ModelError: the first difference.
    """
    if "fc.weight" not in tensors:
        raise ModelError(
            f"{name}: is not an EAGLE-3 head: fc.weight is not in its files",
            hint="--draft takes the head of the target, in safetensors, with draft.kind: eagle3",
            kind="unreadable",
        )
    rope = getattr(config, "rope_parameters", None) or {}
    hidden, half = int(config.hidden_size), int(config.head_dim) // 2
    for broken, problem in (
        (int(config.num_hidden_layers) != 1, f"has {config.num_hidden_layers} blocks, and heads of one are read"),
        (config.hidden_act != "silu", f"has the activation {config.hidden_act}, and silu is what is computed"),
        (rope.get("rope_type", "default") not in STATIC_ROPE, f"has rotary positions of type {rope.get('rope_type')}"),
    ):
        if broken:
            raise ModelError(f"{name}: {problem}", kind="unreadable")
    sections = mrope_sections(rope)
    if sections is not None and sum(sections) != half:
        raise ModelError(f"{name}: mrope_section {sections} divides {sum(sections)} of {half} frequencies")
    target_hidden = int(target.embed(torch.zeros(1, dtype=torch.long, device=target.device)).shape[-1])
    joined = tensors["fc.weight"].shape[1]
    if joined != blocks * target_hidden:
        raise ModelError(
            f"{name}: joins {joined} numbers, and {blocks} states of {target.name} have {blocks * target_hidden}",
            hint="name the head that was trained for this target",
        )
    if embedding is None and hidden != target_hidden:
        raise ModelError(
            f"{name}: is {hidden} wide, has no embeddings of its own, and {target.name}'s are {target_hidden} wide"
        )
    known = int(config.vocab_size)
    if known < target.vocabulary or (embedding is not None and len(embedding) < target.vocabulary):
        raise ModelError(
            f"{name}: was made for a vocabulary of {known}, and {target.name} has {target.vocabulary} ids",
            hint="name the head that was trained for this target",
            kind="tokenizer",
        )
    expected = _shapes(config, joined, blocks)
    check_tensors(name, tensors, expected, {"d2t", *(key for key in expected if key.endswith("bias"))})
    _check_draft_ids(name, tensors, len(tensors["lm_head.weight"]), known)


def _shapes(config: StockConfig, joined: int, blocks: int) -> dict[str, tuple[int, ...]]:
    """Return the shapes of a head's tensors by name, the optional ones included; states are ``joined`` wide."""
    hidden, norms = int(config.hidden_size), ("input_layernorm", "hidden_norm", "post_attention_layernorm")
    drafted = getattr(config, "draft_vocab_size", None) or int(config.vocab_size)
    shapes = block_shapes(config, "midlayer", 2 * hidden, bias=True)
    shapes |= {
        "fc.weight": (hidden, joined),
        "fc.bias": (hidden,),
        "lm_head.weight": (drafted, hidden),
        "d2t": (drafted,),
    }
    shapes |= {f"{norm}.weight": (hidden,) for norm in ("norm", *(f"midlayer.{norm}" for norm in norms))}
    if getattr(config, "norm_before_fc", False):
        shapes["input_norm.weight"] = (joined,)
    if getattr(config, "fc_norm", False):
        shapes |= {f"fc_norm.{at}.weight": (joined // blocks,) for at in range(blocks)}
    return shapes


def _check_draft_ids(name: str, tensors: Mapping[str, torch.Tensor], drafted: int, known: int) -> None:
    """Refuse a ``d2t`` that maps ``drafted`` ids outside ``known`` ones, or that is missing.

    Raises:
        ModelError: it does.
    """
    if "d2t" in tensors:
        ids = torch.arange(drafted) + tensors["d2t"].long()
        if int(ids.min()) < 0 or int(ids.max()) >= known or len(ids.unique()) < drafted:
            raise ModelError(f"{name}: its d2t maps outside the vocabulary or to one id twice", kind="unreadable")
    elif drafted != known:
        raise ModelError(f"{name}: proposes {drafted} of {known} ids, and no d2t says which", kind="unreadable")
