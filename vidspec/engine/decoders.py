"""The choice between the fused decoder and the stock blocks of a language model."""

from __future__ import annotations

from typing import Literal

from torch import nn

from vidspec.engine.fused import FusedDecoder, fused_shapes, unsupported_reason
from vidspec.engine.layout_times import Packing, WeightShape
from vidspec.engine.layouts import (
    MatrixLinear,
    WeightFormat,
    build_matrix,
    choose_packing,
    lay_out_linears,
    plain_linears,
    quantise_linears,
    quantised_copy,
    unquantisable_reason,
)
from vidspec.engine.matrix import PlainMatrix
from vidspec.engine.stock import StockDecoder
from vidspec.engine.stock_types import StockModel


def decoder_of(
    language: StockModel,
    head: StockModel,
    kind: Literal["auto", "fused", "stock"] = "auto",
    packed: bool | Literal["auto"] = "auto",
    budget: int | None = None,
    wanted: WeightFormat = None,
) -> FusedDecoder | StockDecoder:
    """Return the decoder of a stock language model.

    Args:
        language: ``language_model`` of a stock model.
        head: its ``lm_head``.
        kind: ``auto`` is ``fused`` wherever it supports the model, else ``stock``.
        packed: see :func:`~vidspec.engine.layouts.choose_packing`.
        budget: bytes of its slab.
        wanted: codes in place of its weights, see :func:`~vidspec.engine.layouts.choose_layout`; ``auto`` for large
            ones of the fused decoder.

    Raises:
        ValueError: ``fused`` does not support the model, or its weights cannot be quantised.
    """
    stock = StockDecoder
    if language.config.model_type in ("gemma4_text", "gemma4_unified_text"):
        from vidspec.engine.gemma4 import Gemma4Decoder as stock  # older versions of transformers lack its parts

    reason = "as told" if kind == "stock" else unsupported_reason(language, head)
    if kind == "fused" and reason is not None:
        raise ValueError(reason)
    table = language.embed_tokens.weight
    packing: Packing = "none"
    if table.device.type == "cpu" and wanted in (None, "auto"):
        packing = choose_packing(weight_shapes(language, head, fused=reason is None), table.dtype, packed)
    if reason is None:
        return FusedDecoder(language, head, packing, budget, wanted)
    quantise_linears(language, None)
    if wanted is not None and wanted != "auto":
        if (why := unquantisable_reason(language.layers)) is not None:
            raise ValueError(why)
        quantise_linears(language, wanted)
        head = quantised_copy(head, wanted)
    else:
        lay_out_linears(language, packing)
        head = _lay_out_head(head, packing, shared=head.weight is table)
    return stock(language, head, reason, budget)


def weight_shapes(module: StockModel, head: StockModel, *, fused: bool) -> list[WeightShape]:
    """Return the shapes of the matrices of a language model and its head."""
    if fused:
        return fused_shapes(module, head)
    shapes = [((layer.out_features, layer.in_features), False) for _, _, layer in plain_linears(module)]
    if type(head) is nn.Linear:
        shapes.append(((head.out_features, head.in_features), head.weight is module.embed_tokens.weight))
    return shapes


def _lay_out_head(head: StockModel, packing: Packing, *, shared: bool) -> StockModel:
    """Return the head of stock blocks in its layout."""
    if type(head) is not nn.Linear or "forward" in vars(head) or head.weight.device.type != "cpu":
        return head
    matrix = build_matrix([head], packing=packing, shared=shared)
    return head if type(matrix) is PlainMatrix else MatrixLinear(matrix, head)
