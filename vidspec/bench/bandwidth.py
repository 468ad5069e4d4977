"""Memory bandwidth and the bytes of a pass: the limit of tokens per second that exposes a slow baseline."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from vidspec.bench.turns import time_call
from vidspec.engine.device import synchroniser
from vidspec.engine.layouts import MatrixLinear, stored_bytes
from vidspec.engine.matrix import Matrix

if TYPE_CHECKING:
    from vidspec.engine.decoder import Decoder
    from vidspec.models.video_language_model import VideoLanguageModel


def copy_bandwidth(device: torch.device, megabytes: int = 256, repeats: int = 8) -> float:
    """Return bytes read and written per second by the fastest of several copies of a buffer larger than the caches."""
    source = torch.ones(megabytes * 2**20 // 4, dtype=torch.float32, device=device)
    target = torch.empty_like(source)
    wait = synchroniser(device)
    return 2 * source.nbytes / min(time_call(lambda: target.copy_(source), wait) for _ in range(repeats))


def weight_bytes(language: nn.Module, head: nn.Module, decoder: Decoder | None = None) -> int:
    """Return the weight bytes that one decoding pass reads: all blocks and the head; the embedding only if tied to it.

    Args:
        language: the stock language model.
        head: its ``lm_head``.
        decoder: the decoder that runs it; its codes and packed weights replace those of the stock modules.
    """
    read = getattr(decoder, "head", head)
    read = read.matrix if isinstance(read, MatrixLinear) else read
    own = isinstance(read, Matrix) and read.nbytes > 0 and not read.second
    of_head = [] if own else [*head.parameters()]
    seen = {id(p): p.nbytes for p in [*language.parameters(), *of_head]}
    table = language.get_input_embeddings().weight  # type: ignore[operator]
    if id(table) not in {id(p) for p in of_head}:
        seen.pop(id(table), None)
    return sum(seen.values()) + (0 if decoder is None else stored_bytes(decoder.matrices, copies=False))


def model_weight_bytes(model: VideoLanguageModel) -> int:
    """Return bytes of all weights and buffers of a model, including its vision tower; tied ones count once.

    Includes weights packed by oneDNN.
    """
    module: nn.Module = model.model
    own = sum({id(one): one.nbytes for one in [*module.parameters(), *module.buffers()]}.values())
    return own + sum(matrix.nbytes for matrix in model.matrices)


def kv_bytes(model: VideoLanguageModel) -> int:
    """Return the bytes of one KV cache entry over all layers."""
    return model.decoder.slab.entry_bytes


def pass_bytes(model: VideoLanguageModel, context: float = 0.0) -> float:
    """Return the bytes that one decoding pass reads: weights, and cache entries of ``context`` tokens."""
    stock: Any = model.model
    return weight_bytes(stock.model.language_model, stock.lm_head, model.decoder) + context * kv_bytes(model)
