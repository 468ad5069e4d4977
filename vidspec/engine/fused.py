"""Our dense decoder for Qwen2, Qwen3, Llama and Mistral language models: few kernels for few rows.

Queries, keys and values are one product, gate and up another; residuals are added by the products. It takes over the
stock modules' weights: their parameters become views of its matrices, so the modules keep giving the same results.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from functools import cached_property
from typing import cast

import torch
from torch import nn
from torch.nn import functional as F

from vidspec.engine.attention import PassAttention
from vidspec.engine.block_kernels import load_block_kernels, rms_norm
from vidspec.engine.decoder import AttendFunction, DecoderDefaults, sliding_windows
from vidspec.engine.graphs.passes import eager_reason, make_graphs
from vidspec.engine.graphs.step import StepAttention
from vidspec.engine.history import suppress
from vidspec.engine.layout_times import Packing, WeightShape
from vidspec.engine.layouts import WeightFormat, build_matrix
from vidspec.engine.matrix import Matrix, Precision
from vidspec.engine.quantised import quantise_weight
from vidspec.engine.rotary import STATIC_ROPE, HeadNorms, RotaryPositions, RotaryTables, mrope_sections, rotate
from vidspec.engine.slab import Slab
from vidspec.engine.stock_types import StockModel

#: Model types of language models with these blocks.
FAMILIES = (
    "qwen2",
    "qwen2_vl_text",
    "qwen2_5_vl_text",
    "qwen2_5_omni_text",
    "qwen3",
    "qwen3_vl_text",
    "molmo2_text",
    "llama",
    "mistral",
)


def unsupported_reason(language: StockModel, head: StockModel) -> str | None:
    """Return why a language model cannot be fused; None if it can."""
    config = language.config
    kind = str(config.model_type)
    if kind not in FAMILIES:
        return f"blocks of {kind} are not fused"
    if kind == "molmo2_text" and (config.norm_after or config.qk_norm_type != "qwen3"):
        return "its norms are not where Qwen3 has them"
    if config.hidden_act != "silu":
        return f"activation {config.hidden_act} is not fused"
    if getattr(language.rotary_emb, "rope_type", "default") not in STATIC_ROPE:
        return f"rotary positions of type {language.rotary_emb.rope_type} depend on the length"
    rotary, sections = language.rotary_emb, mrope_sections(getattr(config, "rope_parameters", None))
    width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    if rotary.inv_freq.numel() * 2 != width:
        return "rotary positions turn a part of each head only"
    if sections is not None and (len(sections) != 3 or sum(sections) != width // 2):
        return f"its rotary sections {list(sections)} do not divide {width // 2} frequencies among three axes"
    linears = [head, *(layer for block in language.layers for part in _linears(block) for layer in part)]
    if any(type(layer) is not nn.Linear or "forward" in vars(layer) for layer in linears):
        return "its linear layers are quantised, adapted or moved (models.weights: int8 or int4 are fused)"
    if len({layer.weight.device for layer in linears}) > 1:
        return "it is split over devices (models.weights: int4 may let it fit on one)"
    if len({weight.dtype for weight in (language.embed_tokens.weight, *(layer.weight for layer in linears))}) > 1:
        return "its weights are of several dtypes (name one with --dtype)"
    return None


def _linears(block: StockModel) -> tuple[list[StockModel], list[StockModel], list[StockModel], list[StockModel]]:
    """Return the linear layers of a block: query, key and value; output; gate and up; down."""
    attention, mlp = block.self_attn, block.mlp
    return (
        [attention.q_proj, attention.k_proj, attention.v_proj],
        [attention.o_proj],
        [mlp.gate_proj, mlp.up_proj],
        [mlp.down_proj],
    )


def fused_shapes(language: StockModel, head: StockModel) -> list[WeightShape]:
    """Return the shapes of the matrices of a fused language model and its head."""
    parts = [part for block in language.layers for part in _linears(block)]
    shapes = [((sum(layer.out_features for layer in part), part[0].in_features), False) for part in parts]
    return [*shapes, ((head.out_features, head.in_features), head.weight is language.embed_tokens.weight)]


def _columns(rows: torch.Tensor, first: int, count: int) -> torch.Tensor:
    """Return (R, count), the numbers of each row from ``first`` on, in one view."""
    return rows.as_strided((rows.shape[0], count), (rows.stride(0), 1), rows.storage_offset() + first)


def _heads(rows: torch.Tensor, first: int, heads: int, width: int) -> torch.Tensor:
    """Return (R, heads, width), the heads of each row from the number ``first`` on, in one view."""
    sizes, strides = (rows.shape[0], heads, width), (rows.stride(0), width, 1)
    return rows.as_strided(sizes, strides, rows.storage_offset() + first)


class _Norm:
    """Root-mean-square norm over the last axis.

    On a CPU ``F.rms_norm`` takes five operations and two copies; here it is rows / sqrt(sum x^2 + n eps), times weight
    and sqrt(n).
    """

    def __init__(self, module: StockModel) -> None:
        self.weight, self.eps = module.weight, float(module.variance_epsilon)
        self._scaled: torch.Tensor | None = None
        if self.weight.device.type == "cpu" and self.weight.dtype is torch.float32:
            count = self.weight.numel()
            self._scaled = self.weight.detach() * count**0.5
            self._min_length = torch.tensor((count * self.eps) ** 0.5)

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        if self._scaled is None:
            return rms_norm(rows, self.weight, self.eps)
        length = torch.linalg.vector_norm(rows, dim=-1, keepdim=True).hypot_(self._min_length)
        return torch.div(rows, length).mul_(self._scaled)


class _Block:
    """One block's matrices and norms."""

    def __init__(self, block: StockModel, packing: Packing, wanted: WeightFormat) -> None:
        self.qkv, self.out, self.gate_up, self.down = (
            build_matrix(part, wanted, packing=packing) for part in _linears(block)
        )
        self.before_attention, self.before_mlp = _Norm(block.input_layernorm), _Norm(block.post_attention_layernorm)
        attention = block.self_attn
        self.head_norms: tuple[_Norm, _Norm] | None = None
        if getattr(attention, "q_norm", None) is not None:
            self.head_norms = _Norm(attention.q_norm), _Norm(attention.k_norm)

    @property
    def matrices(self) -> tuple[Matrix, ...]:
        return self.qkv, self.out, self.gate_up, self.down

    def quantised_copy(self, copied: Callable[[Matrix], Matrix]) -> _Block:
        """Return the block with copies of its matrices and the same norms."""
        other = copy.copy(self)
        other.qkv, other.out, other.gate_up, other.down = map(copied, self.matrices)
        return other


class FusedDecoder(DecoderDefaults):
    """The blocks of a stock language model, fused.

    Args:
        language: ``language_model`` of a stock model without :func:`unsupported_reason`.
        head: its ``lm_head``.
        packing: see :func:`~vidspec.engine.layouts.choose_packing`.
        budget: bytes of the slab.
        wanted: codes in place of the weights, see :func:`~vidspec.engine.layouts.choose_layout`.
    """

    name = "fused"
    why = "the family's blocks are fused"
    unquantisable_reason: str | None = None
    skips_rows = True
    suppressed: torch.Tensor | None = None

    def __init__(
        self,
        language: StockModel,
        head: StockModel,
        packing: Packing = "none",
        budget: int | None = None,
        wanted: WeightFormat = None,
    ) -> None:
        config = language.config
        self._budget = budget
        self.embedding: torch.Tensor = language.embed_tokens.weight
        self.heads, self.kv_heads = int(config.num_attention_heads), int(config.num_key_value_heads)
        self.width = int(getattr(config, "head_dim", None) or config.hidden_size // self.heads)
        self.scaling, self.windows = self.width**-0.5, sliding_windows(config)
        self.depth, self._mlp_width = len(language.layers), int(config.intermediate_size)
        weight = self.embedding
        self.blocks = [_Block(block, packing, wanted) for block in language.layers]
        tied = head.weight is language.embed_tokens.weight
        self.norm, self.head = _Norm(language.norm), build_matrix([head], wanted, packing=packing, shared=tied)
        self.device, self.hidden, self.logit_width = weight.device, int(weight.shape[1]), self.head.shape[0]
        self.pass_width = 3 * self._mlp_width + 6 * self.hidden
        # Qwen3-VL's stock blocks interleave whatever the config says, earlier models never do.
        interleaved = str(config.model_type).startswith("qwen3")
        rope = getattr(config, "rope_parameters", None)
        self._positions = RotaryPositions(language.rotary_emb, rope, weight, interleaved=interleaved)
        self.axes = self._positions.axes
        self._kernels = load_block_kernels(weight.device)
        self.eager = eager_reason(self) if self.device.type == "cuda" else None
        self.graphs = make_graphs(self)

    @cached_property
    def numbers(self) -> int:
        return sum(math.prod(matrix.shape) for block in self.blocks for matrix in block.matrices)

    @property
    def matrices(self) -> list[Matrix]:
        return [self.head, *(matrix for block in self.blocks for matrix in block.matrices)]

    def quantised_copy(self, precision: Precision) -> FusedDecoder:
        """Return a decoder over the same slab with quantised copies of the matrices; those of such codes are shared."""
        slab, like = self.slab, self.embedding

        def copied(matrix: Matrix) -> Matrix:
            if matrix.precision == precision:
                return matrix
            return quantise_weight(matrix.dense(like.dtype, like.device), matrix.bias, precision)

        other = copy.copy(self)
        other.slab, other.head = slab, copied(self.head)
        other.blocks = [block.quantised_copy(copied) for block in self.blocks]
        other.graphs = make_graphs(other)
        return other

    @cached_property
    def slab(self) -> Slab:
        weight = self.embedding
        return Slab(self.kv_heads, self.width, weight.dtype, [weight.device] * self.depth, self._budget)

    def embed(self, ids: torch.Tensor) -> torch.Tensor:
        return F.embedding(ids, self.embedding)

    def rotation(self, positions: torch.Tensor) -> RotaryTables:
        return self._positions.tables(positions)

    def block(self, index: int, rows: torch.Tensor, rotation: RotaryTables, attention: AttendFunction) -> torch.Tensor:
        block = self.blocks[index]
        attended = self._attend(index, block.qkv(block.before_attention(rows)), rotation, attention)
        if len(attended) < len(rows):
            rows = cast(PassAttention, attention).needed(rows)
            if not len(rows):
                return rows
        if self._kernels is None:
            rows = block.out.add(rows, attended)
            both = block.gate_up(block.before_mlp(rows))
            gate, up = _columns(both, 0, self._mlp_width), _columns(both, self._mlp_width, self._mlp_width)
            return block.down.add(rows, F.silu(gate).mul_(up))
        norm = block.before_mlp
        rows, normed = self._kernels.add_norm(rows, block.out(attended), norm.weight, norm.eps)
        return block.down.add_(rows, self._kernels.silu_product(block.gate_up(normed)))

    def _attend(
        self, index: int, states: torch.Tensor, rotation: RotaryTables, attention: AttendFunction
    ) -> torch.Tensor:
        """Rotate queries and keys in (R, (heads + 2 * kv_heads) * d), and return the attention (R, heads * d)."""
        width, turned = self.width, self.heads + self.kv_heads
        query, entries = _heads(states, 0, self.heads, width), self._entries(states)
        norms = self.blocks[index].head_norms
        if self._kernels is None:
            into = turning = _heads(states, 0, turned, width)
            if norms is not None:
                turning = torch.cat([norms[0](query), norms[1](entries[:, 0])], dim=1)
            rotate(turning, rotation, out=into)
            return attention(index, query, entries)
        weights = None if norms is None else HeadNorms(norms[0].weight, norms[1].weight, norms[0].eps)
        together = _heads(states, 0, turned + self.kv_heads, width)
        if not isinstance(attention, StepAttention):
            self._kernels.rotate(together, self.heads, rotation, weights, None)
            return attention(index, query, entries)
        self._kernels.rotate(together, self.heads, rotation, weights, attention.stored(index))
        return attention.attend(index, query)

    def _entries(self, states: torch.Tensor) -> torch.Tensor:
        """Return the keys and values (R, 2, kv_heads, d) in queries, keys and values, in one view."""
        heads, width = self.kv_heads, self.width
        first = states.storage_offset() + self.heads * width
        return states.as_strided((states.shape[0], 2, heads, width), (states.stride(0), heads * width, width, 1), first)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return suppress(self.head(hidden), self.suppressed)
