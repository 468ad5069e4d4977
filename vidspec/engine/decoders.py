"""The choice between the fused decoder and the stock blocks of a language model."""

from __future__ import annotations

from typing import Any, Literal

from vidspec.engine.decoder import Decoder
from vidspec.engine.fused import FusedDecoder, uncovered
from vidspec.engine.stock import StockDecoder

__all__ = ["decoder_of"]


def decoder_of(
    language: Any,
    head: Any,
    kind: Literal["auto", "fused", "stock"] = "auto",
    packed: bool | Literal["auto"] = "auto",
    budget: int | None = None,
) -> Decoder:
    """The decoder of a stock language model.

    Args:
        language: ``language_model`` of a stock model.
        head: its ``lm_head``.
        kind: ``fused`` wherever it covers the model, else ``stock``, is ``auto``.
        packed: see :func:`~vidspec.engine.matrix.packing`.
        budget: bytes of its slab.

    Raises:
        ValueError: ``fused`` does not cover the model; says why.
    """
    stock = StockDecoder
    if language.config.model_type == "gemma4_text":
        from vidspec.engine.gemma4 import Gemma4Decoder as stock  # older versions of transformers lack its parts

    if kind == "stock":
        return stock(language, head, "as told", budget)
    reason = uncovered(language, head)
    if reason is None:
        return FusedDecoder(language, head, packed, budget)
    if kind == "fused":
        raise ValueError(reason)
    return stock(language, head, reason, budget)
