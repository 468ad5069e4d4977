"""Costs of models whose stock blocks run kernel by kernel: hybrids with recurrent states, Gemma 4, mixtures of experts.

Their kernels are counted (``counted_eager`` in ``tests/engine/counts.py``): one row of one clip, further rows of a
clip, further clips, whose recurrent states are updated one by one. No torch.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

from research.prediction.constants import WeightPrecision
from research.prediction.costs import EagerLaunches, ExpertCost, ModelCost
from vidspec.models.known_pairs import KnownModel

if TYPE_CHECKING:
    from vidspec.engine.stock import StockDecoder
    from vidspec.models.base import StockModel


class StockLaunches(NamedTuple):
    """Kernels of a pass over one row: around the blocks, of a block with attention and of one with a state."""

    around: int
    attention: int
    recurrent: int = 0


#: By family. Blocks of Gemma 4 have more kernels with an input of their own or experts, and fewer without keys.
STOCK_LAUNCHES = {
    "qwen3_vl_moe": StockLaunches(31, 73),
    "qwen3_5": StockLaunches(33, 69, 101),
    "qwen3_5_moe": StockLaunches(33, 95, 127),
    "gemma4": StockLaunches(40, 86),
}
_OWN_INPUT, _OWN_INPUTS, _EXPERTS, _WITHOUT_KEYS = 14, 17, 61, -23
#: Further kernels of a block with attention for several rows of a clip; for each further clip, by kind of block.
_WINDOW, _CLIP_ATTENTION, _CLIP_STATE = 24, 2, 45


def cost_of_stock(
    language: StockModel, head: StockModel, decoder: StockDecoder, weights: WeightPrecision = "bfloat16"
) -> ModelCost | None:
    """Return the cost of a model in 16 bits, or with rounded weights, from a stock one on any device.

    None if the kernels of its blocks are not counted. Experts are never rounded.
    """
    config = language.config
    family = str(config.model_type).removesuffix("_text")
    if family not in STOCK_LAUNCHES:
        return None
    kinds = list(getattr(config, "layer_types", None) or ["full_attention"] * decoder.depth)
    recurrent = kinds.count("linear_attention")
    attending = decoder.depth - recurrent
    launches = 0
    if family == "gemma4":
        blocks = _OWN_INPUT * bool(config.hidden_size_per_layer_input) + _EXPERTS * bool(config.enable_moe_block)
        launches = blocks * attending + _OWN_INPUTS * bool(config.hidden_size_per_layer_input)
        launches += _WITHOUT_KEYS * (attending - len(decoder.slab))
    experts, inner = _experts_of(language)
    states = 0
    if recurrent:
        states = config.linear_num_value_heads * config.linear_key_head_dim * config.linear_value_head_dim * recurrent
    return _stock_cost(
        family,
        read_weights(language, head) - inner,
        (attending, recurrent),
        _entries_by_window(decoder),
        experts,
        states,
        launches,
        weights,
    )


def cost_of_known_stock(model: KnownModel) -> ModelCost | None:
    """Return the cost of a published model in 16 bits; None if it is not listed, or its kernels are not counted."""
    if model.read is None or model.family not in STOCK_LAUNCHES:
        return None
    recurrent, states = model.recurrent or (0, 0)
    experts = None if model.experts is None else ExpertCost(*model.experts)
    entries: dict[int | None, int] = {None: 2 * model.kv_per_token}
    return _stock_cost(model.family, model.read, (model.layers, recurrent), entries, experts, states)


def read_weights(language: StockModel, head: StockModel) -> int:
    """Return the parameters that a decoding pass may read: all but embeddings, those of emptied layers included."""
    count = head.out_features * head.in_features
    for name, part in language.named_modules():
        if hasattr(part, "in_features"):
            count += part.in_features * part.out_features + (0 if part.bias is None else part.out_features)
        elif "embed_tokens" not in name:
            count += sum(weight.numel() for weight in part.parameters(recurse=False))
    return int(count)


def _stock_cost(
    family: str,
    read: int,
    blocks: tuple[int, int],
    entries: dict[int | None, int],
    experts: ExpertCost | None,
    states: int,
    launches: int = 0,
    weights: WeightPrecision = "bfloat16",
) -> ModelCost:
    """Return a cost; ``blocks`` are those with attention and with a state, ``states`` numbers in float32."""
    (attending, recurrent), kernels = blocks, STOCK_LAUNCHES[family]
    launches += kernels.around + kernels.attention * attending + kernels.recurrent * recurrent
    return ModelCost(
        read,
        entries.pop(None, 0),
        launches,
        weights,
        experts=experts,
        windows=tuple(sorted((size, count) for size, count in entries.items() if size is not None)),
        states=4 * states,
        eager=EagerLaunches(_WINDOW * attending, _CLIP_ATTENTION * attending + _CLIP_STATE * recurrent),
    )


def _experts_of(language: StockModel) -> tuple[ExpertCost | None, int]:
    """Return the cost of the experts, and all their parameters."""
    parts = [part for part in language.modules() if hasattr(part, "gate_up_proj") and hasattr(part, "num_experts")]
    if not parts:
        return None, 0
    config, total = language.config, sum(weight.numel() for part in parts for weight in part.parameters())
    active = getattr(config, "num_experts_per_tok", None) or config.top_k_experts
    return ExpertCost(parts[0].num_experts, int(active), total // parts[0].num_experts), total


def _entries_by_window(decoder: StockDecoder) -> dict[int | None, int]:
    """Return the bytes of a token's entries that a pass reads in 16 bits, by sliding window; None for no window."""
    layers = decoder.slab.layers(0, 0)
    attended = list(decoder.attended)
    windows: Iterable[int | None] = [None] * len(attended)
    if decoder.windows is not None:
        windows = [decoder.windows[block] for block in decoder.cached or range(decoder.depth)]
    found: dict[int | None, int] = {}
    for window, layer in zip(windows, attended, strict=True):
        both, heads, _, width = layers[layer].shape
        found[window] = found.get(window, 0) + 2 * both * heads * width
    return found
