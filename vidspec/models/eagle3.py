"""EAGLE-3 heads (Li et al. 2025): loading, and the decoder block that drafts from the target's hidden states.

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
from functools import cached_property, partial
from typing import Any, Literal, cast

import torch
from torch.nn import functional as F

from vidspec.engine.attention import PassAttention
from vidspec.engine.block_kernels import rms_norm
from vidspec.engine.decoder import AttendFunction, sliding_windows
from vidspec.engine.head_states import StateInputs
from vidspec.engine.layouts import weight_matrices
from vidspec.engine.matrix import PlainMatrix
from vidspec.engine.rotary import STATIC_ROPE, RotaryPositions, RotaryTables, mrope_sections, rotate
from vidspec.engine.slab import Slab
from vidspec.errors import ModelError
from vidspec.models.base import StockConfig
from vidspec.models.checkpoint_config import checkpoint_errors, unread_keys_note
from vidspec.models.head import (
    PROJECTIONS,
    Head,
    HeadDecoder,
    block_shapes,
    check_tensors,
    other_device_reason,
    plain_rope,
    read_head,
    target_embedding,
)
from vidspec.models.placement import Placement
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


class Eagle3Decoder(HeadDecoder):
    """The head's block as a :class:`~vidspec.engine.decoder.Decoder`; its input is twice as wide as its output.

    Args:
        config: the head's config as a ``LlamaConfig``.
        tensors: by name, on their device and in their dtype.
        budget: bytes of the slab.
        packed: see :func:`~vidspec.engine.layouts.choose_packing`; None to multiply with the tensors as they are, which
            may be trained.
    """

    skips_rows = True

    def __init__(
        self,
        config: StockConfig,
        tensors: Mapping[str, torch.Tensor],
        budget: int | None = None,
        packed: bool | Literal["auto"] | None = None,
    ) -> None:
        from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

        self._dtype, self._budget = tensors["lm_head.weight"].dtype, budget
        self._tensors = {name: tensor for name, tensor in tensors.items() if "norm" in name}
        linears = [name.removesuffix(".weight") for name in tensors if name.endswith("weight") and "norm" not in name]
        weights = [(tensors[f"{name}.weight"], tensors.get(f"{name}.bias")) for name in linears]
        self.matrices = [PlainMatrix(*one) for one in weights] if packed is None else weight_matrices(weights, packed)
        self._linears = dict(zip(linears, self.matrices, strict=True))
        self.hidden, self._eps = int(config.hidden_size), float(config.rms_norm_eps)
        self.logit_width = self._linears["lm_head"].shape[0]
        self.pass_width = 3 * int(config.intermediate_size) + 10 * self.hidden
        self.heads, self.kv_heads = int(config.num_attention_heads), int(config.num_key_value_heads)
        self.width, self.device = int(config.head_dim), tensors["lm_head.weight"].device
        self.scaling, self.windows = self.width**-0.5, sliding_windows(config)
        #: True if the state of the next step is normed.
        self._norm_output = bool(getattr(config, "norm_output", False))
        #: True if the residual of the attention is the normed state.
        self._norm_first = bool(getattr(config, "norm_before_residual", False))
        rope = config.rope_parameters
        interleaved = bool(rope.get("mrope_interleaved"))
        like = tensors["norm.weight"]
        self._positions = RotaryPositions(LlamaRotaryEmbedding(config), rope, like, interleaved=interleaved)
        self.axes = self._positions.axes

    @cached_property
    def slab(self) -> Slab:
        return Slab(self.kv_heads, self.width, self._dtype, [self.device], self._budget)

    def rotation(self, positions: torch.Tensor) -> RotaryTables:
        return self._positions.tables(positions)

    def block(self, index: int, rows: torch.Tensor, rotation: RotaryTables, attention: AttendFunction) -> torch.Tensor:
        """Run the block: embeddings and states (R, 2 * hidden) to states (R, hidden)."""
        embedding, state = rows.split(self.hidden, dim=1)
        normed = self._rms_norm("midlayer.hidden_norm", state)
        both = torch.cat([self._rms_norm("midlayer.input_layernorm", embedding), normed], dim=1)
        count, sizes = len(rows), (self.heads, self.kv_heads, self.kv_heads)
        query, key, value = (
            self._linear(f"midlayer.self_attn.{name}", both).view(count, heads, self.width)
            for name, heads in zip(PROJECTIONS, sizes, strict=False)
        )
        entries = torch.stack([rotate(key, rotation), value], dim=1)
        attended, state = attention(index, rotate(query, rotation), entries), normed if self._norm_first else state
        if len(attended) < len(rows):
            state = cast(PassAttention, attention).needed(state)
            if not len(state):
                return state
        state = state + self._linear("midlayer.self_attn.o_proj", attended)
        inner = self._rms_norm("midlayer.post_attention_layernorm", state)
        gate = F.silu(self._linear("midlayer.mlp.gate_proj", inner))
        state = state + self._linear("midlayer.mlp.down_proj", gate * self._linear("midlayer.mlp.up_proj", inner))
        return self._rms_norm("norm", state) if self._norm_output else state

    def norm(self, rows: torch.Tensor) -> torch.Tensor:
        return rows if self._norm_output else self._rms_norm("norm", rows)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return self._linear("lm_head", hidden)

    def _linear(self, name: str, rows: torch.Tensor) -> torch.Tensor:
        return self._linears[name](rows)

    def _rms_norm(self, name: str, rows: torch.Tensor) -> torch.Tensor:
        return rms_norm(rows, self._tensors[f"{name}.weight"], self._eps)


class StateProjection:
    """Projects concatenated target states (n, blocks * target's hidden) to (n, hidden), normed first if the head asks.

    The decoder calls it; it does not refer to the decoder, which would keep both until a collection.
    """

    def __init__(self, tensors: Mapping[str, torch.Tensor], eps: float) -> None:
        self._weight, self._bias, self._eps = tensors["fc.weight"], tensors.get("fc.bias"), eps
        self._whole = tensors.get("input_norm.weight")
        count = sum(name.startswith("fc_norm.") for name in tensors)
        self._each = [tensors[f"fc_norm.{at}.weight"] for at in range(count)]

    def __call__(self, states: torch.Tensor) -> torch.Tensor:
        states = states.to(self._weight.device)
        if self._whole is not None:
            states = rms_norm(states, self._whole, self._eps)
        if self._each:
            parts = zip(states.chunk(len(self._each), dim=-1), self._each, strict=True)
            states = torch.cat([rms_norm(part, norm, self._eps) for part, norm in parts], dim=-1)
        return F.linear(states, self._weight, self._bias)


class Eagle3Head(Head):
    """A loaded EAGLE-3 head.

    Args:
        name: the name the user gave.
        config: its config as a ``LlamaConfig``.
        tensors: by name.
        target: the model whose states and, unless the head has its own, embeddings it reads.
        device: device of the head; its dtype is the target's.
    """

    decoder: Eagle3Decoder

    def __init__(
        self,
        name: str,
        config: StockConfig,
        tensors: dict[str, torch.Tensor],
        target: VideoLanguageModel,
        device: torch.device,
    ) -> None:
        self.name, self.target, self.device = name, target, device
        self.blocks = tap_blocks(name, config, target.layers)
        self.one_axis = hasattr(config, "speculators_model_type")
        embedding, _ = tensors.pop("embed_tokens.weight", None), tensors.pop("t2d", None)
        check_layout(name, config, tensors, embedding, target, len(self.blocks))
        ids = torch.arange(len(tensors["lm_head.weight"]))
        if "d2t" in tensors:
            ids = ids + tensors.pop("d2t").long()
        known = ids < target.vocabulary
        if not known.all():  # padding rows
            tensors["lm_head.weight"] = tensors["lm_head.weight"][known]
        self.tokens = ids[known]
        self.vocabulary = len(self.tokens)
        placed = {key: tensor.to(device, target.dtype).contiguous() for key, tensor in tensors.items()}
        self.decoder = decoder = Eagle3Decoder(config, placed, packed="auto")
        embed, eager = target_embedding(target, device), other_device_reason(target, device)
        if embedding is not None:
            embed, eager = partial(F.embedding, weight=embedding.to(device, target.dtype)), None
        ids, marked = self.tokens.to(device), int(self.tokens.max()) + 1
        self._project = StateProjection(placed, float(config.rms_norm_eps))
        decoder.bind(embed, StateInputs(decoder.hidden, self._project, ids, marked), eager)

    @torch.inference_mode()
    def joined(self, states: torch.Tensor) -> torch.Tensor:
        return self._project(states)


def load_eagle3(name: str, target: VideoLanguageModel, where: Placement) -> Eagle3Head:
    """Load a head for a target.

    Args:
        name: hub id or folder.
        target: the model it was trained for, of any family.
        where: its device; the dtype is the target's.

    Raises:
        ModelError: not found, not a head, of an unknown layout, or for another target.
    """
    given, tensors = read_head(name, "an EAGLE-3 head")
    weights = {canonical_key(key): tensor for key, tensor in tensors.items()}
    with checkpoint_errors(name):
        given.pop("quantization_config", None)  # the weights are plain numbers now
        notes = check_keys(name, given) if "fc.weight" in weights else ()  # else it is no head, which is said below
        config = head_config(given)
    head = Eagle3Head(name, config, weights, target, where.device)
    head.notes = notes
    return head
