"""The choice between the fused decoder and the stock blocks of a language model."""

from __future__ import annotations

from typing import Literal

from vidspec.engine.fused import FusedDecoder, unsupported_reason
from vidspec.engine.layouts import WeightFormat, quantise_linears, quantised_copy, unquantisable_reason
from vidspec.engine.stock import StockDecoder
from vidspec.engine.stock_types import StockModel

__all__ = ["decoder_of"]


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
        packed: see :func:`~vidspec.engine.matrix.choose_packing`.
        budget: bytes of its slab.
        wanted: codes in place of its weights, see :func:`~vidspec.engine.layouts.choose_layout`; ``auto`` for large
            ones of the fused decoder.

    Raises:
        ValueError: ``fused`` does not support the model, or its weights cannot be quantised.
    """
    stock = StockDecoder
    if language.config.model_type == "gemma4_text":
        from vidspec.engine.gemma4 import Gemma4Decoder as stock  # older versions of transformers lack its parts

    reason = "as told" if kind == "stock" else unsupported_reason(language, head)
    if reason is None:
        return FusedDecoder(language, head, packed, budget, wanted)
    if kind == "fused":
        raise ValueError(reason)
    quantise_linears(language, None)
    if wanted is not None and wanted != "auto":
        if (why := unquantisable_reason(language.layers)) is not None:
            raise ValueError(why)
        quantise_linears(language, wanted)
        head = quantised_copy(head, wanted)
    return stock(language, head, reason, budget)
