"""EAGLE-3 heads (Li et al. 2025): loading, and the decoder block that drafts from the target's hidden states.

:mod:`vidspec.models.eagle3_checkpoint` describes the published layout and checks it.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property, partial
from typing import Literal, cast

import torch
from torch.nn import functional as F

from vidspec.engine.attention import PassAttention
from vidspec.engine.block_kernels import rms_norm
from vidspec.engine.decoder import AttendFunction, sliding_windows
from vidspec.engine.head_states import StateInputs
from vidspec.engine.layouts import weight_matrices
from vidspec.engine.matrix import PlainMatrix
from vidspec.engine.rotary import RotaryPositions, RotaryTables, rotate
from vidspec.engine.slab import Slab
from vidspec.models.base import StockConfig
from vidspec.models.checkpoint_config import checkpoint_errors
from vidspec.models.eagle3_checkpoint import canonical_key, check_keys, check_layout, head_config, tap_blocks
from vidspec.models.head import PROJECTIONS, Head, HeadDecoder, other_device_reason, read_head, target_embedding
from vidspec.models.placement import Placement
from vidspec.models.video_language_model import VideoLanguageModel


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
