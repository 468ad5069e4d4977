"""Find and read the config of a checkpoint by hub id or folder, or say why it cannot be read. Loads no weights."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from vidspec.errors import ModelError, VidspecError, reason_of
from vidspec.models.base import StockConfig, families
from vidspec.models.hub import download_hint, is_local, refuse_gguf, retries_offline, unreachable_reason
from vidspec.models.machine import model_cache
from vidspec.models.quantization_config import MODELOPT_FILE, check_method, modelopt_settings, quantization_config
from vidspec.models.weight_files import check_files, optional_file, read_text
from vidspec.registry import nearest

#: Largest values of config keys, each far above those of published models.
LARGEST_SIZES: Mapping[str, int] = {
    r"(^|_)(layers|depth)$|num_experts$": 4096,
    r"hidden_size$|intermediate_size$|(^|_)(dim|heads)$": 1 << 20,
    r"vocab_size$": 1 << 24,
}
#: Classes whose configs claim another family's ``model_type``, and whose towers differ from it.
OTHER_CLASSES = ("TarsierForConditionalGeneration",)
#: Types of language models without vision, which can draft.
TEXT_TYPES = frozenset({"qwen2", "qwen3", "llama"})
#: Kinds of heads, as the drafters name them, and in words.
HEADS = {"eagle3": "EAGLE-3", "dflash": "DFlash"}
#: Kinds of heads by a word in the ``architectures`` of their configs.
_HEAD_WORDS = {"eagle3": "eagle3", "dflash": "dflash", "dspark": "dflash"}
#: Keys of any head's config that describe no computation, or are other names of those of a block.
_BOOKKEEPING = (
    *("auto_map", "is_decoder", "rope_scaling", "rope_theta", "torch_dtype"),
    *("speculators_config", "speculators_model_type", "speculators_version"),
)
_PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl")


def any_config(name: str) -> StockConfig:
    """Read the config of a model of any type; no weights are read.

    Raises:
        ModelError: not found, unreadable, or it needs code of its repository.
    """
    source = weight_source(name)
    check_sizes(name, source)
    with checkpoint_errors(name):
        config = _config(source)
    check_kernels(name, source)
    return config


@retries_offline
def read_config(name: str, *, text: bool = False) -> StockConfig:
    """Read the config of a model of a supported family; no weights are read.

    Args:
        name: hub id, or a folder written by ``save_pretrained``.
        text: also accept a language model without vision.

    Raises:
        ModelError: not found, unreadable, of another family, or it needs code of its repository.
    """
    source = weight_source(name)
    if (head := head_kind(name)) is not None:
        raise ModelError(
            f"{name}: is a head of another model ({HEADS[head]}), not a model",
            hint=f"--profile {head} --draft {name}",
            kind="family",
        )
    refuse_assistant(name, source)
    check_sizes(name, source)
    claimed = claimed_config(source).get("model_type")
    for architecture in _architectures(source):
        if architecture in OTHER_CLASSES:
            raise unsupported_error(name, architecture)
    try:
        config = _config(source)
    except VidspecError:
        raise
    except Exception as error:  # any exception that a config makes the library raise is the config's fault
        if _has_file(source, "adapter_config.json"):
            raise ModelError(
                f"{name}: is an adapter (LoRA), not a model",
                hint=f"give --target BASE --adapter {name}, with the model it was trained on as BASE",
            ) from error
        needs_code = "trust_remote_code" in str(error)
        if isinstance(claimed, str) and not needs_code and claimed not in families and claimed not in TEXT_TYPES:
            raise unsupported_error(name, claimed) from error
        raise load_error(name, error) from error
    check_kernels(name, source)
    if (settings := quantization_config(config)) is not None:
        check_method(name, settings)
    family = str(config.model_type)
    text_only = family not in families and family in TEXT_TYPES
    if family not in families and not (text_only and text):
        raise unsupported_error(name, family, blind=text_only)
    return config


def check_sizes(name: str, source: str) -> None:
    """Refuse a config whose model no memory holds, before the model is built.

    Args:
        name: the model name the user gave.
        source: its hub id or folder.

    Raises:
        ModelError: the file is too large, or names the first size that no published model comes near.
    """
    for key, value in _entries(claimed_config(source)):
        most = next((most for pattern, most in LARGEST_SIZES.items() if re.search(pattern, key)), None)
        if most is not None and isinstance(value, int) and value > most:
            raise ModelError(f"{name}: {key} {value} in its config is more than {most}", kind="unreadable")


def _entries(config: object) -> Iterator[tuple[str, object]]:
    """Yield the keys and values of a raw config and of all objects in it."""
    parts = [config]
    while parts:
        part = parts.pop()
        for key, value in part.items() if isinstance(part, dict) else ():
            yield key, value
            parts.append(value)


def refuse_assistant(name: str, source: str) -> None:
    """Refuse the assistants of Gemma 4, which read the keys and values of their target.

    Raises:
        ModelError: it is one.
    """
    if claimed_config(source).get("model_type") in ("gemma4_assistant", "gemma4_unified_assistant"):
        raise ModelError(
            f"{name}: is an assistant of Gemma 4, which drafts from the keys and values of its target: not supported",
            hint="a smaller Gemma 4 drafts: --profile specvlm --draft google/gemma-4-E2B-it",
            kind="family",
        )


def check_kernels(name: str, source: str) -> None:
    """Refuse a config that names kernels of the hub, which ``transformers`` would download and run.

    Args:
        name: the model name the user gave.
        source: its hub id, its folder, or its config file.

    Raises:
        ModelError: names the kernel.
    """
    file = Path(source)
    config = json.loads(
        (file.read_text(encoding="utf-8") if file.is_file() else read_text(source, "config.json")) or "{}"
    )
    for key, value in _entries(config):
        values = list(value.values()) if isinstance(value, dict) else [value]
        if key.strip("_").endswith("_implementation") and any("/" in str(item) for item in values):
            raise ModelError(f"{name}: its config names a kernel to fetch ({key} {value}), which is not run")


def unsupported_error(name: str, family: str, *, blind: bool = False) -> ModelError:
    """Return the error for a model of an unsupported family; ``blind`` if it is a language model that can draft."""
    valid = families.names()
    suggestion = f"; nearest: {near}" if (near := nearest(family, valid)) else ""
    return ModelError(
        f"{name}: models of type {family} are not supported{suggestion}; supported: {', '.join(valid)}",
        hint="a language model without vision can draft: --profile onsd --draft" if blind else None,
        kind="family",
    )


@contextmanager
def checkpoint_errors(name: str) -> Iterator[None]:
    """Context in which any exception of a library is the fault of a checkpoint's files: a :class:`ModelError`."""
    try:
        yield
    except VidspecError:
        raise
    except Exception as error:
        raise load_error(name, error) from error


def load_error(name: str, error: Exception) -> ModelError:
    """Return the error for a model that ``transformers`` could not load, with the places searched and a hint."""
    if "trust_remote_code" in str(error):
        return ModelError(
            f"{name}: needs its own code, which is not run",
            hint="vidspec models lists models that need none",
            kind="unreadable",
        )
    folder = Path(name).expanduser()
    if folder.exists():
        pickled = sorted(file.name for pattern in _PICKLES for file in folder.glob(pattern))
        if pickled and not any(folder.glob("*.safetensors")):
            return ModelError(
                f"{name}: its weights are pickled ({pickled[0]}), and reading a pickle may run code",
                hint="convert them to model.safetensors in the training environment",
                kind="unreadable",
            )
        return ModelError(f"{name}: cannot be loaded: {reason_of(error)}", kind="unreadable")
    message = f"{name}: is neither a folder nor in the cache {model_cache()}, and could not be fetched from the hub"
    if reason := unreachable_reason():
        message = f"the hub cannot be reached ({reason}), and the cache {model_cache()} lacks files of {name}"
    return ModelError(f"{message}: {reason_of(error)}", hint=download_hint(name), kind="missing")


def weight_source(name: str, holding: str = "a saved model, or a hub id") -> str:
    """Return the source that ``transformers`` takes: a hub id, or an expanded path.

    Raises:
        ModelError: the folder is missing, has no config, or has a file that :func:`check_files` refuses.
    """
    refuse_gguf(name)
    if not is_local(name):
        return name
    folder = Path(name).expanduser()
    if not folder.exists():
        raise ModelError(f"{name}: no such folder", hint=f"name a folder with {holding}")
    if not any((folder / f"{kind}config.json").is_file() for kind in ("", "adapter_")):
        raise ModelError(f"{name}: no config.json in this folder", hint=f"name a folder with {holding}")
    check_files(name, folder)
    return str(folder)


def claimed_config(source: str) -> dict[str, object]:
    """Return the raw config.json; empty if it cannot be read."""
    try:
        config = json.loads(read_text(source, "config.json") or "{}")
    except (OSError, VidspecError, ValueError, RecursionError):  # loading the model reports the error
        return {}
    return config if isinstance(config, dict) else {}


def head_kind(name: str) -> str | None:
    """Return the drafter that takes the head of a hub id or folder, loadable or not; None if its config names none."""
    named = " ".join(_architectures(str(Path(name).expanduser()) if is_local(name) else name)).lower()
    return next((kind for word, kind in _HEAD_WORDS.items() if word in named), None)


def _architectures(source: str) -> list[str]:
    """Return the classes that a raw config names."""
    found = claimed_config(source).get("architectures")
    return [str(one) for one in found] if isinstance(found, list) else []


def _config(source: str) -> StockConfig:
    import transformers

    transformers.utils.logging.set_verbosity_error()
    for library in ("huggingface_hub", "accelerate"):  # they log a line per retry and per offloaded weight
        logging.getLogger(library).setLevel(logging.ERROR)
    config = transformers.AutoConfig.from_pretrained(source, trust_remote_code=False)
    has_audio = getattr(config, "audio_config", None) is not None or "SALMONN" in str(config.architectures)
    if config.model_type == "qwen2_5_vl" and has_audio:
        from vidspec.models.video_salmonn import salmonn_config

        config = salmonn_config(source, config)
    known = quantization_config(config) is not None
    if not known and (settings := modelopt_settings(json.loads(read_text(source, MODELOPT_FILE) or "{}"))):
        config.quantization_config = settings
    return config


def _has_file(source: str, name: str) -> bool:
    """Return True if a hub id or folder has a file; False if that cannot be determined."""
    try:
        return optional_file(source, name) is not None
    except (OSError, VidspecError):
        return False


def unread_keys_note(name: str, parts: Iterable[Mapping[str, Any]], read: Collection[str]) -> tuple[str, ...]:
    """Return the note on keys of a head's config that are not read; empty without any.

    Args:
        name: of the head.
        parts: its config, and the sections that are read in it.
        read: keys that are read beside those of its blocks.
    """
    import transformers

    known = {*read, *transformers.Qwen3Config().to_dict(), *_BOOKKEEPING}
    unread = {key for part in parts for key, value in part.items() if key not in known and value not in (None, False)}
    return (f"{name}: keys of its config that are not read: {', '.join(sorted(unread))}",) if unread else ()
