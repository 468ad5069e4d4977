"""Load models by hub id or folder through ``transformers``, and check that two of them make a pair."""

from __future__ import annotations

import importlib.util
import json
import logging
import os
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch

from vidspec import memory
from vidspec.engine.device import memory_for
from vidspec.engine.quantised import Precision
from vidspec.errors import DeviceError, ModelError, VidspecError
from vidspec.models.adapter import Adapter
from vidspec.models.base import StockConfig, StockModel, VideoLanguageModel
from vidspec.models.checkpoint_tensors import check_plain, check_report
from vidspec.models.hub import download_hint, is_local, retries_offline, show_downloads
from vidspec.models.identity import is_related
from vidspec.models.lora import merge_lora
from vidspec.models.placement import Placement, fit_placement
from vidspec.models.processor_files import read_processor, read_template, read_text
from vidspec.models.quantised import (
    MODELOPT_FILE,
    KeptCodes,
    check_method,
    dequantised_tensors,
    modelopt_settings,
    quantization_config,
    weight_sizes,
    without_quantization,
)
from vidspec.models.unsupported import KIN, unsupported_error
from vidspec.models.weight_files import optional_file, stored_tensors
from vidspec.registry import families

__all__ = [
    "SAFE",
    "any_config",
    "check_kernels",
    "check_pair",
    "embedded_folder",
    "empty_model",
    "is_head",
    "load_error",
    "load_model",
    "load_weights",
    "read_config",
    "weight_source",
]

_PAIRS = {"embedded": "pair", "embedded-qwen": "pair_qwen"}
#: Arguments of ``from_pretrained`` that run no code of a repository and read no pickle.
SAFE: Mapping[str, bool] = {
    "trust_remote_code": False,
    "use_safetensors": True,
    "weights_only": True,
    "ignore_mismatched_sizes": True,  # reported in the loading info, and refused there
    "output_loading_info": True,
}
_PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl")


def embedded_folder(pair: str, role: str) -> Path:
    """Return the folder of the ``target`` or ``draft`` of the built-in pair ``embedded`` or ``embedded-qwen``."""
    return Path(__file__).parents[1] / "embedded" / _PAIRS[pair] / role


@retries_offline
def load_model(name: str, where: Placement, *, text: bool = False) -> VideoLanguageModel:
    """Load a model of a supported family; code in its repository is never run.

    Args:
        name: hub id, or a folder written by ``save_pretrained``.
        where: device, dtype and decoder.
        text: also accept a language model without vision, for a draft that does not see the video.

    Raises:
        ModelError: not found (with the places searched and a download command), unreadable, or of another family.
        DeviceError: the decoder does not support the model, or out of memory.
    """
    import transformers

    from vidspec.models.text_only import TextModel

    config = read_config(name, text=text)
    show_downloads()
    source, family = weight_source(name), str(config.model_type)
    text_only = family not in families.names()
    kind: Any = TextModel if text_only else families.get(family)
    try:
        if not where.settled:
            empty = empty_model(kind, config, where.dtype)
            where = fit_placement(
                where, *weight_sizes(empty, kind.language_of(empty), quantization_config(config), where)[:2]
            )
        tokenizer = transformers.AutoTokenizer.from_pretrained(source, trust_remote_code=False)
        tokenizer.encode("?")  # some tokenizer settings are read with the first text
        processor, template = ({}, None) if text_only else (read_processor(name, source), read_template(source))
        model, codes = _load_with_codes(name, source, where, kind, config, text=text_only)
        if where.adapter is not None:
            merge_lora(where.adapter, name, model)
    except VidspecError:
        raise
    except Exception as error:
        raise load_error(name, error) from error
    try:
        adapter = kind(name, model, tokenizer, processor, template)
        adapter.codes = codes
        if where.vision is not None:
            adapter.set_vision_dtype(where.vision)
    except VidspecError:
        raise
    except Exception as error:
        raise load_error(name, error) from error
    if getattr(config, "audio_config", None) is not None:
        adapter.note = f"{name}: its audio branch is left out; it describes the frames, not the sound"
    prepare_decoder(adapter, where)
    return adapter  # type: ignore[no-any-return]


def empty_model(kind: Any, config: StockConfig, dtype: torch.dtype) -> StockModel:
    """Build the stock model of a config on torch's meta device, without weights."""
    import transformers

    text = str(config.model_type) not in families.names()
    automatic: Any = transformers.AutoModelForCausalLM if text else transformers.AutoModelForImageTextToText
    with torch.device("meta"):
        return automatic.from_config(kind.config_of(config), dtype=dtype, trust_remote_code=False)


def any_config(name: str) -> StockConfig:
    """Read the config of a model of any type; no weights are read.

    Raises:
        ModelError: not found, unreadable, or it needs code of its repository.
    """
    source = weight_source(name)
    try:
        config = _config(source)
    except VidspecError:
        raise
    except Exception as error:  # any exception that a config makes the library raise is the config's fault
        raise load_error(name, error) from error
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
    from vidspec.models.text_only import TYPES

    source = weight_source(name)
    if is_head(name):
        raise ModelError(
            f"{name}: is a head of another model (EAGLE-3), not a model",
            hint=f"--profile eagle3 --draft {name}",
            kind="family",
        )
    try:
        config = _config(source)
    except VidspecError:
        raise
    except Exception as error:  # any exception that a config makes the library raise is the config's fault
        if _has_file(source, "adapter_config.json"):
            raise ModelError(
                f"{name}: is an adapter (LoRA), not a model",
                hint=f"--target BASE --adapter {name}, with the model it was trained on as BASE",
            ) from error
        kind = claimed_config(source).get("model_type")
        needs_code = "trust_remote_code" in str(error) and kind not in KIN
        if isinstance(kind, str) and not needs_code and kind not in families.names() and kind not in TYPES:
            raise unsupported_error(name, kind) from error
        raise load_error(name, error) from error
    check_kernels(name, source)
    if (settings := quantization_config(config)) is not None:
        check_method(name, settings)
    family = str(config.model_type)
    text_only = family not in families.names() and family in TYPES
    if family not in families.names() and not (text_only and text):
        raise unsupported_error(name, family, blind=text_only)
    return config


def prepare_decoder(adapter: Adapter, where: Placement) -> None:
    """Choose the decoder of a loaded model.

    cuDNN's attention is turned off on CUDA: it plans again for every key length, in every thread.

    Raises:
        DeviceError: a fused decoder or quantised weights were requested, and the model supports neither.
    """
    if where.device.type == "cuda":
        torch.backends.cuda.enable_cudnn_sdp(False)
        if where.dtype is torch.float32:  # convolutions of vision towers round to TF32 otherwise
            torch.backends.cudnn.allow_tf32 = False
    alternatives = (
        ["models.packed: false", "--dtype bfloat16"] if where.device.type == "cpu" else ["models.device_map: auto"]
    )
    if where.weights != "int4":
        alternatives.append("models.weights: int4")
    if where.decoder != "stock":
        alternatives.append("models.decoder: stock")
    hint = ", ".join([*alternatives, "or a smaller model"])
    try:
        with memory_for(f"{adapter.name}: laying out its weights on {where.device}", hint):
            adapter.prepare(where.decoder, packed=where.packed, wanted=where.weights)
    except ValueError as error:
        option, alternative = (
            ("models.decoder fused", "models.decoder: auto")
            if where.decoder == "fused"
            else (f"weights as {where.weights}", "models.weights: null and draft.precision: as-target")
        )
        raise DeviceError(f"{option}: {adapter.name}: {error}", hint=f"nearest valid choice: {alternative}") from error
    memory.release_memory()  # weights in the files' dtype and layout


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
    parts = [config]
    while parts:
        part = parts.pop()
        for key, value in part.items() if isinstance(part, dict) else ():
            values = list(value.values()) if isinstance(value, dict) else [value]
            if key.strip("_").endswith("_implementation") and any("/" in str(item) for item in values):
                raise ModelError(f"{name}: its config names a kernel to fetch ({key} {value}), which is not run")
            parts += [value]


def _load_with_codes(
    name: str, source: str, where: Placement, kind: Any, config: StockConfig, *, text: bool = False
) -> tuple[StockModel, Precision | None]:
    """Load the stock model of a config on its devices; a causal language model if ``text``.

    Weights stored as codes are dequantised, or kept as codes by the blocks; the precision of kept codes is returned.
    """
    import transformers

    settings, config = quantization_config(config), kind.config_of(config)
    options: dict[str, object] = {}
    if where.quantization is not None:
        _require_package("bitsandbytes", f"models.quantization {where.quantization}")
        options["quantization_config"] = transformers.BitsAndBytesConfig(
            load_in_8bit=where.quantization == "8bit",
            load_in_4bit=where.quantization == "4bit",
            bnb_4bit_compute_dtype=where.dtype,
            bnb_4bit_quant_type="nf4",
        )
    if where.device_map is not None or options:
        _require_package("accelerate", "models.device_map" if where.device_map is not None else "models.quantization")
        split = where.device_map
        options["device_map"] = (
            {"": str(where.device)} if split is None else split if isinstance(split, str) else {**split}
        )
    automatic: Any = transformers.AutoModelForCausalLM if text else transformers.AutoModelForImageTextToText
    if settings is None:
        return load_weights(name, source, automatic, where, None, options, config=config), None
    config = without_quantization(config)
    with torch.device("meta"):  # loading without files needs the model's own class, not an auto class
        own = type(automatic.from_config(config, trust_remote_code=False))
    # Fetched before the weights: a hub that fails must not change the end tokens.
    generation = optional_file(source, "generation_config.json")
    load = partial(load_weights, name, None, own, where, None, options, config=config)
    kept = KeptCodes(where)
    attach = partial(kept.attach, language=kind.language_of)
    try:
        tensors = dequantised_tensors(stored_tensors(source), settings, kept if where.keeps_codes else None)
        check_plain(name, tensors)
        model = load(attach, state_dict=tensors)
    except LookupError:  # the family merges weights while loading
        kept = KeptCodes(where)
        model = load(state_dict=dequantised_tensors(stored_tensors(source), settings))
    if generation is not None:  # otherwise it follows from the config
        model.generation_config = transformers.GenerationConfig.from_pretrained(generation.parent)
    return model, kept.precision


def load_weights(
    name: str,
    source: str | None,
    automatic: Any,
    where: Placement,
    hint: str | None,
    options: Mapping[str, object],
    finish: Callable[[StockModel], None] = lambda model: None,
    **known: object,
) -> StockModel:
    """Load a stock model with its weights, on its devices.

    Args:
        name: the name the user gave.
        source: its hub id or folder; None if ``known`` has its ``state_dict``.
        automatic: the class of ``transformers`` that loads it.
        where: device and dtype.
        hint: for missing weights.
        options: device placement and quantization; empty for ``where.device``.
        finish: called with the model before it is moved to the device.
        known: further arguments of ``from_pretrained``.

    Raises:
        ModelError: weights are missing, of another shape, or unused.
        DeviceError: out of memory.
    """
    place = "on all devices together" if where.device_map is not None else f"on {where.device}"
    alternatives = "--dtype bfloat16, models.device_map: auto, models.quantization: 4bit, or a smaller model"
    with memory_for(f"{name} does not fit {place}", alternatives):
        model, info = automatic.from_pretrained(source, dtype=where.dtype, **SAFE, **options, **known)
        if source is not None:
            check_plain(name, stored_tensors(source))
        check_report(name, info, hint)
        finish(model)
        return model if options else model.to(where.device)


def _require_package(package: str, key: str) -> None:
    if importlib.util.find_spec(package) is None:
        raise DeviceError(f"{key}: {package} is not installed", hint=f"pip install {package}")


def check_pair(target: VideoLanguageModel, draft: VideoLanguageModel) -> None:
    """Refuse a pair with unrelated families, different tokenizers or different vocabularies.

    A language model of the same vocabulary may draft for any family if it does not see the video.

    Heads padded to different sizes are fine: both models' logits are cut to the tokenizer's ids. LLaVA-1.5 and
    LLaVA-NeXT may draft for each other, as in TABED; their visual tokens differ, so pruning does not carry over.

    Raises:
        ModelError: names the difference.
    """
    if not is_related(target.family, draft.family):
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
        return ModelError(f"{name}: cannot be loaded: {_first_line(error)}", kind="unreadable")
    import huggingface_hub.constants as hub

    offline = " (offline mode is on)" if hub.HF_HUB_OFFLINE else ""
    cache = os.environ.get("HF_HUB_CACHE") or hub.HF_HUB_CACHE
    return ModelError(
        f"{name}: no such folder, not in the cache {cache}, and the hub did not give it{offline}: {_first_line(error)}",
        hint=download_hint(name),
        kind="missing",
    )


def weight_source(name: str, holding: str = "a saved model, or a hub id") -> str:
    """Return the source that ``transformers`` takes: a hub id, or an expanded path.

    Raises:
        ModelError: the folder is missing or has no config.
    """
    if not is_local(name):
        return name
    folder = Path(name).expanduser()
    if not folder.exists():
        raise ModelError(f"{name}: no such folder", hint=f"name a folder with {holding}")
    if not any((folder / f"{kind}config.json").is_file() for kind in ("", "adapter_")):
        raise ModelError(f"{name}: no config.json in this folder", hint=f"name a folder with {holding}")
    return str(folder)


def claimed_config(source: str) -> dict[str, Any]:
    """Return the raw config.json; empty if it cannot be read."""
    try:
        config = json.loads(read_text(source, "config.json") or "{}")
    except (OSError, VidspecError, ValueError, RecursionError):  # loading the model reports the error
        return {}
    return config if isinstance(config, dict) else {}


def is_head(name: str) -> bool:
    """Return True if the config of a hub id or folder names an EAGLE-3 head, loadable or not."""
    architectures = claimed_config(str(Path(name).expanduser()) if is_local(name) else name).get("architectures")
    return isinstance(architectures, list) and any(
        "eagle3" in str(architecture).lower() for architecture in architectures
    )


def _config(source: str) -> StockConfig:
    import transformers

    transformers.utils.logging.set_verbosity_error()
    for library in ("huggingface_hub", "accelerate"):  # they log a line per retry and per offloaded weight
        logging.getLogger(library).setLevel(logging.ERROR)
    config = transformers.AutoConfig.from_pretrained(source, trust_remote_code=False)
    known = quantization_config(config) is not None
    if not known and (settings := modelopt_settings(json.loads(read_text(source, MODELOPT_FILE) or "{}"))):
        config.quantization_config = settings
    return config


def _first_line(error: Exception) -> str:
    text = str(error).strip()
    return text.splitlines()[0].rstrip(".:") if text else type(error).__name__


def _has_file(source: str, name: str) -> bool:
    """Return True if a hub id or folder has a file; False if that cannot be determined."""
    try:
        return optional_file(source, name) is not None
    except (OSError, VidspecError):
        return False
