"""Errors for unsupported or unknown models, with the nearest supported ones."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from vidspec.errors import ModelError
from vidspec.models.base import families
from vidspec.models.hub import config_file, gguf_reason, is_local, nearest_published
from vidspec.models.known_pairs import known_pairs
from vidspec.registry import nearest

#: Title and nearest supported family of unsupported models, by ``model_type``, or by architecture where the
#: ``model_type`` is another model's.
KIN = {
    "Keye": ("Keye-VL with code of its own", "qwen3_vl"),
    "KeyeVL1_5": ("Keye-VL 1.5 with code of its own", "qwen3_vl"),
    "TarsierForConditionalGeneration": ("Tarsier and Tarsier2, with code of their own", "qwen2_vl"),
    "gemma3": ("Gemma 3", "gemma4"),
    "gemma3n": ("Gemma 3n", "gemma4"),
    "idefics2": ("Idefics2", "smolvlm"),
    "idefics3": ("Idefics3 and SmolVLM 1", "smolvlm"),
    "internvl_chat": ("InternVL with code of its own; take the checkpoint whose name ends in -HF", "internvl"),
    "llava_next_video": ("LLaVA-NeXT-Video", "llava_onevision"),
    "llava_onevision1_5": ("LLaVA-OneVision-1.5", "llava_onevision"),
    "minicpmv": ("MiniCPM-V with code of its own", "minicpmv4_6"),
    "minicpmv4_7": ("MiniCPM-V 4.7, with positions on a canvas", "minicpmv4_6"),
    "mllama": ("Llama 3.2 Vision", "llava_next"),
    "qwen2_5_omni_thinker": ("Qwen2.5-Omni's thinker alone", "qwen2_5_omni"),
    "videollama3_qwen2": ("VideoLLaMA 3 with code of its own", "video_llama_3"),
    "video_llava": ("Video-LLaVA", "llava_onevision"),
    "vipllava": ("ViP-LLaVA", "llava"),
}


def kind_of(config: Mapping[str, object]) -> str | None:
    """Return the key of :data:`KIN` that a raw config has, else its ``model_type``, else None."""
    architectures = config.get("architectures")
    named = [name for name in architectures if name in KIN] if isinstance(architectures, list) else []
    family = next(iter(named), config.get("model_type"))
    return family if isinstance(family, str) else None


def unsupported_error(name: str, family: str, *, blind: bool = False) -> ModelError:
    """Return the error for a model of an unsupported family; ``blind`` if it is a language model that can draft."""
    valid = families.names()
    title, nearest_family = _nearest_supported(family)
    suggestion = f"; nearest: {nearest_family}" if nearest_family else ""
    return ModelError(
        f"{name}: models of type {title} are not supported{suggestion}; supported: {', '.join(valid)}",
        hint="a language model without vision can draft: --profile onsd --draft" if blind else None,
        kind="family",
    )


class TargetProblem(NamedTuple):
    """Problem of a target, and the target to name instead."""

    what: str
    instead: str


def find_target_problem(target: str) -> TargetProblem | None:
    """Return the problem of a target that its name, or its config if that is here, makes certain."""
    if any(pair.target.name == target for pair in known_pairs()):
        return None
    if (gguf := gguf_reason(target)) is not None:
        return TargetProblem(*gguf)
    if (file := config_file(target)) is not None:
        try:
            family = kind_of(json.loads(file.read_text(encoding="utf-8")))
        except (OSError, ValueError, AttributeError, TypeError, RecursionError):
            return None  # loading reports the error
        if family is None or family in families:
            return None
        title, near = _nearest_supported(family)
        return TargetProblem(
            f"{target}: models of type {title} are not supported", near or f"one of {', '.join(families.names())}"
        )
    if is_local(target):
        exists = Path(target).expanduser().exists()
        what = "no config.json in this folder" if exists else "no such folder"
        return TargetProblem(f"{target}: {what}", "a folder with a saved model, or a hub id")
    return None


def nearest_target(target: str) -> str | None:
    """Return the listed target that a mistyped hub id may mean; None if it is listed or here."""
    targets = {pair.target.name for pair in known_pairs()}
    return None if target in targets or config_file(target) is not None else nearest_published(target, targets)


def _nearest_supported(family: str) -> tuple[str, str]:
    """Return the title of an unsupported family, and the nearest supported one with an example, if any."""
    valid = families.names()
    title, near = KIN.get(family, (None, nearest(family, valid)))
    example = next((pair.target.name for pair in reversed(known_pairs()) if pair.target.family == near), None)
    described = f"{family} ({title})" if title else family
    return described, "" if near not in valid else f"{near}, such as {example}" if example else str(near)
