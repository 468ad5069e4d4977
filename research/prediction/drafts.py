"""Drafts that exist for a target, with the sizes that :mod:`research.prediction.costs` needs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

from research.prediction.constants import WeightPrecision
from research.prediction.costs import (
    ACCEPTANCE,
    BLOCK_LAUNCHES,
    OTHER_LAUNCHES,
    WEIGHT_BYTES,
    DraftCandidate,
    ModelCost,
)
from research.prediction.stock import STOCK_LAUNCHES, cost_of_known_stock, read_weights
from vidspec.models.known_pairs import KnownModel, MemoryWorkload, published_heads

if TYPE_CHECKING:
    from vidspec.engine.decoder import Decoder
    from vidspec.models.base import StockModel

#: Families whose published checkpoints have fused blocks, whose passes are replayed.
FUSED_FAMILIES = frozenset(
    (
        *("llava", "llava_next", "llava_onevision", "internvl", "smolvlm", "molmo2"),
        *("qwen2_vl", "qwen2_5_vl", "qwen2_5_omni", "qwen3_vl", "video_salmonn2_plus", "video_llama_3"),
    )
)
#: Kernels of an EAGLE-3 head's replayed pass (``counted_head`` in ``tests/engine/counts.py``).
HEAD_LAUNCHES = 41


def cost_of_known(model: KnownModel) -> ModelCost | None:
    """Return the cost of a published model in 16 bits; None if its size is not known."""
    if model.family in STOCK_LAUNCHES:
        return cost_of_known_stock(model)
    read = model.read or model.parameters
    if read is None or model.family not in FUSED_FAMILIES:
        return None
    return ModelCost.of_decoder(read, model.layers, 2 * model.kv_per_token)


def cost_of_model(
    language: StockModel, head: StockModel, decoder: Decoder, weights: WeightPrecision = "bfloat16"
) -> ModelCost:
    """Return the cost of a fused model in 16 bits, or with rounded weights, from a stock one on any device."""
    entry = decoder.slab.entry_bytes * 2 // language.embed_tokens.weight.dtype.itemsize
    return ModelCost.of_decoder(read_weights(language, head), decoder.depth, entry, weights)


def draft_candidates(
    name: str, target: ModelCost, siblings: Iterable[KnownModel], load: MemoryWorkload, entries: float = 0.0
) -> list[DraftCandidate]:
    """Return the drafts that exist for a target: quantised copies, smaller models, published heads.

    Args:
        name: of the target.
        target: its cost; one with rounded weights has no quantised copy.
        siblings: smaller models that fit it.
        load: the clip whose keys and values a draft model keeps too.
        entries: cache entries of the clip, for copies of a target with recurrent states, which keep their own.
    """
    load = load._replace(dtype="bfloat16")
    found: list[DraftCandidate] = []
    for precision in ("int4", "int8") if target.weights == "bfloat16" else ():
        cost = replace(target, weights=precision)
        size = round(cost.weight_bytes + (cost.states + entries * cost.entry if cost.states else 0))
        found.append(DraftCandidate(f"self-{precision}", precision, ACCEPTANCE[precision], size, cost=cost))
    for model in siblings:
        if (cost_of := cost_of_known(model)) is not None:
            size = (model.weight_bytes("bfloat16") or round(cost_of.weight_bytes)) + model.kv_bytes(load)
            assumed = ACCEPTANCE.get(model.family, ACCEPTANCE["model"])
            found.append(DraftCandidate(model.name, "model", assumed, size, cost=cost_of))
    for head in published_heads():
        if head.target == name and head.kind == "eagle3" and head.read:  # the speed of block heads is not predicted
            # Keys and values of one block, taken to be as wide as a block of the target.
            blocks = max(1, (target.launches - OTHER_LAUNCHES) // BLOCK_LAUNCHES)
            cost = ModelCost(head.read, target.entry // blocks, HEAD_LAUNCHES)
            size = round(head.read * WEIGHT_BYTES["bfloat16"])
            found.append(DraftCandidate(head.name, "eagle3", ACCEPTANCE["eagle3"], size, cost=cost))
    return found
