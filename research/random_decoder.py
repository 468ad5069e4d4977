"""Language models of published sizes with random weights and no vision tower, on any device: for times and counts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch

from research.sizes import Size
from vidspec.bench.measure import weight_bytes
from vidspec.engine.decoder import Decoder
from vidspec.engine.decoders import decoder_of
from vidspec.engine.forward import Engine
from vidspec.engine.layouts import WeightFormat
from vidspec.engine.slab import KVSpan


@dataclass(frozen=True)
class Language:
    """A language model as the engine needs it, with random weights.

    Attributes:
        weight_bytes: bytes of weights that one pass reads.
    """

    decoder: Decoder
    device: torch.device
    vocabulary: int
    weight_bytes: int
    known_ids: int

    def embed(self, ids: torch.Tensor) -> torch.Tensor:
        """Return the embeddings (n, hidden) of ids (n,)."""
        return self.decoder.embed(ids)


def language(
    size: Size,
    device: torch.device,
    dtype: torch.dtype = torch.bfloat16,
    kind: Literal["fused", "stock"] = "fused",
    packed: bool | Literal["auto"] = "auto",
    wanted: WeightFormat = None,
) -> Language:
    """Create a language model with M-RoPE and random weights; none on the device ``meta``.

    Args:
        size: its shape.
        device, dtype: of its weights.
        kind, packed, wanted: see :func:`~vidspec.engine.decoders.decoder_of`.
    """
    from transformers.models.qwen2_5_vl.configuration_qwen2_5_vl import Qwen2_5_VLTextConfig
    from transformers.models.qwen2_5_vl.modeling_qwen2_5_vl import Qwen2_5_VLTextModel

    config = Qwen2_5_VLTextConfig(
        hidden_size=size.hidden,
        num_hidden_layers=size.layers,
        num_attention_heads=size.heads,
        num_key_value_heads=size.kv_heads,
        intermediate_size=size.inner,
        vocab_size=size.vocabulary,
        rope_parameters=rope_parameters(size),
    )
    with torch.device(device):
        model = Qwen2_5_VLTextModel._from_config(config, dtype=dtype)
        head = torch.nn.Linear(size.hidden, size.vocabulary, bias=False, dtype=dtype)
        if size.tied:
            head.weight = model.embed_tokens.weight
    model.requires_grad_(False)
    head.requires_grad_(False)
    decoder = decoder_of(model, head, kind, packed, wanted=wanted)
    return Language(
        decoder, torch.device(device), size.vocabulary, weight_bytes(model, head, decoder), known_ids=size.vocabulary
    )


def rope_parameters(size: Size) -> dict[str, object]:
    """Return M-RoPE's parameters, whose sections are in Qwen2.5-VL's proportions."""
    half = size.width // 2
    sections = [half // 4, half * 3 // 8, half - half // 4 - half * 3 // 8]
    return {"rope_type": "default", "rope_theta": 1e6, "mrope_section": sections}


def engine_of(model: Language) -> Engine:
    """Return an engine of a model without a vision tower; its passes need no more."""
    return Engine(model)  # type: ignore[arg-type]


@torch.inference_mode()
def behind(model: Language, clips: int, entries: int, margin: int) -> list[KVSpan]:
    """Return sequences with ``entries`` random cache entries each, and room for ``margin`` more."""
    slab, room = model.decoder.slab, entries + margin
    slab.open(clips * room).free()  # so that it grows once
    spans = [slab.open(room) for _ in range(clips)]
    for span in spans:
        for layer in span.entries_to_write(entries):
            layer.normal_()
        span.length = entries
    return spans


def rolled_back(spans: Sequence[KVSpan], work: Callable[[], object]) -> None:
    """Run work that appends to sequences, then roll them back."""
    lengths = [span.length for span in spans]
    work()
    for span, length in zip(spans, lengths, strict=True):
        span.rollback(length)
