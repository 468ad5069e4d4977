"""Locate and read the safetensors of a checkpoint, in a folder or on the hub."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import torch

from vidspec.errors import ModelError, reason_of
from vidspec.files import LFS_HINT, is_lfs_pointer

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
