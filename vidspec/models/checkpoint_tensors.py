"""Check that a model loads every tensor of its checkpoint, and none as a plain number that is a code."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any, TypedDict, cast

import torch

from vidspec.errors import ModelError
from vidspec.models.weight_files import StoredTensor, stored_tensors

#: Patterns of tensors that a model may leave out, with the reason.
HARMLESS: Mapping[str, str] = {
    r"rotary_(pos_)?emb\.inv_freq$": "computed from the config",
    r"(^|\.)position_ids$": "a range of numbers",
    r"\.h\.\d+\.(attn|crossattention)\.(masked_)?bias$": "GPT-2's causal mask",
    r"(^|\.)pooler\.": "the sentence embedding of an encoder, which no caption needs",
    r"(^|\.)mtp\.": "a layer for multi-token prediction, which `mtp.py` reads",
    r"^(talker|token2wav)\.": "Qwen2.5-Omni's speech output",
    r"\.(input|activation|input_global)_(scale|zero_point)$": "for activations in 8 bits, which stay numbers here",
    r"\.(k|v|q|k_proj\.output|v_proj\.output|q_proj\.output|k_cache|v_cache)_(scale|zero_point)$": (
        "for a KV cache in 8 bits, which stays numbers here"
    ),
}
_HARMLESS = re.compile("|".join(HARMLESS))
#: Stored dtypes that are codes, meaningless without scales.
_CODES = re.compile(r"F8_|F6_|F4|E8M0|[UI][48]$")


class LoadReport(TypedDict, total=False):
    """``output_loading_info`` of ``transformers``."""

    missing_keys: Collection[str]
    unexpected_keys: Collection[str]
    mismatched_keys: Collection[tuple[str, Collection[int], Collection[int]]]


def check_plain(name: str, tensors: Mapping[str, StoredTensor]) -> None:
    """Refuse tensors stored as codes without a quantization config or scales.

    Args:
        name: the model name the user gave.
        tensors: tensors of its files that no quantisation reader handles.

    Raises:
        ModelError: names the first.
    """
    for key, tensor in sorted(tensors.items()):
        get_dtype = getattr(tensor, "get_dtype", None)  # slices of a file have it; computed weights do not
        if get_dtype is not None and _CODES.match(str(get_dtype())) and not _HARMLESS.search(key):
            raise ModelError(
                f"{name}: {key} is stored as {get_dtype()}, and neither its scale nor a quantization_config "
                "says what its numbers stand for",
                hint="config.json or hf_quant_config.json must come with the weights; else take the original model",
                kind="unreadable",
            )


def read_tensors(name: str, source: str, prefix: str = "") -> dict[str, torch.Tensor]:
    """Read the tensors whose names begin with ``prefix``, keyed by the rest of the name.

    Raises:
        ModelError: one is stored as codes.
    """
    tensors = stored_tensors(source, prefix)
    check_plain(name, tensors)
    return {key: tensor[...] for key, tensor in tensors.items()}


def check_report(name: str, report: Mapping[str, Any], hint: str | None = None) -> None:
    """Refuse a model whose weights do not match its checkpoint.

    Args:
        name: the name the user gave.
        report: loading info of ``transformers``, which fills missing weights with random numbers.
        hint: for missing weights.

    Raises:
        ModelError: weights are missing, of another shape, or unused by the model; names the first.
    """
    info = cast(LoadReport, report)
    if missing := sorted(info.get("missing_keys", ())):
        raise ModelError(
            f"{name}: {len(missing)} weights are not in the files, {missing[0]} first", hint=hint, kind="unreadable"
        )
    if mismatched := sorted(info.get("mismatched_keys", ())):
        key, stored, expected = mismatched[0]
        raise ModelError(
            f"{name}: {len(mismatched)} weights have another shape than its config says, {key} first: "
            f"{_shape_text(stored)} in the files, {_shape_text(expected)} by the config",
            hint="config.json and the weights must be of one model",
            kind="unreadable",
        )
    if unexpected := sorted(key for key in info.get("unexpected_keys", ()) if not _HARMLESS.search(key)):
        raise ModelError(
            f"{name}: {len(unexpected)} tensors of its files are not part of the model, {unexpected[0]} first",
            hint="it may be of another architecture, or lack its quantization_config",
            kind="unreadable",
        )


def _shape_text(shape: Collection[int]) -> str:
    return " x ".join(map(str, shape)) or "one number"
