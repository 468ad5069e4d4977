"""Sizes of a stock model, loaded or on torch's meta device, for the estimate of memory."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, NamedTuple

from torch import nn

from vidspec.engine.decoders import weight_shapes
from vidspec.engine.forward import prefill_chunk
from vidspec.engine.fused import unsupported_reason
from vidspec.engine.layout_times import second_copy_bytes
from vidspec.engine.layouts import choose_packing, plain_linears, unquantisable_reason
from vidspec.engine.matrix import Precision
from vidspec.engine.quantised import quantised_bytes
from vidspec.errors import DeviceError
from vidspec.models.memory_estimate import ModelSizes
from vidspec.models.placement import Placement, fit_placement
from vidspec.models.quantised import weight_sizes
from vidspec.models.quantization_config import quantization_config
from vidspec.models.vision import token_bytes

if TYPE_CHECKING:
    import torch

    from vidspec.engine.decoder import Decoder
    from vidspec.models.base import StockConfig, StockModel
    from vidspec.models.video_language_model import VideoLanguageModel


class WeightBytes(NamedTuple):
    """Bytes of a model's weights on its device.

    Attributes:
        weights: of all weights, those kept or rounded as codes included.
        codes: of the codes.
        packed: of packed second copies of large weights.
        while_loading: the peak before all weights are rounded; 0 if none are.
    """

    weights: int
    codes: int
    packed: int = 0
    while_loading: int = 0


def sizes_of(
    adapter: type[VideoLanguageModel], model: StockModel, decoder: Decoder, device: torch.device
) -> ModelSizes:
    """Return the sizes that the memory of a clip follows from.

    Args:
        adapter: its family's adapter.
        model: the stock model.
        decoder: of its language model.
        device: of the model.
    """
    language, vision = adapter.language_of(model), getattr(model.config, "vision_config", None)
    config, itemsize = language.config, language.embed_tokens.weight.dtype.itemsize
    hidden = int(config.hidden_size)
    inner = int(getattr(config, "intermediate_size", None) or hidden)
    return ModelSizes(
        entry=decoder.slab.entry_bytes,
        states=decoder.state_bytes,
        embedding=hidden * itemsize,
        features=1 + len(getattr(vision, "deepstack_visual_indexes", None) or ()),
        tower_row=0 if vision is None else token_bytes(vision, every_block=adapter.keeps_blocks),
        pass_row=(3 * inner + 6 * hidden) * itemsize,
        chunk=sys.maxsize if adapter.has_bidirectional_rows else prefill_chunk(device, decoder.numbers),
    )


def estimate_weights(
    name: str, adapter: type[VideoLanguageModel], model: StockModel, config: StockConfig, where: Placement
) -> tuple[Placement, WeightBytes]:
    """Return the placement that fits a checkpoint, and the bytes its weights take there once it is loaded.

    Args:
        name: the name the user gave.
        adapter: its family's adapter.
        model: the stock model on torch's meta device; it gets the dtype of the placement, and weights that are kept as
            codes are emptied.
        config: the checkpoint's config.
        where: the placement that was asked for.

    Raises:
        DeviceError: the weights cannot be rounded as ``where.weights`` asks.
    """
    plain, seeing, codes = weight_sizes(model, adapter.language_of(model), quantization_config(config), where)
    where = fit_placement(where, plain, seeing)
    language = adapter.language_of(model.to(where.dtype))
    weights = plain * where.dtype.itemsize + codes
    if where.vision is not None:
        weights += seeing * (where.vision.itemsize - where.dtype.itemsize)
    packed = _second_copies(model, language, where, weights) if where.device.type == "cpu" else 0
    if where.weights in ("int8", "int4"):
        codes, freed, working_copy = _rounding_bytes(name, model, language, where, where.weights)
        return where, WeightBytes(weights - freed + codes, codes, packed, while_loading=weights + working_copy)
    return where, WeightBytes(weights, codes, packed)


def _second_copies(model: StockModel, language: StockModel, where: Placement, weights: int) -> int:
    """Return the bytes of packed second copies of weights on a CPU, by the rule of loading."""
    others = [layer for _, _, layer in plain_linears(model, (language, model.lm_head))]
    parts = [([((layer.out_features, layer.in_features), False) for layer in others], where.vision or where.dtype)]
    if where.weights in (None, "auto"):
        fused = where.decoder != "stock" and unsupported_reason(language, model.lm_head) is None
        parts.append((weight_shapes(language, model.lm_head, fused=fused), where.dtype))
    return sum(
        second_copy_bytes(shapes, dtype)
        for shapes, dtype in parts
        if choose_packing(shapes, dtype, where.packed, besides=weights) == "copies"
    )


def _rounding_bytes(
    name: str, model: StockModel, language: StockModel, where: Placement, rounded: Precision
) -> tuple[int, int, int]:
    """Return bytes of codes of the rounded language model, of the weights they replace, and of the peak while rounding.

    Raises:
        DeviceError: the weights cannot be rounded.
    """
    if (why := unquantisable_reason(language.layers)) is not None:
        raise DeviceError(f"--weights {rounded}: {name}: {why}", hint="leave it out")
    head, size = model.lm_head, where.dtype.itemsize
    inner = [layer for layer in language.modules() if type(layer) is nn.Linear]
    shapes = [(layer.out_features, layer.in_features) for layer in [*inner, head]]
    codes = sum(quantised_bytes(shape, rounded, where.device) for shape in shapes)
    tied = head.weight is language.embed_tokens.weight
    freed = sum(layer.weight.numel() for layer in (inner if tied else [*inner, head])) * size
    # Gate and up form one matrix; its weights exist twice, then as codes and packed.
    return codes, freed, max((2 * layer.weight.numel() for layer in inner), default=0) * (size + 2)
