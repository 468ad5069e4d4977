"""The schema of a profile: its sections, keys, defaults and the combinations that make sense; no lookup, no torch."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from vidspec.registry import Registry, drafters, pruners, rules, schedules

__all__ = ["Profile"]


def _named(registry: Registry[Any]) -> Callable[[str], str]:
    def check(name: str) -> str:
        if name not in registry.names():
            raise PydanticCustomError("name", "{complaint}", {"complaint": registry.complaint(name)})
        return name

    return check


def _device(name: str) -> str:
    if not re.fullmatch(r"auto|cpu|mps|cuda(:\d+)?", name):
        raise PydanticCustomError("device", "must be auto, cpu, cuda, cuda:N or mps")
    return name


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=())


class ModelsSection(_Section):
    """Which models, and how they are loaded. ``pair`` names a built-in target and draft at once."""

    pair: Literal["embedded"] | None = None
    target: str | None = Field(default=None, min_length=1)
    draft: str | None = Field(default=None, min_length=1)
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    device: Annotated[str, AfterValidator(_device)] = "auto"
    attention: str = Field(default="auto", min_length=1)
    threads: int | None = Field(default=None, ge=1)

    @model_validator(mode="before")
    @classmethod
    def _embedded_by_default(cls, data: Any) -> Any:
        if isinstance(data, Mapping) and all(data.get(key) is None for key in ("pair", "target", "draft")):
            return {**data, "pair": "embedded"}
        return data


class VideoSection(_Section):
    """Which frames are shown to the models: a number of ``frames`` or a rate ``fps``."""

    frames: int | None = Field(default=None, ge=1)
    fps: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    max_pixels: int | None = Field(default=None, ge=1)
    decoder: Literal["auto", "decord", "av"] = "auto"

    @model_validator(mode="before")
    @classmethod
    def _frames_by_default(cls, data: Any) -> Any:
        if isinstance(data, Mapping) and all(data.get(key) is None for key in ("frames", "fps")):
            return {**data, "frames": 32}
        return data


class DraftSection(_Section):
    """What proposes tokens, in which shape and how many at a time."""

    kind: Annotated[str, AfterValidator(_named(drafters))] = "none"
    topology: Literal["chain"] = "chain"
    gamma: int = Field(default=5, ge=1)


class PruneSection(_Section):
    """What the draft sees of the video: ``alpha`` is the share of visual tokens it does not see.

    The rest is read by the pruners it is named for: ``seed`` by random; ``place`` by window, where its run of tokens
    lies; ``lam_r`` by specvlm, the share of all attention its first stage keeps (0.4 for LLaVA-OneVision, 0.5 for
    Qwen2.5-VL); ``layer`` by uv, uv_similarity and uv_attention, capped at half the target's depth; the three ``_term``
    by hippo, whether each counts.
    """

    method: Annotated[str, AfterValidator(_named(pruners))] = "none"
    alpha: float = Field(default=0.9, ge=0, le=0.99, allow_inf_nan=False)
    seed: int = Field(default=0, ge=0)
    positions: Literal["original", "compact"] = "original"
    place: Literal["front", "middle", "end"] = "middle"
    lam_r: float = Field(default=0.4, ge=0, le=1, allow_inf_nan=False)
    layer: int = Field(default=20, ge=1)
    attention_term: bool = True
    temporal_term: bool = True
    spatial_term: bool = True

    @model_validator(mode="before")
    @classmethod
    def _nothing_pruned_by_none(cls, data: Any) -> Any:
        if isinstance(data, Mapping) and data.get("method", "none") == "none":
            return {"alpha": 0.0, **data}
        return data


class ScheduleSection(_Section):
    """In which order draft and target work."""

    kind: Annotated[str, AfterValidator(_named(schedules))] = "autoregressive"


class AcceptSection(_Section):
    """Which proposed tokens are kept."""

    rule: Annotated[str, AfterValidator(_named(rules))] = "exact"


class GenerateSection(_Section):
    """What is asked and how the answer is sampled; temperature 0 is greedy."""

    max_new_tokens: int = Field(default=512, ge=1)
    temperature: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    top_p: float = Field(default=1.0, gt=0, le=1, allow_inf_nan=False)
    seed: int = Field(default=0, ge=0)
    prompt: str = Field(default="Describe this video in detail.", min_length=1)


class Profile(_Section):
    """One way of captioning, complete and consistent."""

    name: str = Field(min_length=1)
    about: str = ""
    models: ModelsSection = Field(default_factory=lambda: ModelsSection())
    video: VideoSection = Field(default_factory=lambda: VideoSection())
    draft: DraftSection = Field(default_factory=lambda: DraftSection())
    prune: PruneSection = Field(default_factory=lambda: PruneSection())
    schedule: ScheduleSection = Field(default_factory=lambda: ScheduleSection())
    accept: AcceptSection = Field(default_factory=lambda: AcceptSection())
    generate: GenerateSection = Field(default_factory=lambda: GenerateSection())

    @model_validator(mode="before")
    @classmethod
    def _empty_sections(cls, data: Any) -> Any:
        """``video:`` with nothing below it is YAML for null; take it as an empty section."""
        if isinstance(data, Mapping):
            return {key: value for key, value in data.items() if value is not None}
        return data

    @model_validator(mode="after")
    def _consistent(self) -> Profile:
        for broken, key, reason, instead in _combinations(self):
            if broken:
                raise PydanticCustomError(
                    "combination", "{text}", {"text": f"{key}: {reason}; nearest valid choice: {instead}"}
                )
        return self


def _combinations(p: Profile) -> tuple[tuple[bool, str, str, str], ...]:
    """Each as: is it broken, the key to change, the reason, what to do instead."""
    models, drafts, sequential = p.models, p.draft.kind != "none", p.schedule.kind != "autoregressive"
    return (
        (
            p.video.frames is not None and p.video.fps is not None,
            "video.fps",
            "excludes video.frames",
            f"video.frames: {p.video.frames} alone",
        ),
        (
            models.pair is not None and (models.target is not None or models.draft is not None),
            "models.pair",
            "excludes models.target and models.draft",
            f"models.pair: {models.pair} alone",
        ),
        (
            models.pair is None and models.target is None,
            "models.target",
            "is needed with models.draft",
            "name a target, or models.pair: embedded",
        ),
        (
            p.draft.kind == "model" and models.target is not None and models.draft is None,
            "models.draft",
            "is needed with draft.kind model",
            "name a draft of the target's family, or take the profile ar",
        ),
        (
            sequential and not drafts,
            "schedule.kind",
            f"{p.schedule.kind} needs a draft, and draft.kind is none",
            "schedule.kind: autoregressive, or draft.kind: model",
        ),
        (
            not sequential and drafts,
            "schedule.kind",
            f"autoregressive has no use for a draft, and draft.kind is {p.draft.kind}",
            "schedule.kind: sequential, or draft.kind: none",
        ),
        (
            not drafts and p.prune.method != "none",
            "prune.method",
            f"{p.prune.method} prunes what the draft sees, and draft.kind is none",
            "prune.method: none",
        ),
        (
            p.prune.method == "none" and p.prune.alpha > 0,
            "prune.alpha",
            f"{p.prune.alpha:g} has no effect with prune.method none",
            "prune.alpha: 0, or prune.method: "
            + next((n for n in ("uniform", *pruners.names()) if n != "none"), "none"),
        ),
        (
            p.prune.method == "hippo" and not (p.prune.attention_term or p.prune.temporal_term or p.prune.spatial_term),
            "prune.attention_term",
            "hippo needs one of its three terms, and all are off",
            "prune.attention_term: true",
        ),
    )
