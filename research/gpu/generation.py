"""Plain decoding by ``generate`` of transformers, on a Qwen2.5-VL of a published shape with random weights."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import torch

from research.random_decoder import rope_parameters
from research.sizes import SIZES, Size
from vidspec.engine.device import synchroniser

#: Ids below those of Qwen's special tokens.
_WORDS = 100_000


@dataclass(frozen=True)
class Generated:
    """Times of ``generate`` for one text.

    Attributes:
        entries: tokens of the prompt, all of them text.
        first: seconds of the prompt and the first token.
        token: of each further token.
    """

    model: str
    entries: int
    first: float
    token: float


@torch.inference_mode()
def measure_generate(name: str, device: torch.device, dtype: torch.dtype, entries: int, tokens: int) -> Generated:
    """Time texts of one token and of ``tokens`` after a warm-up."""
    size = SIZES[name]
    model, wait = _model(size, device, dtype), synchroniser(device)
    ids = torch.randint(0, min(size.vocabulary, _WORDS), (1, entries), device=device)

    def run(count: int) -> float:
        wait()
        begun = time.perf_counter()
        found = model.generate(
            input_ids=ids, attention_mask=torch.ones_like(ids), max_new_tokens=count, min_new_tokens=count
        )
        wait()
        if found.shape[1] != entries + count:
            raise RuntimeError(f"{found.shape[1] - entries} tokens instead of {count}")
        return time.perf_counter() - begun

    run(min(4, tokens))
    first, whole = run(1), run(tokens)
    return Generated(name, entries, first, (whole - first) / (tokens - 1))


def _model(size: Size, device: torch.device, dtype: torch.dtype) -> Any:
    """Return a Qwen2.5-VL with a minimal vision tower."""
    from transformers import GenerationConfig, Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration

    text = {
        "hidden_size": size.hidden,
        "num_hidden_layers": size.layers,
        "num_attention_heads": size.heads,
        "num_key_value_heads": size.kv_heads,
        "intermediate_size": size.inner,
        "vocab_size": size.vocabulary,
        "rope_parameters": rope_parameters(size),
    }
    vision = {"depth": 1, "hidden_size": 32, "intermediate_size": 32, "num_heads": 2, "fullatt_block_indexes": [0]}
    config = Qwen2_5_VLConfig(text_config=text, vision_config={**vision, "out_hidden_size": size.hidden})
    with torch.device(device):
        model = Qwen2_5_VLForConditionalGeneration._from_config(config, dtype=dtype).eval()
    model.generation_config = GenerationConfig(do_sample=False, pad_token_id=0)
    return model
