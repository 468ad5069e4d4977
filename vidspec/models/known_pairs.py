"""Published target and draft pairs, and the memory they need. Imports no torch."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import NamedTuple

from vidspec.models.tiles import Size, best_resolution, fit_token_grid, round_to_multiples, unpadded_cells

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

#: Bytes per number.
BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
#: Share of free memory that a recommended pair leaves for activations.
SPARE = 0.2
#: Main memory of Python, torch and transformers without a model, in bytes.
PROCESS = 420 << 20
#: Text tokens of a prompt.
PROMPT = 64
#: Visual tokens per frame of any size; SmolVLM's are for 2.2B, smaller ones make 8**2.
TOKENS_PER_FRAME = {"llava": 24**2, "internvl": 16**2, "smolvlm": 9**2}
#: Tile resolutions of LLaVA-NeXT's published configs.
RESOLUTIONS = ((336, 672), (672, 336), (672, 672), (1008, 336), (336, 1008))


class MemoryWorkload(NamedTuple):
    """Assumptions of a memory estimate: frames of a clip, their size in pixels (rows, columns), caption tokens, and
    the dtype of weights and cache (``auto``: the dtype of the device)."""

    frames: int = 32
    size: Size = (720, 1280)
    new_tokens: int = 512
    dtype: str = "auto"

    def visual_tokens(self, family: str) -> int | None:
        """Return the visual tokens of the clip; None for a family whose processor is unknown."""
        try:
            return visual_tokens(family, self.frames, self.size)
        except ValueError:
            return None

    def tokens(self, visual: int | None) -> int:
        """Return the tokens of prompt and caption."""
        return (visual or 0) + PROMPT + self.new_tokens


@dataclass(frozen=True)
class KnownModel:
    """A published checkpoint; unknown values are None.

    Attributes:
        name: hub id.
        family: ``model_type`` of its config.
        layers, kv_heads, head_dim: of the language model; for a hybrid, the layers with a KV cache.
        parameters: of the whole model, tied weights counted once.
        vocabulary: rows of the head.
        licence: the hub's abbreviation.
        context: context length in tokens.
        source: source of these facts, if not the checkpoint's config on the hub.
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
        """Numbers in the KV cache per token."""
        return 2 * self.layers * self.kv_heads * self.head_dim

    def weight_bytes(self, dtype: str) -> int | None:
        """Return the bytes of the weights; ``dtype`` is a key of :data:`BYTES`."""
        return None if self.parameters is None else self.parameters * BYTES[dtype]

    def kv_bytes(self, load: MemoryWorkload) -> int:
        """Return the bytes of the KV cache without pruning."""
        return self.kv_per_token * load.tokens(load.visual_tokens(self.family)) * BYTES[load.dtype]


@dataclass(frozen=True)
class ModelPair:
    """A target and its draft; None if the target drafts for itself. ``papers`` measured the pair."""

    target: KnownModel
    draft: KnownModel | None
    papers: tuple[str, ...] = ()
    note: str | None = None


@dataclass(frozen=True)
class PairMemory:
    """Bytes of the weights and of both KV caches without pruning; None if a size is unknown.

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
    """Return all known pairs, ordered by family."""
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
    """Return the first listed draft of a target; None if it is not listed, or only with itself."""
    return next((pair.draft.name for pair in known_pairs() if pair.draft and pair.target.name == target), None)


def recommended_pair(load: MemoryWorkload, free: int, *, smallest: bool) -> ModelPair | None:
    """Return the largest listed pair that leaves :data:`SPARE` of the memory free; None if none does.

    Args:
        load: the clip; targets with a shorter context are left out.
        free: bytes.
        smallest: return the smallest target, as without a GPU, instead of the largest.
    """
    candidates = dict[int, ModelPair]()
    for pair in known_pairs():
        context, size = pair.target.context, pair_memory(pair, load).total
        tokens = load.tokens(load.visual_tokens(pair.target.family))
        fits = size is not None and size <= (1 - SPARE) * free and (context is None or tokens <= context)
        if fits and pair.draft and pair.target.parameters:
            candidates.setdefault(pair.target.parameters, pair)
    return candidates[(min if smallest else max)(candidates)] if candidates else None


def pair_memory(pair: ModelPair, load: MemoryWorkload) -> PairMemory:
    """Return the memory of a pair; a target that drafts for itself has a second cache, of at most all visual tokens."""
    kv = pair.target.kv_bytes(load) + (pair.draft or pair.target).kv_bytes(load)
    draft = 0 if pair.draft is None else pair.draft.weight_bytes(load.dtype)
    return PairMemory(pair.target.weight_bytes(load.dtype), draft, kv)


def visual_tokens(family: str, frames: int, size: Size) -> int:
    """Return the visual tokens of a clip, separators included, with the published processors' settings.

    Args:
        family: ``model_type`` of the config.
        frames: number of frames.
        size: rows and columns of pixels.

    Raises:
        ValueError: the family is unknown.
    """
    if family == "llava_onevision":
        return frames * 14**2 + 1
    if family in TOKENS_PER_FRAME:
        return frames * TOKENS_PER_FRAME[family]
    if family == "llava_next":
        tall, wide = best_resolution(size, RESOLUTIONS)
        cells = (tall // 14, wide // 14)
        rows, columns = (len(range(side)[part]) for side, part in zip(cells, unpadded_cells(size, cells), strict=True))
        return frames * (24**2 + rows * (columns + 1))
    if family == "gemma4":
        return frames * math.prod(fit_token_grid(size, 48, 70))
    factor = 28
    if family == "qwen2_5_vl":
        rows, columns = round_to_multiples(size, factor, (56**2, 12_845_056))
    elif family == "qwen2_5_omni":
        rows, columns = round_to_multiples(size, factor, (128 * 28**2, 768 * 28**2))
    elif family in ("qwen3_vl", "qwen3_vl_moe", "qwen3_5", "qwen3_5_moe"):
        factor, shown = 32, max(2, frames)
        counted = round(shown / 2) * 2  # steps of two frames, as the processor counts
        rows, columns = round_to_multiples(size, factor, (64**2, 25_165_824), shown, counted)  # of the whole clip
    else:
        raise ValueError(f"no model of the family {family} is known")
    return math.ceil(frames / 2) * (rows // factor) * (columns // factor)


def cached_models(folder: Path) -> Mapping[str, bool]:
    """Return the models in a hub cache: id to True if config and all weights are present."""
    models: dict[str, bool] = {}
    for repo in sorted(folder.glob("models--*")):
        name = repo.name.removeprefix("models--").replace("--", "/")
        models[name] = any(_is_complete(snapshot) for snapshot in repo.glob("snapshots/*"))
    return models


def _is_complete(snapshot: Path) -> bool:
    if not (snapshot / "config.json").is_file():
        return False
    index = snapshot / "model.safetensors.index.json"
    try:
        shards = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
    except (OSError, ValueError, KeyError):
        shards = {"model.safetensors"}
    return all((snapshot / shard).is_file() for shard in shards)
