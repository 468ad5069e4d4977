"""The safetensors of a checkpoint, in a folder or of the hub: where they are, and tensors read from them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import torch

__all__ = ["Stored", "file", "stored", "tensors"]


class Stored(Protocol):
    """A tensor in a file, or made from some; read when it is indexed with an ellipsis."""

    def __getitem__(self, index: object, /) -> torch.Tensor: ...


def file(source: str, name: str) -> Path:
    """Of a hub id or folder; fetched if it has to be."""
    from transformers.utils.hub import cached_file

    return Path(str(cached_file(source, name)))


def tensors(source: str, prefix: str = "") -> dict[str, torch.Tensor]:
    """Those whose names begin so, by the rest of the name; no others are read."""
    return {key: tensor[...] for key, tensor in stored(source, prefix).items()}


def stored(source: str, prefix: str = "", whole: str = "model.safetensors") -> Mapping[str, Stored]:
    """Those whose names begin so, by the rest of the name; each is read when it is indexed.

    Args:
        source: hub id or folder.
        prefix: of the names.
        whole: the file that holds all tensors where no index names several.
    """
    from safetensors import safe_open
    from transformers.utils.hub import cached_file

    index = cached_file(
        source,
        f"{whole}.index.json",
        _raise_exceptions_for_missing_entries=False,
        _raise_exceptions_for_connection_errors=False,
    )
    names = [whole]
    if index is not None:
        places = json.loads(Path(index).read_text(encoding="utf-8"))["weight_map"]
        names = sorted({place for key, place in places.items() if key.startswith(prefix)})
    found: dict[str, Stored] = {}
    for name in names:
        shard: Any = safe_open(file(source, name), "pt")
        found |= {key[len(prefix) :]: shard.get_slice(key) for key in shard.keys() if key.startswith(prefix)}  # noqa: SIM118
    return found
