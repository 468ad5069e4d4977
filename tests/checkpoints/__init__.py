"""Small random checkpoints of every family, in the layout of published ones.

``checkpoint("qwen3_vl", tied=False)`` returns a folder. Equal arguments share one folder in a session of pytest, across
all its processes, so tests only read it; ``copy_checkpoint`` makes one that a test may change. A module for each family
builds the model (``stock``), its adapter, tokenizer and configuration.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import shutil
from importlib import import_module
from pathlib import Path

from filelock import FileLock

#: Module of each kind. Its ``save(folder, kind, **options)`` writes a checkpoint.
RECIPES = {
    "readable": "readable",
    "llava_onevision": "llava_onevision",
    **dict.fromkeys(("llava", "llava_next"), "llava"),
    **dict.fromkeys(("qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe", "qwen3_5", "qwen3_5_moe"), "qwen"),
    **{
        name: name
        for name in ("gemma4", "internvl", "molmo2", "qwen2_5_omni", "qwen3_omni_moe", "smolvlm", "video_llama_3")
    },
    "gemma4_unified": "gemma4",
    "minicpmv4_6": "minicpmv",
    **dict.fromkeys(("glm4v", "glm46v", "glm4v_moe"), "glm4v"),
    "video_salmonn2_plus": "video_salmonn",
    **dict.fromkeys(("blip", "florence2", "image_llava"), "image_captioners"),
}


class Cache:
    """Folder of the session's checkpoints, which ``tests/conftest.py`` sets."""

    folder: Path | None = None


def checkpoint(kind: object, **options: object) -> Path:
    """Return the folder of a checkpoint, written by the first process that asks for it; read-only.

    Args:
        kind: one of ``RECIPES``, or a dataclass of its module such as ``QwenKind``: a family with options.
        options: of the recipe, such as ``seed``, ``noise``, ``tied``, ``padding`` or ``max_shard_size``.
    """
    assert Cache.folder is not None, "checkpoints are cached in a session of pytest only"
    name, options = _named(kind, options)
    recipe = hashlib.sha256(json.dumps([name, options], sort_keys=True).encode()).hexdigest()[:12]
    folder = Cache.folder / f"{name}-{recipe}"
    if not folder.exists():
        with FileLock(f"{folder}.lock"):
            if not folder.exists():
                unfinished = folder.with_suffix(".unfinished")
                shutil.rmtree(unfinished, ignore_errors=True)
                save_checkpoint(unfinished, name, **options)
                for file in unfinished.iterdir():
                    file.chmod(0o444)
                unfinished.rename(folder)
    return folder


def copy_checkpoint(folder: Path, kind: object, **options: object) -> Path:
    """Copy a checkpoint to ``folder``, where a test may change it."""
    shutil.copytree(checkpoint(kind, **options), folder, copy_function=shutil.copyfile, dirs_exist_ok=True)
    return folder


def save_checkpoint(folder: Path, kind: object, **options: object) -> Path:
    """Write a checkpoint without the cache."""
    name, options = _named(kind, options)
    import_module(f"tests.checkpoints.{RECIPES[name]}").save(folder, name, **options)
    return folder


def _named(kind: object, options: dict[str, object]) -> tuple[str, dict[str, object]]:
    """Return the name of a kind, and options without those that say nothing new."""
    if not isinstance(kind, str):
        fields = dataclasses.fields(kind)  # type: ignore[arg-type]
        given = {one.name: getattr(kind, one.name) for one in fields}
        options |= {one.name: given[one.name] for one in fields if given[one.name] != one.default}
        kind = given["family"]
        options.pop("family", None)
    return kind, {name: value for name, value in options.items() if name not in ("noise", "seed") or value}
