"""Published targets with drafts that fit them, and the memory a pair needs; numbers only, no torch."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from vidspec.models.tiles import Size, best_resolution, unpadded, within

__all__ = ["BYTES", "KnownModel", "Memory", "Pair", "cached_models", "draft_of", "known", "memory", "visual_tokens"]

#: Of a number.
BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
#: Tokens of a prompt around the video.
PROMPT = 64
#: The resolutions of LLaVA-NeXT's published configs.
RESOLUTIONS = ((336, 672), (672, 336), (672, 672), (1008, 336), (336, 1008))


@dataclass(frozen=True)
class KnownModel:
    """A published checkpoint; what could not be found out is None.

    Attributes:
        name: hub id.
        family: as configs call it.
        layers, kv_heads, head_dim: of the language model; of a hybrid the layers that keep keys and values.
        parameters: of the whole, tied weights counted once.
        vocabulary: rows of its head.
        licence: as the hub abbreviates it.
        context: tokens it was made for.
        source: where this is from, if not from its own config on the hub.
    """

    name: str
    family: str
    layers: int
    kv_heads: int
    head_dim: int
    parameters: int | None = None
    vocabulary: int | None = None
    licence: str | None = None
    context: int | None = None
    source: str | None = None

    @property
    def kv_per_token(self) -> int:
        """Numbers in the KV cache for each token."""
        return 2 * self.layers * self.kv_heads * self.head_dim


@dataclass(frozen=True)
class Pair:
    """A target and a draft; None where the target drafts for itself. ``papers`` measured it."""

    target: KnownModel
    draft: KnownModel | None
    papers: tuple[str, ...] = ()
    note: str | None = None


@dataclass(frozen=True)
class Memory:
    """Bytes: weights, KV cache of both models with nothing pruned; None where a size is not known.

    Activations are not counted.
    """

    target: int | None
    draft: int | None
    kv: int

    @property
    def total(self) -> int | None:
        return None if self.target is None or self.draft is None else self.target + self.draft + self.kv


@cache
def known() -> tuple[Pair, ...]:
    """All known pairs, in the order of the families."""
    import yaml

    data = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8"))
    models = {name: KnownModel(name, **facts) for name, facts in data["models"].items()}
    return tuple(
        Pair(
            models[row["target"]],
            models[row["draft"]] if "draft" in row else None,
            tuple(row.get("papers", ())),
            row.get("note"),
        )
        for row in data["pairs"]
    )


def draft_of(target: str) -> str | None:
    """The draft that is listed first for a target; None if it is not listed, or only with itself."""
    return next((pair.draft.name for pair in known() if pair.draft and pair.target.name == target), None)


def memory(pair: Pair, frames: int, size: Size, dtype: str, new_tokens: int) -> Memory:
    """What a pair needs.

    Args:
        pair: target and draft.
        frames: of a clip.
        size: rows and columns of their pixels.
        dtype: of weights and KV cache, a key of :data:`BYTES`.
        new_tokens: of a caption.
    """
    models = [pair.target] if pair.draft is None else [pair.target, pair.draft]
    length = PROMPT + new_tokens
    # A target that drafts for itself keeps a second cache, of all visual tokens at most.
    caches = models if pair.draft is not None else [pair.target, pair.target]
    kv = sum(model.kv_per_token * (visual_tokens(model.family, frames, size) + length) for model in caches)
    weights = [None if model.parameters is None else model.parameters * BYTES[dtype] for model in models]
    return Memory(weights[0], weights[1] if pair.draft is not None else 0, kv * BYTES[dtype])


def visual_tokens(family: str, frames: int, size: Size) -> int:
    """Visual tokens of a clip under the published processors' settings, separators among them.

    Args:
        family: as configs call it.
        frames: of the clip.
        size: rows and columns of their pixels.
    """
    if family == "llava_onevision":
        return frames * 14**2 + 1
    if family == "llava":
        return frames * 24**2
    if family == "llava_next":
        tall, wide = best_resolution(size, RESOLUTIONS)
        cells = (tall // 14, wide // 14)
        rows, columns = (len(range(side)[part]) for side, part in zip(cells, unpadded(size, cells), strict=True))
        return frames * (24**2 + rows * (columns + 1))
    if family == "qwen2_5_vl":
        rows, columns = _rounded(size, 28, 1, (56**2, 12_845_056))
    elif family == "qwen2_5_omni":
        rows, columns = _rounded(size, 28, 1, (128 * 28**2, 768 * 28**2))
    elif family == "internvl":
        return frames * 16**2
    elif family == "gemma4":
        return frames * math.prod(within(size, 48, 70))
    elif family == "smolvlm":
        return frames * 9**2  # of 2.2B; the smaller ones make 8**2
    elif family in ("qwen3_vl", "qwen3_vl_moe", "qwen3_5", "qwen3_5_moe"):
        rows, columns = _rounded(size, 32, max(2, frames), (64**2, 25_165_824))  # of the whole clip
    else:
        raise ValueError(f"no model of the family {family} is known")
    return math.ceil(frames / 2) * rows * columns


def _rounded(size: Size, factor: int, frames: int, budget: tuple[int, int]) -> Size:
    """Rows and columns of tokens of ``factor`` pixels a side, ``frames`` of them within a budget of pixels."""
    rows, columns = (max(1, round(side / factor)) for side in size)
    counted = frames if frames == 1 else round(frames / 2) * 2  # whole steps of two frames, as the processor counts
    if counted * rows * columns * factor**2 > budget[1]:
        shrink = math.sqrt(frames * size[0] * size[1] / budget[1])
        rows, columns = (max(1, math.floor(side / shrink / factor)) for side in size)
    elif counted * rows * columns * factor**2 < budget[0]:
        grow = math.sqrt(budget[0] / (frames * size[0] * size[1]))
        rows, columns = (math.ceil(side * grow / factor) for side in size)
    return rows, columns


def cached_models(folder: Path) -> Mapping[str, bool]:
    """Models in a cache of the hub, by id: whether config and all weights are there."""
    found: dict[str, bool] = {}
    for repo in sorted(folder.glob("models--*")):
        name = repo.name.removeprefix("models--").replace("--", "/")
        found[name] = any(_complete(snapshot) for snapshot in repo.glob("snapshots/*"))
    return found


def _complete(snapshot: Path) -> bool:
    if not (snapshot / "config.json").is_file():
        return False
    index = snapshot / "model.safetensors.index.json"
    try:
        shards = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
    except (OSError, ValueError, KeyError):
        shards = {"model.safetensors"}
    return all((snapshot / shard).is_file() for shard in shards)
