"""EAGLE-3 heads (Li et al. 2025): loading, checks and the decoder block that drafts from the target's hidden states.

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
``norm_output`` the state of the next step is the one after ``norm``. A config with a key that is neither read nor known
to change nothing is refused.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cached_property, partial
from typing import Any, Literal

import torch
from torch.nn import functional as F

from vidspec.engine.decoder import AttendFunction, sliding_windows
from vidspec.engine.head_states import StateInputs
from vidspec.engine.layouts import weight_matrices
from vidspec.engine.matrix import PlainMatrix
from vidspec.engine.rotary import STATIC_ROPE, RotaryPositions, RotaryTables, mrope_sections, rotate
from vidspec.engine.slab import Slab
from vidspec.errors import ModelError
from vidspec.models.base import StockConfig
from vidspec.models.checkpoint_config import check_kernels, load_error, refuse_assistant, weight_source
from vidspec.models.checkpoint_tensors import read_tensors
from vidspec.models.head import Head, HeadDecoder, other_device_reason, target_embedding
from vidspec.models.hub import retries_offline
from vidspec.models.placement import Placement
from vidspec.models.video_language_model import VideoLanguageModel
from vidspec.models.weight_files import weight_file

__all__ = [
    "PROJECTIONS",
    "Eagle3Decoder",
    "Eagle3Head",
    "StateProjection",
    "check_keys",
    "default_tap_blocks",
    "head_config",
    "load_eagle3",
]

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
#: Keys of a config that are read.
_READ = frozenset(
    [
        "attention_bias",
        "draft_vocab_size",
        "eagle_aux_hidden_state_layer_ids",
        "eagle_config",
        "fc_norm",
        "head_dim",
        "hidden_act",
        "hidden_size",
        "intermediate_size",
        "layer_types",
        "max_window_layers",
        "mlp_bias",
        "norm_before_fc",
        "norm_before_residual",
        "norm_output",
        "num_attention_heads",
        "num_hidden_layers",
        "num_key_value_heads",
        "return_hidden_post_norm",
        "rms_norm_eps",
        "rope_parameters",
        "rope_scaling",
        "rope_theta",
        "sliding_window",
        "transformer_layer_config",
        "use_aux_norm",
        "use_sliding_window",
        "vocab_size",
    ]
)
#: Keys that change nothing that is computed here: shapes that the tensors have, ids of the target, training.
_IRRELEVANT = frozenset(
    [
        "_name_or_path",
        "architectures",
        "attention_dropout",
        "auto_map",
        "bos_token_id",
        "dtype",
        "embed_requires_grad",
        "eos_token_id",
        "image_token_id",
        "initializer_range",
        "is_decoder",
        "max_position_embeddings",
        "modal_type",
        "model_type",
        "num_aux_hidden_states",
        "pad_token_id",
        "pretraining_tp",
        "speculators_config",
        "speculators_version",
        "target_hidden_size",
        "target_model_type",
        "tie_word_embeddings",
        "torch_dtype",
        "transformers_version",
        "use_cache",
        "video_token_id",
        "vision_end_token_id",
        "vision_start_token_id",
    ]
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


class Eagle3Decoder(HeadDecoder):
    """The head's block as a :class:`~vidspec.engine.decoder.Decoder`; its input is twice as wide as its output.

    Args:
        config: the head's config as a ``LlamaConfig``.
        tensors: by name, on their device and in their dtype.
        budget: bytes of the slab.
        packed: see :func:`~vidspec.engine.layouts.choose_packing`; None to multiply with the tensors as they are, which
            may be trained.
    """

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
        attended = attention(index, rotate(query, rotation), entries)
        state = (normed if self._norm_first else state) + self._linear("midlayer.self_attn.o_proj", attended)
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
        return F.rms_norm(rows, rows.shape[-1:], self._tensors[f"{name}.weight"], self._eps)


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
            states = F.rms_norm(states, states.shape[-1:], self._whole, self._eps)
        if self._each:
            parts = zip(states.chunk(len(self._each), dim=-1), self._each, strict=True)
            states = torch.cat([F.rms_norm(part, part.shape[-1:], norm, self._eps) for part, norm in parts], dim=-1)
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
        self.blocks = _tap_blocks(name, config, target.layers)
        embedding = tensors.pop("embed_tokens.weight", None)
        _check_layout(name, config, tensors, embedding, target, len(self.blocks))
        ids = torch.arange(len(tensors["lm_head.weight"]))
        if "d2t" in tensors:
            ids = ids + tensors.pop("d2t").long()
        tensors.pop("t2d", None)
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


@retries_offline
def load_eagle3(name: str, target: VideoLanguageModel, where: Placement) -> Eagle3Head:
    """Load a head for a target, without running code or reading pickles of its repository.

    Args:
        name: hub id or folder.
        target: the model it was trained for, of any family.
        where: its device; the dtype is the target's.

    Raises:
        ModelError: not found, not a head, of an unknown layout, or for another target.
    """
    source = weight_source(name, "an EAGLE-3 head")
    try:
        check_kernels(name, source)
        refuse_assistant(name, source)
        given = json.loads(weight_file(source, "config.json").read_text(encoding="utf-8"))
        weights = {_canonical_key(key): tensor for key, tensor in read_tensors(name, source).items()}
        if "fc.weight" in weights:  # else it is no head, which is said below
            check_keys(name, given)
        config = head_config(given)
    except ModelError:
        raise
    except Exception as error:  # from the hub, broken JSON or safetensors, or values of the config
        raise load_error(name, error) from error
    return Eagle3Head(name, config, weights, target, where.device)


def _canonical_key(key: str) -> str:
    """Return a tensor's name in EAGLE's scheme: others prefix ``model.``, or name the block ``layers.0``."""
    key = key.removeprefix("model.")
    return f"midlayer.{key.removeprefix('layers.0.')}" if key.startswith("layers.0.") else key


def check_keys(name: str, given: Mapping[str, Any]) -> None:
    """Refuse a head's config with a key whose effect is not known here.

    Raises:
        ModelError: naming the first one.
    """
    import transformers

    known = _READ | _IRRELEVANT | transformers.PretrainedConfig().to_dict().keys()
    for part in (given, given.get("transformer_layer_config") or {}, given.get("eagle_config") or {}):
        for key in sorted(part.keys() - known):
            if key not in _FIXED or part[key] != _FIXED[key]:
                raise ModelError(
                    f"{name}: its config says {key}: {json.dumps(part[key])[:80]}, which is not supported",
                    hint="if that changes nothing in the head, take the key out of its config.json",
                    kind="unreadable",
                )


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


def _tap_blocks(name: str, config: StockConfig, layers: int) -> tuple[int, ...]:
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


def _check_layout(
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
            f"{name}: is no EAGLE-3 head: {absent} is not in its files",
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
