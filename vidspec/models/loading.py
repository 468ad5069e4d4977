"""Find and load models by hub id or folder through ``transformers``, and check that two of them make a pair."""

from __future__ import annotations

import importlib.util
import json
import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors import SafetensorError

from vidspec.engine.attention import NAME
from vidspec.engine.packed import pack
from vidspec.errors import DeviceError, ModelError
from vidspec.models.base import VideoLanguageModel
from vidspec.models.hub import is_local, patient, show_downloads
from vidspec.models.identity import related
from vidspec.registry import families

__all__ = ["Placement", "check_pair", "embedded_folder", "load", "placement", "unloadable"]

_PAIRS = {"embedded": "pair", "embedded-qwen": "pair_qwen"}
_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True)
class Placement:
    """Where and how a model runs.

    Attributes:
        device: of the whole model.
        dtype: of weights, KV cache and logits; where weights are quantized, of what is computed with them.
        attention: ``vidspec`` or a name ``transformers`` knows.
        device_map: how accelerate splits the model instead: a strategy (``auto``, ``balanced``, ``balanced_low_0``,
            ``sequential``), or the device of each module, ``cpu`` and ``disk`` among them.
        quantization: ``8bit`` or ``4bit``, by bitsandbytes.
        packed: whether linear layers keep their weights packed, see :func:`~vidspec.engine.packed.pack`.
    """

    device: torch.device
    dtype: torch.dtype
    attention: str = NAME
    device_map: str | Mapping[str, int | str] | None = None
    quantization: str | None = None
    packed: bool | Literal["auto"] = False


def placement(
    device: str = "auto",
    dtype: str = "auto",
    attention: str = "auto",
    device_map: str | Mapping[str, int | str] | None = None,
    quantization: str | None = None,
    packed: bool | Literal["auto"] = "auto",
) -> Placement:
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
    kept = packed if place.type == "cpu" and chosen is torch.float32 else False
    return Placement(place, chosen, NAME if attention == "auto" else attention, device_map, quantization, kept)


def embedded_folder(pair: str, role: str) -> Path:
    """The folder of the ``target`` or ``draft`` of the built-in pair ``embedded`` or ``embedded-qwen``."""
    return Path(__file__).parents[1] / "embedded" / _PAIRS[pair] / role


@patient
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
    for chatty in ("huggingface_hub", "accelerate"):  # each retry, each offloaded weight would be a line on stderr
        logging.getLogger(chatty).setLevel(logging.ERROR)
    show_downloads()
    folder = Path(name).expanduser()
    looks_local = is_local(name)
    source = str(folder) if looks_local else name
    if looks_local and not any((folder / f"{kind}config.json").is_file() for kind in ("", "adapter_")):
        raise ModelError(f"{name}: no config.json in this folder", hint="name a folder with a saved model, or a hub id")
    try:
        config = transformers.AutoConfig.from_pretrained(source)
    except (OSError, ValueError) as error:
        if _file(source, "adapter_config.json"):
            raise ModelError(
                f"{name}: is an adapter (LoRA), not a model", hint="merge it into its base model and name the result"
            ) from error
        raise unloadable(name, error) from error
    family = str(config.model_type)
    if family not in families.names():
        raise ModelError(
            f"{name}: models of type {family} are not supported; supported: {', '.join(families.names())}",
            kind="family",
        )
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(source)
        model = _weights(name, source, where)
        processor, template = _processor(source), _template(source)
    except (OSError, ValueError, RuntimeError, KeyError, SafetensorError) as error:
        raise unloadable(name, error) from error
    try:
        adapter = families.get(family)(name, model, tokenizer, processor, template, where.attention)
    except (ImportError, ValueError) as error:
        raise DeviceError(
            f"attention {where.attention}: {_first_line(error)}", hint="vidspec doctor lists the kernels found"
        ) from error
    if getattr(config, "audio_config", None) is not None:
        adapter.note = f"{name}: its audio branch is left out; it describes what is seen, not what is heard"
    pack(adapter.model, where.packed)
    return adapter  # type: ignore[no-any-return]


def _weights(name: str, source: str, where: Placement) -> Any:
    """The stock model with its weights, on its devices."""
    import transformers

    options: dict[str, Any] = {}
    if where.quantization is not None:
        _require("bitsandbytes", f"models.quantization {where.quantization}")
        options["quantization_config"] = transformers.BitsAndBytesConfig(
            load_in_8bit=where.quantization == "8bit",
            load_in_4bit=where.quantization == "4bit",
            bnb_4bit_compute_dtype=where.dtype,
            bnb_4bit_quant_type="nf4",
        )
    if where.device_map is not None or options:
        _require("accelerate", "models.device_map" if where.device_map is not None else "models.quantization")
        split = where.device_map
        options["device_map"] = (
            {"": str(where.device)} if split is None else split if isinstance(split, str) else {**split}
        )
    automatic: Any = transformers.AutoModelForImageTextToText
    try:
        model, found = automatic.from_pretrained(source, dtype=where.dtype, output_loading_info=True, **options)
        if absent := sorted(found["missing_keys"]):
            # transformers fills them with random numbers and only logs it
            raise ModelError(
                f"{name}: {len(absent)} weights are not in the files, {absent[0]} first", kind="unreadable"
            )
        return model if options else model.to(where.device)
    except torch.OutOfMemoryError as error:
        place = "on all devices together" if where.device_map is not None else f"on {where.device}"
        raise DeviceError(
            f"{name} does not fit {place}",
            hint="--dtype bfloat16, models.device_map: auto, models.quantization: 4bit, or a smaller model",
            kind="memory",
        ) from error


def _require(package: str, key: str) -> None:
    if importlib.util.find_spec(package) is None:
        raise DeviceError(f"{key}: {package} is not installed", hint=f"pip install {package}")


def check_pair(target: VideoLanguageModel, draft: VideoLanguageModel) -> None:
    """Refuse pairs that cannot speculate: of two families, tokenizers or vocabularies.

    Heads padded to different sizes are fine: both models' logits are cut to what the tokenizer knows. LLaVA-1.5 may
    draft for LLaVA-NeXT and the other way round, as in TABED; what is pruned for the one means nothing to the other.

    Raises:
        ModelError: with the difference.
    """
    if not related(target.family, draft.family):
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


def unloadable(name: str, error: Exception) -> ModelError:
    """The error for a model that ``transformers`` could not load: where it looked, and what would fetch it."""
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
    """The config of the video processor, else the image processor's, searched in transformers 5's order: its part of
    the processor's, else its own file."""
    whole = json.loads(_file(source, "processor_config.json") or "{}")
    if nested := whole.get("video_processor") or whole.get("image_processor"):
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
