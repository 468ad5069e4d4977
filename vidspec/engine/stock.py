"""The stock blocks of ``transformers`` as a decoder: the reference, and the decoder of models that are not fused."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from functools import cache, cached_property
from typing import Self

import torch

from vidspec.engine.attention import PassAttention
from vidspec.engine.decoder import AttendFunction, DecoderDefaults, sliding_windows
from vidspec.engine.history import suppress
from vidspec.engine.layouts import matrix_linears, quantised_copy, unquantisable_reason
from vidspec.engine.matrix import Matrix, Precision
from vidspec.engine.recurrent import linear_attention, max_state_bytes
from vidspec.engine.rotary import RotaryTables, axis_count
from vidspec.engine.slab import Slab
from vidspec.engine.stock_types import StockModel

#: Name under which the models' attention modules find the engine's attention.
NAME = "vidspec"


def _attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    attention: AttendFunction | None = None,
    scaling: float | None = None,
    **_: object,
) -> tuple[torch.Tensor, None]:
    """Attention function of stock modules: the engine's in its passes, plain SDPA elsewhere."""
    if attention is None:
        rows = query.shape[2]
        out = torch.nn.functional.scaled_dot_product_attention(
            query,
            key,
            value,
            attention_mask,
            is_causal=attention_mask is None and rows > 1,
            scale=scaling,
            enable_gqa=query.shape[1] != key.shape[1],
        )
        return out.transpose(1, 2).contiguous(), None
    entries = torch.stack([key[0], value[0]]).permute(2, 0, 1, 3)
    out = attention(module.layer_idx, query[0].transpose(0, 1), entries)  # type: ignore[arg-type]
    return out[None], None


@cache
def _register_attention() -> None:
    from transformers import AttentionInterface  # seconds, which processes without stock models do not need
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, sdpa_mask

    AttentionInterface.register(NAME, _attention)
    ALL_MASK_ATTENTION_FUNCTIONS.register(NAME, sdpa_mask)


class StockDecoder(DecoderDefaults):
    """Decoder over blocks as loaded: quantised, split over devices or of any dense family.

    Args:
        language: ``language_model`` of a stock model; its attention modules are pointed to the engine's.
        head: ``lm_head``.
        why: reason why it is not fused.
        budget: bytes of the slab.
    """

    name = "stock"
    eager: str | None = "its blocks are not fused"
    suppressed: torch.Tensor | None = None

    def __init__(self, language: StockModel, head: StockModel, why: str, budget: int | None = None) -> None:
        self.language, self.head, self.why, self._budget = language, head, why, budget
        _register_attention()
        config = language.config
        config._attn_implementation = NAME
        self.depth, self.windows = len(language.layers), sliding_windows(config)
        kinds = getattr(config, "layer_types", None) or ()
        attending = tuple(block for block, kind in enumerate(kinds) if kind != "linear_attention")
        self.cached = attending if len(attending) < len(kinds) else None
        self.state_bytes = max_state_bytes(config, language.embed_tokens.weight.dtype)
        self.axes = axis_count(getattr(config, "rope_parameters", None))

    @property
    def unquantisable_reason(self) -> str | None:
        """Reason why its weights cannot be quantised; None if they can."""
        return unquantisable_reason(self.language.layers)

    @property
    def attended(self) -> Sequence[int]:
        """The slab's layer that each block with attention attends to, in order."""
        return range(len(self.slab))

    @property
    def matrices(self) -> list[Matrix]:
        return matrix_linears([self.language, self.head])

    @cached_property
    def numbers(self) -> int:
        linears = (part for part in self.language.layers.modules() if hasattr(part, "in_features"))
        return sum(int(part.in_features) * int(part.out_features) for part in linears)

    def quantised_copy(self, precision: Precision) -> Self:
        """Return a decoder over the same slab with quantised copies of the linear layers."""
        slab, other = self.slab, copy.copy(self)
        other.slab, other.language = slab, quantised_copy(self.language, precision)
        other.head = quantised_copy(self.head, precision)
        return other

    @cached_property
    def scaling(self) -> float:
        return float(self._width**-0.5)

    @property
    def _width(self) -> int:
        config = self.language.config
        return int(getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads)

    @cached_property
    def slab(self) -> Slab:
        config = self.language.config
        layers = self.language.layers
        devices = [device_of(layers[block]) for block in self.cached or range(len(layers))]
        weight = self.language.embed_tokens.weight
        return Slab(int(config.num_key_value_heads), self._width, weight.dtype, devices, self._budget)

    def embed(self, ids: torch.Tensor) -> torch.Tensor:
        return self.language.embed_tokens(ids)  # type: ignore[no-any-return]

    def rotation(self, positions: torch.Tensor) -> RotaryTables:
        like = torch.empty(0, dtype=self.language.dtype, device=positions.device)
        return self.language.rotary_emb(like, positions if self.axes == 1 else positions[:, None])  # type: ignore[no-any-return]

    def block(self, index: int, rows: torch.Tensor, rotation: RotaryTables, attention: AttendFunction) -> torch.Tensor:
        layer = self.language.layers[index]
        if self.cached is not None and index not in self.cached:
            assert isinstance(attention, PassAttention)
            rows = rows + linear_attention(layer.linear_attn, index, layer.input_layernorm(rows), attention.batch)
            return rows + _mlp_output(layer.mlp(layer.post_attention_layernorm(rows)[None]))[0]
        out = layer(
            rows[None],
            attention_mask=None,
            position_ids=None,
            past_key_values=None,
            use_cache=False,
            position_embeddings=rotation,
            attention=attention,
        )
        rows = out[0] if isinstance(out, tuple) else out
        return rows[0]

    def norm(self, rows: torch.Tensor) -> torch.Tensor:
        return self.language.norm(rows)  # type: ignore[no-any-return]

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return suppress(self.head(hidden), self.suppressed)


def _mlp_output(out: torch.Tensor | tuple[torch.Tensor, ...]) -> torch.Tensor:
    """Return the output of a feed-forward block without a mixture of experts' router logits."""
    return out[0] if isinstance(out, tuple) else out


def device_of(block: torch.nn.Module) -> torch.device:
    """Return the device a block computes on; for offloaded weights it is in accelerate's hook."""
    place = getattr(getattr(block, "_hf_hook", None), "execution_device", None)
    return next(block.parameters()).device if place is None else torch.device(place)
