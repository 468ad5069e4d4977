"""Draft heads that ``vidspec train`` made on this machine, by the weights of their targets.

A head is a folder in the user's cache with a file of facts beside its weights. Another fine-tune of the same name does
not get it: a target is known by a digest of its weights. No torch.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import struct
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from datetime import date
from pathlib import Path
from types import MappingProxyType

from vidspec.errors import UsageError
from vidspec.files import open_own, write_whole
from vidspec.models.hub import is_local
from vidspec.user_cache import cache_file

__all__ = [
    "LEAST_GAIN",
    "OwnHead",
    "add_head",
    "copy_head",
    "drafting_keys",
    "find_head",
    "head_name",
    "own_heads",
    "remove_head",
    "today",
    "weights_digest",
]

#: Gain in decoding over plain decoding from which on a head is the default draft of its target.
LEAST_GAIN = 1.05
#: Bytes of each tensor, at its beginning, in its middle and at its end, that stand for all of it.
_SAMPLE = 1024
_FACTS = "vidspec.json"


@dataclass(frozen=True)
class OwnHead:
    """A head that was trained here.

    Attributes:
        name: of its folder.
        target: its target as the user named it.
        weights: digest of the target's weights.
        kind: ``draft.kind`` that reads it.
        made: date, as YYYY-MM-DD.
        clips: captions that it was trained on.
        tau: tokens a round on clips never trained on.
        decode, end_to_end: how many times as fast as plain decoding these were.
    """

    name: str
    target: str
    weights: str
    kind: str
    made: str
    clips: int
    tau: float
    decode: float
    end_to_end: float

    @property
    def folder(self) -> Path:
        return _folder() / self.name

    @property
    def keys(self) -> dict[str, object]:
        """Keys of a profile that drafts with it, over those of the default profile."""
        return drafting_keys(str(self.folder), self.kind)

    @property
    def gains(self) -> bool:
        """True if it is the default draft of its target."""
        return self.decode >= LEAST_GAIN


def drafting_keys(head: str, kind: str) -> dict[str, object]:
    """Return keys of a profile that drafts with a head, a hub id or folder, over states of text rows."""
    return {"name": "own-head", "models.draft": head, "draft.kind": kind, "draft.options": {"visual": "none"}}


def _folder() -> Path:
    return cache_file("heads", "")


def own_heads() -> list[OwnHead]:
    """Return the heads on this machine, the latest first; folders that hold none are left out."""
    found: list[OwnHead] = []
    for file in _folder().glob(f"*/{_FACTS}"):
        try:
            found.append(OwnHead(**json.loads(file.read_text(encoding="utf-8")), name=file.parent.name))
        except (OSError, ValueError, TypeError):
            continue
    return sorted(found, key=lambda head: (head.made, head.name), reverse=True)


def find_head(target: str, adapter: str | None = None) -> OwnHead | None:
    """Return the head that drafts for a target by default: of those that gain, the one that decodes the fastest.

    Weights are read only if there are heads.
    """
    heads = [head for head in own_heads() if head.gains]
    digest = weights_digest(target, adapter) if heads else None
    fitting = [head for head in heads if head.weights == digest]
    return max(fitting, key=lambda head: head.decode, default=None)


def add_head(source: Path, facts: OwnHead) -> OwnHead:
    """Copy a head into the cache, in place of an earlier one of this name.

    Args:
        source: folder of its config and weights.
        facts: what is known of it.
    """
    known = {key: value for key, value in asdict(facts).items() if key != "name"}
    copy_head(source, facts.folder, {_FACTS: json.dumps(known, indent=2) + "\n"})
    return facts


def copy_head(source: Path, folder: Path, more: Mapping[str, str] = MappingProxyType({})) -> None:
    """Copy a head and write ``more`` files beside it, by name; the folder is there whole, or not at all.

    Raises:
        OSError: it cannot be written.
    """
    folder = folder.absolute()
    part = folder.with_name(f".{folder.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    for file in source.iterdir():
        with file.open("rb") as held, open_own(part / file.name, "xb") as copy:
            shutil.copyfileobj(held, copy)
    for name, text in more.items():
        write_whole(part / name, text)
    shutil.rmtree(folder, ignore_errors=True)
    part.rename(folder)


def head_name(target: str, digest: str) -> str:
    """Return the name of a target's head: the end of the target's name, and of its weights."""
    last = re.sub(r"[^a-z0-9._-]+", "-", os.path.basename(os.path.normpath(target)).lower()).strip("-.")
    return f"{last or 'target'}-{digest[:6]}"


def today() -> str:
    return date.today().isoformat()


def remove_head(name: str) -> OwnHead:
    """Delete a head and return what was known of it.

    Raises:
        UsageError: there is none of this name.
    """
    known = {head.name: head for head in own_heads()}
    if name not in known:
        there = ", ".join(known) or "none"
        raise UsageError(f"models remove: {name}: no head of this name was trained here", hint=f"there are {there}")
    shutil.rmtree(known[name].folder)
    return known[name]


def weights_digest(target: str, adapter: str | None = None) -> str | None:
    """Return a digest of a target's weights and of a LoRA's: names, shapes, and some bytes of each tensor.

    Training changes nearly all numbers of a tensor. None if the files are not on this machine, or are no safetensors.
    """
    digest = hashlib.sha256()
    for source in (target, adapter):
        files = [] if source is None else _weight_files(source)
        if source is not None and not files:
            return None
        try:
            for file in files:
                for part in _sampled(file):
                    digest.update(part)
        except (OSError, ValueError, struct.error):
            return None
    return digest.hexdigest()[:16]


def _weight_files(source: str) -> list[Path]:
    """Return the files of weights of a folder or of a downloaded hub id, sorted by name."""
    if is_local(source):
        folder = Path(source).expanduser()
    else:
        from huggingface_hub import try_to_load_from_cache

        config = try_to_load_from_cache(source, "config.json") or try_to_load_from_cache(source, "adapter_config.json")
        if not isinstance(config, str):
            return []
        folder = Path(config).parent
    return sorted(folder.glob("*.safetensors"))


def _sampled(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        header = file.read(min(length, 100 << 20))
        tensors = {key: value for key, value in json.loads(header).items() if key != "__metadata__"}
        for name, about in sorted(tensors.items()):
            begin, end = about["data_offsets"]
            yield f"{name} {about['dtype']} {about['shape']}".encode()
            for at in sorted({begin, max(begin, (begin + end) // 2), max(begin, end - _SAMPLE)}):
                file.seek(8 + length + at)
                yield file.read(min(_SAMPLE, end - at))
