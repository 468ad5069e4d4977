"""Files of a checkpoint, in a folder or on the hub: safetensors, processor settings and chat template; their checks."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypedDict, cast

import torch

from vidspec.engine.stock_types import StockTokenizer
from vidspec.errors import ModelError, reason_of
from vidspec.files import LFS_HINT, decode_text, is_lfs_pointer

#: Most bytes of the files that are read whole, by name. Published configs and templates have at most some 100 KB,
#: tokenizers 35 MB, indexes 10 MB.
LARGEST: Mapping[str, int] = {
    r"(tokenizer|vocab)\.json|merges\.txt|.*\.index\.json|.*\.(tiktoken|model)": 128 << 20,
    r".*config\.json|(special_tokens_map|added_tokens|chat_template)\.json|.*\.jinja": 16 << 20,
}


class StoredTensor(Protocol):
    """A tensor in a file, or computed from some; read when indexed with an ellipsis."""

    def __getitem__(self, index: object, /) -> torch.Tensor: ...


def weight_file(source: str, name: str) -> Path:
    """Return the path of a file of a hub id or folder, downloaded if necessary."""
    from transformers.utils.hub import cached_file

    return _checked(Path(str(cached_file(source, name))), source)


def check_files(name: str, folder: Path) -> None:
    """Refuse a folder with a file that no model comes with, before a library reads it.

    Args:
        name: the model name the user gave.
        folder: its folder.

    Raises:
        ModelError: names a file that is too large, or a pointer of Git LFS.
    """
    for file in sorted(folder.iterdir()):
        if file.suffix == ".safetensors" or any(re.fullmatch(pattern, file.name) for pattern in LARGEST):
            _checked(file, name)


def _checked(file: Path, name: str) -> Path:
    """Return a file of a checkpoint unless :func:`check_files` refuses it."""
    if not file.is_file():
        return file
    most = next((most for pattern, most in LARGEST.items() if re.fullmatch(pattern, file.name)), None)
    if most is not None and (size := file.stat().st_size) > most:
        raise ModelError(f"{name}: {file.name} has {size} bytes, more than {most}", kind="unreadable")
    if is_lfs_pointer(file):
        raise ModelError(
            f"{name}: {file.name} is a pointer of Git LFS, not the file itself", hint=LFS_HINT, kind="unreadable"
        )
    return file


def optional_file(source: str, name: str) -> Path | None:
    """Return the path of a file of a hub id or folder, downloaded if necessary; None if it does not exist.

    In offline mode a file that is not in the cache counts as absent.

    Raises:
        ModelError: the download failed, so it is unknown if the file exists.
        OSError: the repository does not exist or is gated.
    """
    import huggingface_hub.constants as hub
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError
    from transformers.utils.hub import cached_file

    try:
        path = cached_file(source, name)
    except OSError as error:
        cause = error.__cause__
        if cause is None or (hub.HF_HUB_OFFLINE and isinstance(cause, LocalEntryNotFoundError)):
            return None
        was_answered = isinstance(cause, HfHubHTTPError) and cause.response.status_code < 500
        if was_answered or not isinstance(cause, HfHubHTTPError | LocalEntryNotFoundError):
            raise
        why = cause.__cause__ if isinstance(cause.__cause__, Exception) else cause
        raise ModelError(
            f"{source}: {name} could not be fetched: {reason_of(why)}",
            hint="run the command again when the hub answers",
            kind="connection",
        ) from error
    return None if path is None else _checked(Path(path), source)


def shard_files(source: str, whole: str = "model.safetensors") -> Mapping[str, str]:
    """Return the file of each tensor as the index of a hub id or folder names it; empty without an index.

    Raises:
        ModelError: the index has another form, or names what is no file beside it.
    """
    if (index := optional_file(source, f"{whole}.index.json")) is None:
        return {}
    try:
        places = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
        names = {str(name) for name in places.values()}
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise ModelError(f"{source}: {index.name} is not an index of weights", kind="unreadable") from error
    for name in sorted(names):
        if set(name) & set("/\\\0") or name in ("", ".", ".."):
            raise ModelError(
                f"{source}: {index.name} names {name!r}, and only files beside it are read", kind="unreadable"
            )
    return dict(places)


def stored_tensors(source: str, prefix: str = "", whole: str = "model.safetensors") -> Mapping[str, StoredTensor]:
    """Return the tensors whose names begin with ``prefix``, keyed by the rest of the name; each is read when indexed.

    Args:
        source: hub id or folder.
        prefix: prefix of the names.
        whole: file with all tensors, unless an index lists several.
    """
    from safetensors import safe_open

    places = shard_files(source, whole)
    names = sorted({place for key, place in places.items() if key.startswith(prefix)}) if places else [whole]
    tensors: dict[str, StoredTensor] = {}
    for name in names:
        shard: Any = safe_open(weight_file(source, name), "pt")
        tensors |= {key[len(prefix) :]: shard.get_slice(key) for key in shard.keys() if key.startswith(prefix)}  # noqa: SIM118
    return tensors


#: Keys of the processor itself that say which tokens stand around frames (Molmo 2).
FRAME_MARKS = ("use_frame_special_tokens", "video_use_col_tokens")


def read_text(source: str, name: str) -> str | None:
    """Return the text of a file of a hub id or folder; None if there is no such file."""
    file = optional_file(source, name)
    return None if file is None else decode_text(file.read_bytes())


def read_processor(name: str, source: str) -> dict[str, Any]:
    """Read the config of the video processor, or else of the image processor.

    The search order is that of transformers 5: a section of the processor's config, then a file of its own. The key
    ``feature_extractor`` holds the audio feature extractor's config, if there is one.

    Args:
        name: the model name the user gave.
        source: its hub id or folder.

    Raises:
        ModelError: there is none, and default sizes and normalisation would differ from training.
    """
    combined, shared = (
        json.loads(read_text(source, f"{kind}_config.json") or "{}") for kind in ("processor", "preprocessor")
    )
    config = combined.get("video_processor") or combined.get("image_processor")
    if not config:
        config = json.loads(read_text(source, "video_preprocessor_config.json") or "{}") or shared
    if not config:
        raise ModelError(
            f"{name}: has neither preprocessor_config.json nor video_preprocessor_config.json, which say how frames "
            "are resized and normalised",
            hint="copy them from the model that it was made from",
            kind="unreadable",
        )
    audio = combined.get("feature_extractor") or (shared if "feature_extractor_type" in shared else None)
    marks = {key: combined[key] for key in FRAME_MARKS if key in combined}
    return {**config, **marks, **({"feature_extractor": audio} if audio else {})}


class ChatTemplate(NamedTuple):
    """A chat template, the file that it is from, and another file whose template is not read."""

    text: str
    origin: str
    unread: str | None = None


def read_template(source: str) -> ChatTemplate | None:
    """Return the processor's chat template; None if there is none.

    The order is that of ``ProcessorMixin.get_processor_dict`` in transformers 5.24, which prefers the older
    ``chat_template.json`` to ``chat_template.jinja``.
    """
    config = json.loads(read_text(source, "processor_config.json") or "{}")
    jinja, older = (read_text(source, name) for name in ("chat_template.jinja", "chat_template.json"))
    found = (
        [ChatTemplate(text, "processor_config.json")] if isinstance(text := config.get("chat_template"), str) else []
    )
    found += [ChatTemplate(str(json.loads(older)["chat_template"]), "chat_template.json")] if older else []
    found += [ChatTemplate(jinja, "chat_template.jinja")] if jinja else []
    others = [one.origin for one in found[1:] if one.text != found[0].text]
    return found[0]._replace(unread=others[0] if others else None) if found else None


def tokenizer_template(tokenizer: StockTokenizer) -> ChatTemplate | None:
    """Return the chat template in the tokenizer's config, the default one of several; None if there is none."""
    known = getattr(tokenizer, "chat_template", None)
    text = known.get("default") if isinstance(known, dict) else known
    return ChatTemplate(text, "tokenizer_config.json") if text else None


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
