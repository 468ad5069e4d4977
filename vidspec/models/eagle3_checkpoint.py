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
from vidspec.models.video_language_model import VideoLanguageModel

#: Projections of the attention, in order of use.
PROJECTIONS = ("q_proj", "k_proj", "v_proj", "o_proj")
#: Required tensors.
_REQUIRED_TENSORS = (
    "fc.weight",
    "norm.weight",
    "lm_head.weight",
    "midlayer.input_layernorm.weight",
    "midlayer.hidden_norm.weight",
    "midlayer.post_attention_layernorm.weight",
    *(f"midlayer.self_attn.{name}.weight" for name in PROJECTIONS),
    *(f"midlayer.mlp.{name}.weight" for name in ("gate_proj", "up_proj", "down_proj")),
)
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
#: Optional tensors.
_OPTIONAL_TENSORS = (
    *("embed_tokens.weight", "d2t", "t2d", "fc.bias"),
    *(f"midlayer.self_attn.{name}.bias" for name in PROJECTIONS),
)


def canonical_key(key: str) -> str:
    """Return a tensor's name in EAGLE's scheme: others prefix ``model.``, or name the block ``layers.0``."""
    key = key.removeprefix("model.")
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
    for key in ("rope_scaling", "rope_parameters"):
        rope = settings.get(key)
        if isinstance(rope, dict) and (rope.get("rope_type") or rope.get("type")) == "mrope":
            settings[key] = {**{k: v for k, v in rope.items() if k != "type"}, "rope_type": "default"}
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
    if absent := next((key for key in _REQUIRED_TENSORS if key not in tensors), None):
        raise ModelError(
            f"{name}: is not an EAGLE-3 head: {absent} is not in its files",
            hint="--draft takes the head of the target, in safetensors, with draft.kind: eagle3",
            kind="unreadable",
        )
    norms = ["input_norm.weight"] if getattr(config, "norm_before_fc", False) else []
    norms += [f"fc_norm.{at}.weight" for at in range(blocks)] if getattr(config, "fc_norm", False) else []
    if absent := next((key for key in norms if key not in tensors), None):
        raise ModelError(f"{name}: its config asks for {absent}, which is not in its files", kind="unreadable")
    unknown = sorted(set(tensors) - {*_REQUIRED_TENSORS, *_OPTIONAL_TENSORS, *norms})
    rope = getattr(config, "rope_parameters", None) or {}
    hidden, width = int(config.hidden_size), int(config.head_dim)
    for broken, problem in (
        (bool(unknown), f"has the tensor {unknown[0] if unknown else ''}, which is not known"),
        (int(config.num_hidden_layers) != 1, f"has {config.num_hidden_layers} blocks, and heads of one are read"),
        (config.hidden_act != "silu", f"has the activation {config.hidden_act}, and silu is what is computed"),
        (rope.get("rope_type", "default") not in STATIC_ROPE, f"has rotary positions of type {rope.get('rope_type')}"),
    ):
        if broken:
            raise ModelError(f"{name}: {problem}", kind="unreadable")
    sections = mrope_sections(rope)
    if sections is not None and sum(sections) != width // 2:
        raise ModelError(f"{name}: mrope_section {sections} divides {sum(sections)} of {width // 2} frequencies")
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
    _check_shapes(name, config, tensors)


def _check_shapes(name: str, config: StockConfig, tensors: Mapping[str, torch.Tensor]) -> None:
    """Refuse tensors whose shapes differ from the config, and an invalid ``d2t``.

    Raises:
        ModelError: the first difference.
    """
    hidden, width, known = int(config.hidden_size), int(config.head_dim), int(config.vocab_size)
    heads, kv_heads = int(config.num_attention_heads), int(config.num_key_value_heads)
    drafted = getattr(config, "draft_vocab_size", None) or known
    expected = {
        "fc.weight": (hidden, tensors["fc.weight"].shape[1]),
        "norm.weight": (hidden,),
        "lm_head.weight": (drafted, hidden),
        "midlayer.hidden_norm.weight": (hidden,),
        "midlayer.input_layernorm.weight": (hidden,),
        "midlayer.post_attention_layernorm.weight": (hidden,),
        "midlayer.self_attn.q_proj.weight": (heads * width, 2 * hidden),
        "midlayer.self_attn.k_proj.weight": (kv_heads * width, 2 * hidden),
        "midlayer.self_attn.v_proj.weight": (kv_heads * width, 2 * hidden),
        "midlayer.self_attn.o_proj.weight": (hidden, heads * width),
        "midlayer.mlp.gate_proj.weight": (int(config.intermediate_size), hidden),
        "midlayer.mlp.up_proj.weight": (int(config.intermediate_size), hidden),
        "midlayer.mlp.down_proj.weight": (hidden, int(config.intermediate_size)),
        "d2t": (drafted,),
        "input_norm.weight": (tensors["fc.weight"].shape[1],),
    }
    each = tensors["fc.weight"].shape[1] // max(1, sum(key.startswith("fc_norm.") for key in tensors))
    expected |= {key: (each,) for key in tensors if key.startswith("fc_norm.")}
    for key, shape in expected.items():
        if key in tensors and tuple(tensors[key].shape) != shape:
            actual = tuple(tensors[key].shape)
            raise ModelError(f"{name}: {key} has the shape {actual}, and its config says {shape}", kind="unreadable")
    if "d2t" in tensors:
        ids = torch.arange(drafted) + tensors["d2t"].long()
        if int(ids.min()) < 0 or int(ids.max()) >= known or len(ids.unique()) < drafted:
            raise ModelError(f"{name}: its d2t maps outside the vocabulary or to one id twice", kind="unreadable")
    elif drafted != known:
        raise ModelError(f"{name}: proposes {drafted} of {known} ids, and no d2t says which", kind="unreadable")
