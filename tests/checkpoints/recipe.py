"""Steps that the recipes of several families share: weights, tokenizers with more special tokens, files."""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from transformers import GenerationConfig, PreTrainedModel, PreTrainedTokenizerFast


def draw_weight(
    name: str,
    noise: torch.Tensor,
    *,
    norms: Sequence[str] = ("norm",),
    peaked: Sequence[str] = ("q_proj", "k_proj"),
    centred: bool = False,
) -> torch.Tensor:
    """Return a parameter far from the usual tiny initialisation, made of standard normal ``noise``.

    Attention is peaked, so that a wrong mask or position shows; heads are scaled so that the two best logits lie far
    further apart than rounding errors.

    Args:
        name: of the parameter; the rest are parts of names.
        norms: of norms, whose weights are about 1, or about 0 if ``centred``.
        peaked: of projections with larger weights.
    """
    if any(part in name for part in ("embed_tokens", "lm_head", "image_newline")):
        return noise * 0.7
    if any(part in name for part in norms):
        return 0.2 * noise + (0 if centred or name.endswith("bias") else 1)
    if noise.dim() == 1:
        return 0.3 * noise
    gain = 1.5 if any(part in name for part in peaked) else 1.0
    return gain * noise / noise[0].numel() ** 0.5


@torch.no_grad()
def draw_weights(
    model: torch.nn.Module,
    draw: Callable[[str, torch.Tensor], torch.Tensor] = draw_weight,
    *,
    noise: float = 0.0,
    seed: int = 0,
) -> None:
    """Set all parameters, each from its name and ``seed``, whatever the depth or the padding.

    ``noise`` is their distance from those without any, in their own deviations.
    """
    rng = torch.Generator()
    for name, weight in model.named_parameters():
        rng.manual_seed(seed + zlib.crc32(name.encode()))
        weight.copy_(draw(name, torch.randn(weight.shape, generator=rng)))
        weight.add_(noise * weight.std() * torch.randn(weight.shape, generator=rng))


def extend_tokenizer(base: PreTrainedTokenizerFast, specials: Sequence[str], **roles: str) -> PreTrainedTokenizerFast:
    """Return a tokenizer with the words of ``base``, its own roles and these special tokens."""
    inner = base._tokenizer
    words = PreTrainedTokenizerFast(
        tokenizer_object=type(inner).from_str(inner.to_str()), clean_up_tokenization_spaces=False, **roles
    )
    words.add_special_tokens({"additional_special_tokens": list(specials)})
    return words


def greedy_generation(tokenizer: PreTrainedTokenizerFast) -> GenerationConfig:
    """Generation settings of a model with that tokenizer."""
    return GenerationConfig(eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id, do_sample=False)


def save_files(
    folder: Path,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerFast,
    files: dict[str, object],
    *,
    max_shard_size: str | None = None,
) -> None:
    """Write a model and its tokenizer as the library lays them out, and JSON ``files`` by name."""
    model.save_pretrained(folder, **({"max_shard_size": max_shard_size} if max_shard_size else {}))
    tokenizer.save_pretrained(folder)
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content), encoding="utf-8")
