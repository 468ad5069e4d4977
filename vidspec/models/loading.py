"""Find and load models by hub id or folder through ``transformers``, and check that two of them make a pair."""

from __future__ import annotations

import json
import logging
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError

from vidspec.engine.attention import NAME
from vidspec.errors import DeviceError, ModelError
from vidspec.models.base import VideoLanguageModel
from vidspec.registry import families

__all__ = ["Placement", "check_pair", "embedded_folder", "load", "placement"]

_CLASSES = {"llava_onevision": "LlavaOnevisionForConditionalGeneration"}
_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True)
class Placement:
    """Where and how a model runs."""

    device: torch.device
    dtype: torch.dtype
    attention: str = NAME


def placement(device: str = "auto", dtype: str = "auto", attention: str = "auto") -> Placement:
    """Resolve ``auto`` on this machine: the first CUDA device, else the CPU; bfloat16 there, float32 here.

    Raises:
        DeviceError: a device that is not there, or no device at all.
    """
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        place = torch.device(device)
    except RuntimeError as error:
        raise DeviceError(
            f"device {device}: no such kind of device", hint="use auto, cpu, cuda, cuda:1, ..."
        ) from error
    if place.type == "cuda":
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if (place.index or 0) >= count:
            raise DeviceError(
                f"device {device}: this machine has {count} CUDA devices", hint="vidspec doctor lists the devices"
            )
    if place.type == "mps" and not torch.backends.mps.is_available():
        raise DeviceError("device mps is not available here", hint="vidspec doctor lists the devices")
    chosen = _DTYPES.get(dtype) or (torch.bfloat16 if place.type == "cuda" else torch.float32)
    return Placement(place, chosen, NAME if attention == "auto" else attention)


def embedded_folder(role: str) -> Path:
    """The folder of the built-in ``target`` or ``draft``."""
    return Path(__file__).parents[1] / "embedded" / "pair" / role


def load(name: str, where: Placement) -> VideoLanguageModel:
    """Load a model of a supported family.

    Args:
        name: hub id, or a folder as ``save_pretrained`` writes it.
        where: device, dtype and attention.

    Raises:
        ModelError: not found (says where it looked and what would fetch it), unreadable, or of another family.
        DeviceError: the attention kernel is not installed, or memory does not suffice.
    """
    import transformers

    transformers.utils.logging.set_verbosity_error()
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)  # each retry would be a line on stderr
    transformers.utils.logging.disable_progress_bar()
    folder = Path(name).expanduser()
    looks_local = folder.exists() or name.startswith((".", "/", "~"))
    source = str(folder) if looks_local else name
    if looks_local and not (folder / "config.json").is_file():
        raise ModelError(f"{name}: no config.json in this folder", hint="name a folder with a saved model, or a hub id")
    try:
        config = transformers.AutoConfig.from_pretrained(source)
    except (OSError, ValueError) as error:
        raise _missing(name, error) from error
    family = str(config.model_type)
    if family not in families.names() or family not in _CLASSES:
        raise ModelError(
            f"{name}: models of type {family} are not supported; supported: {', '.join(sorted(_CLASSES))}",
            kind="family",
        )
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(source)
        model, found = getattr(transformers, _CLASSES[family]).from_pretrained(
            source, dtype=where.dtype, output_loading_info=True
        )
        processor, template = _processor(source), _template(source)
    except (OSError, ValueError, RuntimeError, KeyError, SafetensorError) as error:
        raise _missing(name, error) from error
    if absent := sorted(found["missing_keys"]):
        # transformers fills them with random numbers and only logs it
        raise ModelError(f"{name}: {len(absent)} weights are not in the files, {absent[0]} first", kind="unreadable")
    try:
        model = model.to(where.device)
    except torch.OutOfMemoryError as error:
        raise DeviceError(
            f"{name} does not fit on {where.device}", hint="--dtype bfloat16, or a smaller model", kind="memory"
        ) from error
    try:
        adapter = families.get(family)(name, model, tokenizer, processor, template, where.attention)
    except (ImportError, ValueError) as error:
        raise DeviceError(
            f"attention {where.attention}: {_first_line(error)}", hint="vidspec doctor lists the kernels found"
        ) from error
    return adapter  # type: ignore[no-any-return]


def check_pair(target: VideoLanguageModel, draft: VideoLanguageModel) -> None:
    """Refuse pairs that cannot speculate: of two families, tokenizers or vocabularies.

    Heads padded to different sizes are fine: both models' logits are cut to what the tokenizer knows.

    Raises:
        ModelError: with the difference.
    """
    if target.family != draft.family:
        raise ModelError(f"target {target.name} is of family {target.family}, draft {draft.name} of {draft.family}")
    if target.tokenizer is not draft.tokenizer:
        ours, theirs = target.tokenizer.get_vocab(), draft.tokenizer.get_vocab()
        if ours != theirs:
            differing = sum(theirs.get(token) != index for token, index in ours.items())
            raise ModelError(
                f"target {target.name} and draft {draft.name} have different tokenizers "
                f"({len(ours)} and {len(theirs)} entries, {differing} of the target's differ)",
                hint="take both from one family and generation",
                kind="tokenizer",
            )
    if target.vocabulary != draft.vocabulary:
        raise ModelError(
            f"heads of {target.name} and {draft.name} share no common vocabulary "
            f"({target.vocabulary} and {draft.vocabulary} ids)",
            kind="tokenizer",
        )


def _missing(name: str, error: Exception) -> ModelError:
    if Path(name).expanduser().exists():
        return ModelError(f"{name}: cannot be loaded: {_first_line(error)}", kind="unreadable")
    import huggingface_hub.constants as hub

    offline = " (offline mode is on)" if hub.HF_HUB_OFFLINE else ""
    cache = os.environ.get("HF_HUB_CACHE") or hub.HF_HUB_CACHE
    return ModelError(
        f"{name}: no such folder, not in the cache {cache}, and the hub did not give it{offline}: {_first_line(error)}",
        hint=f"fetch it where there is a network: hf download {name}",
        kind="missing",
    )


def _first_line(error: Exception) -> str:
    text = str(error).strip()
    return text.splitlines()[0].rstrip(".:") if text else type(error).__name__


def _file(source: str, name: str) -> str | None:
    from transformers.utils.hub import cached_file

    try:
        found = cached_file(
            source,
            name,
            _raise_exceptions_for_missing_entries=False,
            _raise_exceptions_for_connection_errors=False,
            _raise_exceptions_for_gated_repo=False,
        )
    except OSError:
        return None
    return Path(found).read_text(encoding="utf-8") if found else None


def _processor(source: str) -> dict[str, Any]:
    """The video processor's config, searched in transformers 5's order: its part of the processor's, else its own."""
    if (text := _file(source, "processor_config.json")) and (nested := json.loads(text).get("video_processor")):
        return dict(nested)
    for name in ("video_preprocessor_config.json", "preprocessor_config.json"):
        if text := _file(source, name):
            return dict(json.loads(text))
    return {}


def _template(source: str) -> str | None:
    if text := _file(source, "chat_template.jinja"):
        return text
    if text := _file(source, "chat_template.json"):
        return str(json.loads(text)["chat_template"])
    return None
