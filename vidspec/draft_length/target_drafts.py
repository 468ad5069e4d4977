"""Drafts that exist for a target, with the sizes that :mod:`vidspec.draft_length.prediction` needs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from vidspec.draft_length.prediction import (
    ACCEPTANCE,
    WEIGHT_BYTES,
    DraftCandidate,
    ModelCost,
    WeightPrecision,
)
from vidspec.models.known_pairs import KnownModel, MemoryWorkload, known_pairs, published_heads

if TYPE_CHECKING:
    from vidspec.engine.decoder import Decoder
    from vidspec.models.base import StockModel

__all__ = ["FUSED_FAMILIES", "cost_of_known", "cost_of_model", "draft_candidates", "known_target"]

#: Families whose published checkpoints have fused blocks, whose passes are replayed.
FUSED_FAMILIES = frozenset(
    ("llava", "llava_next", "llava_onevision", "internvl", "smolvlm", "qwen2_5_vl", "qwen2_5_omni", "qwen3_vl")
)
#: Kernels of an EAGLE-3 head's pass, if it is captured; assumed.
_HEAD_LAUNCHES = 30


def known_target(name: str) -> KnownModel | None:
    """Return the published facts of a target; None if it is not listed."""
    return next((pair.target for pair in known_pairs() if pair.target.name == name), None)


def cost_of_known(model: KnownModel) -> ModelCost | None:
    """Return the cost of a published model in 16 bits; None if its size is unknown or its blocks are not fused."""
    read = model.read or model.parameters
    if read is None or model.family not in FUSED_FAMILIES:
        return None
    return ModelCost.of_decoder(read, model.layers, 2 * model.kv_per_token)


def cost_of_model(
    language: StockModel, head: StockModel, decoder: Decoder, weights: WeightPrecision = "bfloat16"
) -> ModelCost:
    """Return the cost of a fused model in 16 bits, or with rounded weights, from a stock one on any device."""
    inner = sum(weight.numel() for weight in language.parameters()) - language.embed_tokens.weight.numel()
    entry = decoder.slab.entry_bytes * 2 // language.embed_tokens.weight.dtype.itemsize
    return ModelCost.of_decoder(inner + head.weight.numel(), decoder.depth, entry, weights)


def draft_candidates(
    name: str, target: ModelCost, siblings: Iterable[KnownModel], load: MemoryWorkload
) -> list[DraftCandidate]:
    """Return the drafts that exist for a target: quantised copies, smaller models, published heads.

    Args:
        name: of the target.
        target: its cost; one with rounded weights has no quantised copy.
        siblings: smaller models that fit it.
        load: the clip whose keys and values a draft model keeps too.
    """
    load = load._replace(dtype="bfloat16")
    found: list[DraftCandidate] = []
    for precision in ("int4", "int8") if target.weights == "bfloat16" else ():
        cost = ModelCost(target.read, target.entry, target.launches, precision)
        found.append(
            DraftCandidate(f"self-{precision}", precision, cost, ACCEPTANCE[precision], round(cost.weight_bytes))
        )
    for model in siblings:
        if (cost_of := cost_of_known(model)) is not None:
            size = (model.weight_bytes("bfloat16") or round(cost_of.weight_bytes)) + model.kv_bytes(load)
            assumed = ACCEPTANCE.get(model.family, ACCEPTANCE["model"])
            found.append(DraftCandidate(model.name, "model", cost_of, assumed, size))
    for head in published_heads():
        if head.target == name:
            # Keys and values of one block, taken to be as wide as a block of the target.
            blocks = max(1, (target.launches - 12) // 11)
            cost = ModelCost(head.read, target.entry // blocks, _HEAD_LAUNCHES)
            size = round(head.read * WEIGHT_BYTES["bfloat16"])
            found.append(DraftCandidate(head.name, "eagle3", cost, ACCEPTANCE["eagle3"], size))
    return found
