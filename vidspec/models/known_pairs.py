"""Published targets with drafts that fit them, and the memory a pair needs; numbers only, no torch."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import NamedTuple

from vidspec.models.tiles import Size, best_resolution, multiples, unpadded, within

__all__ = [
    "KnownModel",
    "MemoryWorkload",
    "ModelPair",
    "PairMemory",
    "cached_models",
    "known_pairs",
    "listed_draft",
    "pair_memory",
    "recommended_pair",
    "visual_tokens",
]

#: Of a number.
BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
#: Share of the free memory that a recommended pair leaves for activations.
SPARE = 0.2
#: Bytes of main memory that Python, torch and transformers take before a model is loaded.
PROCESS = 420 << 20
#: Tokens of a prompt around the video.
PROMPT = 64
#: Visual tokens of a frame of any size; SmolVLM's are those of 2.2B, the smaller ones make 8**2.
TOKENS_PER_FRAME = {"llava": 24**2, "internvl": 16**2, "smolvlm": 9**2}
#: The resolutions of LLaVA-NeXT's published configs.
RESOLUTIONS = ((336, 672), (672, 336), (672, 672), (1008, 336), (336, 1008))


class MemoryWorkload(NamedTuple):
    """The clip that memory is counted for: its frames, the size of their pixels (rows, columns), the tokens of its
    caption, and the dtype of weights and cache; ``auto`` is the dtype of the device."""

    frames: int = 32
    size: Size = (720, 1280)
    new_tokens: int = 512
    dtype: str = "auto"

    def visual_tokens(self, family: str) -> int | None:
        """None for a family whose processor is not known."""
        try:
            return visual_tokens(family, self.frames, self.size)
        except ValueError:
            return None

    def tokens(self, visual: int | None) -> int:
        """All tokens of prompt and caption."""
        return (visual or 0) + PROMPT + self.new_tokens


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

    def weight_bytes(self, dtype: str) -> int | None:
        """Bytes of the weights; ``dtype`` is a key of :data:`BYTES`."""
        return None if self.parameters is None else self.parameters * BYTES[dtype]

    def kv_bytes(self, load: MemoryWorkload) -> int:
        """Bytes of the KV cache, with nothing pruned."""
        return self.kv_per_token * load.tokens(load.visual_tokens(self.family)) * BYTES[load.dtype]


@dataclass(frozen=True)
class ModelPair:
    """A target and a draft; None where the target drafts for itself. ``papers`` measured it."""

    target: KnownModel
    draft: KnownModel | None
    papers: tuple[str, ...] = ()
    note: str | None = None


@dataclass(frozen=True)
class PairMemory:
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
def known_pairs() -> tuple[ModelPair, ...]:
    """All known pairs, in the order of the families."""
    import yaml

    data = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8"))
    models = {name: KnownModel(name, **facts) for name, facts in data["models"].items()}
    return tuple(
        ModelPair(
            models[row["target"]],
            models[row["draft"]] if "draft" in row else None,
            tuple(row.get("papers", ())),
            row.get("note"),
        )
        for row in data["pairs"]
    )


def listed_draft(target: str) -> str | None:
    """The draft that is listed first for a target; None if it is not listed, or only with itself."""
    return next((pair.draft.name for pair in known_pairs() if pair.draft and pair.target.name == target), None)


def recommended_pair(load: MemoryWorkload, free: int, *, smallest: bool) -> ModelPair | None:
    """The listed pair with a draft to begin with, by size alone; None where none leaves :data:`SPARE` of the memory.

    Args:
        load: the clip; targets made for fewer tokens are left out.
        free: bytes.
        smallest: whether the smallest target is taken, as without a GPU, instead of the largest.
    """
    fitting = dict[int, ModelPair]()
    for pair in known_pairs():
        context, size = pair.target.context, pair_memory(pair, load).total
        tokens = load.tokens(load.visual_tokens(pair.target.family))
        fits = size is not None and size <= (1 - SPARE) * free and (context is None or tokens <= context)
        if fits and pair.draft and pair.target.parameters:
            fitting.setdefault(pair.target.parameters, pair)
    return fitting[(min if smallest else max)(fitting)] if fitting else None


def pair_memory(pair: ModelPair, load: MemoryWorkload) -> PairMemory:
    """What a pair needs; a target that drafts for itself has a second cache, of all visual tokens at most."""
    kv = pair.target.kv_bytes(load) + (pair.draft or pair.target).kv_bytes(load)
    draft = 0 if pair.draft is None else pair.draft.weight_bytes(load.dtype)
    return PairMemory(pair.target.weight_bytes(load.dtype), draft, kv)


def visual_tokens(family: str, frames: int, size: Size) -> int:
    """Visual tokens of a clip under the published processors' settings, separators among them.

    Args:
        family: as configs call it.
        frames: of the clip.
        size: rows and columns of their pixels.
    """
    if family == "llava_onevision":
        return frames * 14**2 + 1
    if family in TOKENS_PER_FRAME:
        return frames * TOKENS_PER_FRAME[family]
    if family == "llava_next":
        tall, wide = best_resolution(size, RESOLUTIONS)
        cells = (tall // 14, wide // 14)
        rows, columns = (len(range(side)[part]) for side, part in zip(cells, unpadded(size, cells), strict=True))
        return frames * (24**2 + rows * (columns + 1))
    if family == "gemma4":
        return frames * math.prod(within(size, 48, 70))
    factor = 28
    if family == "qwen2_5_vl":
        rows, columns = multiples(size, factor, (56**2, 12_845_056))
    elif family == "qwen2_5_omni":
        rows, columns = multiples(size, factor, (128 * 28**2, 768 * 28**2))
    elif family in ("qwen3_vl", "qwen3_vl_moe", "qwen3_5", "qwen3_5_moe"):
        factor, shown = 32, max(2, frames)
        counted = round(shown / 2) * 2  # whole steps of two frames, as the processor counts
        rows, columns = multiples(size, factor, (64**2, 25_165_824), shown, counted)  # of the whole clip
    else:
        raise ValueError(f"no model of the family {family} is known")
    return math.ceil(frames / 2) * (rows // factor) * (columns // factor)


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
