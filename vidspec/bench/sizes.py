"""Language models of published sizes without a vision tower, made of nothing on any device: for times and counts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch

from vidspec.bench.bandwidth import weight_bytes
from vidspec.engine.decoder import Decoder, decoder_of
from vidspec.engine.forward import Engine

__all__ = ["SIZES", "Language", "Size", "engine_of", "language"]


@dataclass(frozen=True)
class Size:
    """What a config says of a decoder of Qwen2.5's."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    inner: int
    vocabulary: int
    tied: bool = False

    @property
    def width(self) -> int:
        """Of a head."""
        return self.hidden // self.heads


#: Qwen2.5, which Qwen2.5-VL's language models are too (there is no 0.5B of these), as their configs say.
SIZES = {
    "0.5B": Size(24, 896, 14, 2, 4864, 151936, tied=True),
    "3B": Size(36, 2048, 16, 2, 11008, 151936, tied=True),
    "7B": Size(28, 3584, 28, 4, 18944, 152064),
    "32B": Size(64, 5120, 40, 8, 27648, 152064),
    "72B": Size(80, 8192, 64, 8, 29568, 152064),
}


@dataclass(frozen=True)
class Language:
    """What the engine asks of a model; its weights mean nothing.

    Attributes:
        weight_bytes: that one pass reads.
    """

    decoder: Decoder
    device: torch.device
    vocabulary: int
    weight_bytes: int


def language(
    size: Size,
    device: torch.device,
    dtype: torch.dtype = torch.bfloat16,
    kind: Literal["fused", "stock"] = "fused",
) -> Language:
    """A language model with M-RoPE and random weights; on the device ``meta`` it has none."""
    from transformers.models.qwen2_5_vl.configuration_qwen2_5_vl import Qwen2_5_VLTextConfig
    from transformers.models.qwen2_5_vl.modeling_qwen2_5_vl import Qwen2_5_VLTextModel

    half = size.width // 2
    config = Qwen2_5_VLTextConfig(
        hidden_size=size.hidden,
        num_hidden_layers=size.layers,
        num_attention_heads=size.heads,
        num_key_value_heads=size.kv_heads,
        intermediate_size=size.inner,
        vocab_size=size.vocabulary,
        rope_parameters={
            "rope_type": "default",
            "rope_theta": 1e6,
            "mrope_section": [half // 4, half * 3 // 8, half - half // 4 - half * 3 // 8],
        },
    )
    with torch.device(device):
        model = Qwen2_5_VLTextModel._from_config(config, dtype=dtype)
        head = torch.nn.Linear(size.hidden, size.vocabulary, bias=False, dtype=dtype)
        if size.tied:
            head.weight = model.embed_tokens.weight
    model.requires_grad_(False)
    head.requires_grad_(False)
    read = weight_bytes(model, head)
    return Language(decoder_of(model, head, kind), torch.device(device), size.vocabulary, read)


def engine_of(model: Language) -> Engine:
    """The engine of a model that has a language part only: its passes ask for nothing else."""
    return Engine(model)  # type: ignore[arg-type]
