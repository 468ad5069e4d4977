"""Published target and draft pairs, and the memory they need. Imports no torch."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from vidspec.errors import GenerationError
from vidspec.models.frame_rules import (
    FrameRule,
    MergedPatches,
    Size,
    SlicedFrames,
    SquareFrames,
    TiledFrames,
    TokenGrid,
)
from vidspec.models.memory_estimate import BYTES, PROMPT, ClipMemory, ModelSizes, clip_memory

_PUBLISHED = Path(__file__).with_suffix(".yaml")
_QWEN2_5 = MergedPatches(min_pixels=56**2, max_pixels=12_845_056, max_video_tokens=128_000)
_OMNI = MergedPatches(min_pixels=128 * 28**2, max_pixels=768 * 28**2, max_video_tokens=128_000)
_OMNI3 = MergedPatches(min_pixels=128 * 32**2, max_pixels=768 * 32**2, max_video_tokens=128_000, patch=16)
_QWEN3 = MergedPatches(min_pixels=64**2, max_pixels=25_165_824, max_video_tokens=768, patch=16, whole_clip=True)
_GLM = MergedPatches(min_pixels=112**2, max_pixels=47_040_000, max_video_tokens=0, whole_clip=True)
#: Rules of the families, with the settings of the published configs and processors.
PUBLISHED_RULES: Mapping[str, FrameRule] = {
    "llava": SquareFrames(tokens=24**2, rows=24**2 + 1),
    "llava_next": TiledFrames(24, 336, ((336, 672), (672, 336), (672, 672), (1008, 336), (336, 1008))),
    "llava_onevision": SquareFrames(tokens=14**2, rows=27**2, separators=1),
    "internvl": SquareFrames(tokens=16**2, rows=32**2 + 1),
    "smolvlm": SquareFrames(tokens=9**2, rows=27**2),  # of 2.2B; smaller ones make 8**2
    "molmo2": SquareFrames(tokens=9**2, rows=27**2),
    "minicpmv4_6": SlicedFrames(side=448, most=9, patch=14, merge=4),
    "gemma4": TokenGrid(side=48, pool=3, max_tokens=70),
    "gemma4_unified": TokenGrid(side=48, pool=1, max_tokens=70),
    **dict.fromkeys(("qwen2_vl", "qwen2_5_vl"), _QWEN2_5),
    "qwen2_5_omni": _OMNI,
    "qwen3_omni_moe": _OMNI3,
    "video_salmonn2_plus": MergedPatches(56**2, 61_250, max_video_tokens=128_000, full_frames=768),
    **dict.fromkeys(("qwen3_vl", "qwen3_vl_moe", "qwen3_5", "qwen3_5_moe"), _QWEN3),
    "video_llama_3": MergedPatches(12_544, 12_845_056, max_video_tokens=0, steps=1, shared=True),  # before compression
    **dict.fromkeys(("glm4v", "glm46v", "glm4v_moe"), _GLM),
}


class MemoryWorkload(NamedTuple):
    """Assumptions of a memory estimate: frames of a clip, their size in pixels (rows, columns), caption tokens, and
    the dtype of weights and cache (``auto``: the dtype of the device)."""

    frames: int = 32
    size: Size = (720, 1280)
    new_tokens: int = 512
    dtype: str = "auto"

    def visual_tokens(self, family: str) -> int | None:
        """Return the visual tokens of the clip by a family's published rule; None if it has none, or takes no such
        frames."""
        return self.tokens_by(PUBLISHED_RULES.get(family))

    def tokens_by(self, rule: FrameRule | None) -> int | None:
        """Return the visual tokens of the clip by a rule; None without one, or if it takes no such frames."""
        try:
            return None if rule is None else rule.visual_tokens(self.frames, *self.size)
        except GenerationError:
            return None

    def memory(self, sizes: ModelSizes, rule: FrameRule | None) -> ClipMemory:
        """Return the memory of the clip on one model, without pruning."""
        if rule is None or (visual := self.tokens_by(rule)) is None:
            return clip_memory(sizes._replace(pass_row=0, embedding=0), visual=0, tokens=PROMPT, room=self.new_tokens)
        rows = rule.tower_rows(self.frames, *self.size)
        return clip_memory(sizes, visual=visual, tokens=visual + PROMPT, room=self.new_tokens, tower_rows=rows)


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
        read: parameters that every decoding pass reads, experts left out.
        experts: experts of a block, those that a token takes, and the parameters of one in all blocks.
        recurrent: blocks with a recurrent state, and the numbers of all these states.
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
    read: int | None = None
    experts: tuple[int, int, int] | None = None
    recurrent: tuple[int, int] | None = None

    @property
    def kv_per_token(self) -> int:
        """Numbers in the KV cache per token."""
        return 2 * self.layers * self.kv_heads * self.head_dim

    def weight_bytes(self, dtype: str) -> int | None:
        """Return the bytes of the weights; ``dtype`` is a key of :data:`BYTES`."""
        return None if self.parameters is None else self.parameters * BYTES[dtype]

    def kv_bytes(self, load: MemoryWorkload) -> int:
        """Return the bytes of the KV cache without pruning."""
        sizes = ModelSizes(entry=self.kv_per_token * BYTES[load.dtype])
        return load.memory(sizes, PUBLISHED_RULES.get(self.family)).kv


class PublishedHead(NamedTuple):
    """A head published for ``target``.

    Attributes:
        target: hub id.
        name: hub id of the head.
        read: parameters that a draft pass reads; 0 if unknown.
        kind: the drafter that takes it.
    """

    target: str
    name: str
    read: int = 0
    kind: str = "eagle3"


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

    data = yaml.safe_load(_PUBLISHED.read_text(encoding="utf-8"))
    models = {name: _listed_model(name, facts) for name, facts in data["models"].items()}
    return tuple(
        ModelPair(
            models[row["target"]],
            models[row["draft"]] if "draft" in row else None,
            tuple(row.get("papers", ())),
            row.get("note"),
        )
        for row in data["pairs"]
    )


def _listed_model(name: str, facts: dict[str, Any]) -> KnownModel:
    """Return a model, its lists as tuples."""
    hashable: dict[str, Any] = {key: tuple(fact) if isinstance(fact, list) else fact for key, fact in facts.items()}
    return KnownModel(name, **hashable)


@cache
def listed_models() -> dict[str, KnownModel]:
    """Return all models that are listed as a target or a draft, by name, in the order of the pairs."""
    models = (model for pair in known_pairs() for model in (pair.target, pair.draft))
    return {model.name: model for model in models if model is not None}


def known_model(name: str) -> KnownModel | None:
    """Return the published facts of a model, listed as a target or a draft; None if it is not."""
    return listed_models().get(name)


@cache
def published_heads() -> tuple[PublishedHead, ...]:
    """Return the listed heads that are published for a target."""
    import yaml

    data = yaml.safe_load(_PUBLISHED.read_text(encoding="utf-8"))
    return tuple(PublishedHead(**row) for row in data["heads"])


def listed_draft(target: str) -> str | None:
    """Return the first listed draft of a target; None if it is not listed, or only with itself."""
    return next((pair.draft.name for pair in known_pairs() if pair.draft and pair.target.name == target), None)


def named_model(text: str) -> KnownModel | None:
    """Return the listed model that a user means: its hub id, or words of its name such as ``qwen3-vl 8b``.

    Of several the one with the shortest name, the first listed. None if there is none, or ``text`` is a path.
    """
    if (exact := known_model(text)) is not None or "/" in text or Path(text).exists():
        return exact
    words = set(re.split(r"[\s_-]+", text.strip().lower()))
    named = [model for model in listed_models().values() if words <= set(re.split(r"[/_-]", model.name.lower()))]
    return min(named, key=lambda model: len(re.split(r"[/_-]", model.name)), default=None)


def listed_targets(load: MemoryWorkload) -> list[KnownModel]:
    """Return the listed targets whose context holds a clip."""
    found = []
    for target in dict.fromkeys(pair.target for pair in known_pairs()):
        tokens = (load.visual_tokens(target.family) or 0) + PROMPT + load.new_tokens
        found += [target] if target.context is None or tokens <= target.context else []
    return found


def pair_memory(pair: ModelPair, load: MemoryWorkload) -> PairMemory:
    """Return the memory of a pair; a target that drafts for itself has a second cache, of at most all visual tokens."""
    kv = pair.target.kv_bytes(load) + (pair.draft or pair.target).kv_bytes(load)
    draft = 0 if pair.draft is None else pair.draft.weight_bytes(load.dtype)
    return PairMemory(pair.target.weight_bytes(load.dtype), draft, kv)


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
