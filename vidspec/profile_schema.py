"""The schema of a profile: its sections, keys, defaults and the combinations that make sense; no lookup, no torch."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from vidspec.registry import Registry, drafters, load_plugin, pruners, rules, schedules

__all__ = ["LOSSY", "Profile"]


def _named(registry: Registry[Any]) -> Callable[[str], str]:
    def check(name: str) -> str:
        if name not in registry.names():
            raise PydanticCustomError("name", "{complaint}", {"complaint": registry.complaint(name)})
        return name

    return check


#: The tree of SD-Tree and SpecVLM: 25 nodes, five deep (SpecVLM 4.1).
TREE = "0 1 2 3 | 00 01 02 10 11 20 21 30 | 000 001 002 010 011 020 021 100 | 0000 0001 0002 | 00000 00001"


def _tree(text: str) -> str:
    from vidspec.drafting.topology import parse_tree

    try:
        parse_tree(text)
    except ValueError as error:
        raise PydanticCustomError("tree", "{text}", {"text": str(error)}) from error
    return text


def _gamma(value: Any) -> Any:
    if value == "auto" or (isinstance(value, int) and not isinstance(value, bool) and value >= 1):
        return value
    if isinstance(value, str) and value.isdecimal() and int(value) >= 1:
        return int(value)
    raise PydanticCustomError("gamma", "must be auto or a whole number from 1 on")


def _device(name: str) -> str:
    if not re.fullmatch(r"auto|cpu|mps|cuda(:\d+)?", name):
        raise PydanticCustomError("device", "must be auto, cpu, cuda, cuda:N or mps")
    return name


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=())


class ModelsSection(_Section):
    """Which models, and how they are loaded. ``pair`` names a built-in target and draft at once.

    ``captioner`` writes the caption that an ensemble's context of that name holds; the draft does if null.
    ``device_map`` splits a target that is larger than one device, as accelerate's strategy of that name does;
    ``draft_device`` is the draft's if it is not ``device``; ``quantization`` is the target's, by bitsandbytes.
    """

    pair: Literal["embedded", "embedded-qwen"] | None = None
    target: str | None = Field(default=None, min_length=1)
    draft: str | None = Field(default=None, min_length=1)
    captioner: str | None = Field(default=None, min_length=1)
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    device: Annotated[str, AfterValidator(_device)] = "auto"
    device_map: Literal["auto", "balanced", "balanced_low_0", "sequential"] | None = None
    draft_device: Annotated[str, AfterValidator(_device)] | None = None
    quantization: Literal["8bit", "4bit"] | None = None
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
    """What proposes tokens, in which shape and how many at a time.

    ``gamma`` is the length of a chain and the depth of a tree. The rest is read by the drafters it is named for:
    ``tree`` by the topology tree, its nodes by the ranks of children; ``prefill`` by self, where its cache comes from;
    ``entries`` and ``share`` by sparse_kv, how many cache entries it reads and of the visual ones at most which share;
    ``contexts``, ``weights``, ``divergence`` and ``history`` by ensemble: what the draft is shown, how the
    distributions are weighed, by which divergence from the target, over how many of the last tokens (all if null).
    """

    kind: Annotated[str, AfterValidator(_named(drafters))] = "none"
    topology: Literal["chain", "tree"] = "chain"
    gamma: Annotated[int | Literal["auto"], BeforeValidator(_gamma)] = 5
    tree: Annotated[str, AfterValidator(_tree)] = TREE
    prefill: Literal["gather", "again"] = "gather"
    entries: int = Field(default=1024, ge=1)
    share: float = Field(default=0.1, gt=0, le=1, allow_inf_nan=False)
    contexts: tuple[Literal["video", "text", "caption", "pooled"], ...] = Field(default=("video", "text"), min_length=1)
    weights: Literal["equal", "grid", "softmax", "inverse"] = "equal"
    divergence: Literal["kl", "tvd"] = "kl"
    history: int | None = Field(default=None, ge=1)


class PruneSection(_Section):
    """What the draft sees of the video: ``alpha`` is the share of visual tokens it does not see.

    The rest is read by the pruners it is named for: ``seed`` by random; ``place`` by window, where its run of tokens
    lies; ``lam_r`` by specvlm, the share of all attention its first stage keeps (null: 0.5 for Qwen, 0.4 for
    others); ``layer`` by uv, uv_similarity and uv_attention, capped at half the target's depth; the three ``_term``
    by hippo, whether each counts; ``options`` by pruners of plugins, whatever their constructors take.
    """

    method: Annotated[str, AfterValidator(_named(pruners))] = "none"
    alpha: float = Field(default=0.9, ge=0, le=0.99, allow_inf_nan=False)
    seed: int = Field(default=0, ge=0)
    positions: Literal["original", "compact"] = "original"
    place: Literal["front", "middle", "end"] = "middle"
    lam_r: float | None = Field(default=None, ge=0, le=1, allow_inf_nan=False)
    layer: int = Field(default=20, ge=1)
    attention_term: bool = True
    temporal_term: bool = True
    spatial_term: bool = True
    options: dict[str, Any] = Field(default_factory=dict)

    @model_validator(mode="before")
    @classmethod
    def _nothing_pruned_by_none(cls, data: Any) -> Any:
        if isinstance(data, Mapping) and data.get("method", "none") == "none":
            return {"alpha": 0.0, **data}
        return data


class ScheduleSection(_Section):
    """In which order draft and target work.

    The rest is read by parallel: ``prefill``, whether the draft reads its prompt beside the target's prefill or behind
    it; ``startup``, how many tokens it may draft until the target is done, a window (ParallelVLM) or as many as fit
    (HIPPO).
    """

    kind: Annotated[str, AfterValidator(_named(schedules))] = "autoregressive"
    prefill: Literal["sequential", "parallel"] = "sequential"
    startup: Literal["window", "fit"] = "window"


class WorkersSection(_Section):
    """How the parallel schedule divides the machine: devices of target and draft, the draft's threads on a CPU.

    ``timeout``: seconds without an answer after which a worker has failed.
    """

    target: Annotated[str, AfterValidator(_device)] | None = None
    draft: Annotated[str, AfterValidator(_device)] | None = None
    draft_threads: int | None = Field(default=None, ge=1)
    timeout: float = Field(default=300.0, gt=0, allow_inf_nan=False)


def _words(words: Any) -> Any:
    return [word.strip() for word in words.split(",") if word.strip()] if isinstance(words, str) else words


class AcceptSection(_Section):
    """Which proposed tokens are kept.

    The rest is read by the lossy rules it is named for: ``lam``, the loose share of a window, ``similar``, how many
    visual positions a token's relevance is the mean over, and ``tolerance`` of shifted positions by lvspec; ``theta``,
    the entropy in nats from which a mismatch may pass, by fly and fly_minus; ``window``, how many places must be seen
    from a mismatch on, by fly; ``rate``, how often a mismatch passes, by random_loose. ``protect`` names words, and
    the classes ``numbers`` and ``negations``, that none of them lets pass.
    """

    rule: Annotated[str, AfterValidator(_named(rules))] = "exact"
    lam: float = Field(default=0.7, ge=0, le=1, allow_inf_nan=False)
    similar: int = Field(default=10, ge=1)
    tolerance: bool = True
    theta: float = Field(default=0.3, ge=0, allow_inf_nan=False)
    window: int = Field(default=6, ge=1)
    rate: float = Field(default=0.5, ge=0, le=1, allow_inf_nan=False)
    protect: Annotated[tuple[Annotated[str, Field(min_length=1)], ...], BeforeValidator(_words)] = ()


class GenerateSection(_Section):
    """What is asked and how the answer is sampled; temperature 0 is greedy."""

    max_new_tokens: int = Field(default=512, ge=1)
    temperature: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    top_p: float = Field(default=1.0, gt=0, le=1, allow_inf_nan=False)
    seed: int = Field(default=0, ge=0)
    prompt: str = Field(default="Describe this video in detail.", min_length=1)
    system: str | None = Field(default=None, min_length=1)


def _absolute(files: Any) -> Any:
    if isinstance(files, str):
        files = [files]
    if not isinstance(files, list | tuple):
        return files
    return [str(Path(file).expanduser().resolve()) if isinstance(file, str) else file for file in files]


def _loaded(files: tuple[str, ...]) -> tuple[str, ...]:
    for file in files:
        load_plugin(file)
    return files


class Profile(_Section):
    """One way of captioning, complete and consistent.

    ``plugins`` are Python files that register further methods; a relative path in a profile's file starts beside it.
    """

    name: str = Field(min_length=1)
    about: str = ""
    plugins: Annotated[tuple[str, ...], BeforeValidator(_absolute), AfterValidator(_loaded)] = ()  # before the names
    models: ModelsSection = Field(default_factory=lambda: ModelsSection())
    video: VideoSection = Field(default_factory=lambda: VideoSection())
    draft: DraftSection = Field(default_factory=lambda: DraftSection())
    prune: PruneSection = Field(default_factory=lambda: PruneSection())
    schedule: ScheduleSection = Field(default_factory=lambda: ScheduleSection())
    workers: WorkersSection = Field(default_factory=lambda: WorkersSection())
    accept: AcceptSection = Field(default_factory=lambda: AcceptSection())
    generate: GenerateSection = Field(default_factory=lambda: GenerateSection())

    def __setstate__(self, state: dict[Any, Any]) -> None:
        """In another process the plugins are loaded again."""
        super().__setstate__(state)
        _loaded(self.plugins)

    @model_validator(mode="before")
    @classmethod
    def _empty_sections(cls, data: Any) -> Any:
        """``video:`` with nothing below it is YAML for null; take it as an empty section."""
        if isinstance(data, Mapping):
            return {key: value for key, value in data.items() if value is not None}
        return data

    @property
    def drafts_with_a_model(self) -> bool:
        """Whether a draft model is needed beside the target."""
        return self.draft.kind != "none" and self.draft.kind not in _OWN_WEIGHTS

    @property
    def describes(self) -> bool:
        """Whether a caption of a frame stands for the video in one of the draft's contexts."""
        return self.draft.kind == "ensemble" and "caption" in self.draft.contexts

    @property
    def shows_the_video(self) -> bool:
        """Whether the draft sees anything of the video."""
        if self.draft.kind == "ensemble":
            return "video" in self.draft.contexts or "pooled" in self.draft.contexts
        return self.draft.kind != "text_only"

    @property
    def chooses(self) -> bool:
        """Whether the schedule is chosen by measurement."""
        return self.schedule.kind == "auto"

    @property
    def concurrent(self) -> bool:
        """Whether target and draft work at the same time, in workers of their own."""
        return self.schedule.kind == "parallel"

    @model_validator(mode="after")
    def _consistent(self) -> Profile:
        for broken, key, reason, instead in _combinations(self):
            if broken:
                raise PydanticCustomError(
                    "combination", "{text}", {"text": f"{key}: {reason}; nearest valid choice: {instead}"}
                )
        return self


#: Schedules in which the draft may have a worker of its own.
_BESIDE = frozenset({"parallel", "auto"})
#: Drafters that look into the target's cache or at its distributions while it works.
_NEAR = frozenset({"sparse_kv", "ensemble"})
#: Drafters that run on the target's weights, and those that choose by themselves what they see.
_OWN_WEIGHTS, _BLIND = frozenset({"self", "sparse_kv"}), frozenset({"sparse_kv", "text_only"})


#: Rules that compare greedy choices and change the text.
LOSSY = frozenset({"lvspec", "fly", "fly_minus", "random_loose"})


def _combinations(p: Profile) -> tuple[tuple[bool, str, str, str], ...]:
    """Each as: is it broken, the key to change, the reason, what to do instead."""
    models, drafts, sequential = p.models, p.draft.kind != "none", p.schedule.kind != "autoregressive"
    return (
        (
            p.draft.topology == "tree" and p.draft.kind == "ensemble",
            "draft.topology",
            "an ensemble drafts a chain",
            "draft.topology: chain",
        ),
        (
            p.draft.kind == "ensemble" and len(set(p.draft.contexts)) < len(p.draft.contexts),
            "draft.contexts",
            "names a context twice",
            "draft.contexts: " + str(list(dict.fromkeys(p.draft.contexts))).replace("'", ""),
        ),
        (
            models.captioner is not None and not p.describes,
            "models.captioner",
            "has no effect without an ensemble's context caption",
            "leave it out, or the profile tabed-mtcp",
        ),
        (
            p.prune.method != "none" and p.draft.kind == "ensemble" and "video" not in p.draft.contexts,
            "prune.method",
            f"{p.prune.method} prunes the context video, which draft.contexts lacks",
            "prune.method: none",
        ),
        (
            p.draft.topology == "tree" and p.schedule.kind in _BESIDE,
            "draft.topology",
            "the parallel schedule drafts a chain",
            "draft.topology: chain, or schedule.kind: sequential",
        ),
        (
            p.schedule.kind in _BESIDE and p.draft.kind in _NEAR,
            "draft.kind",
            f"{p.draft.kind} needs more of the target than token ids, and the parallel schedule sends no more",
            "draft.kind: model, or schedule.kind: sequential",
        ),
        (
            p.draft.gamma == "auto" and p.schedule.kind not in _BESIDE,
            "draft.gamma",
            "auto is the ratio of forward times that keeps two workers busy, and only the parallel schedule has two",
            "draft.gamma: 5, or schedule.kind: parallel",
        ),
        (
            p.schedule.prefill == "parallel" and p.schedule.kind not in _BESIDE,
            "schedule.prefill",
            f"parallel needs two workers, and schedule.kind is {p.schedule.kind}",
            "schedule.prefill: sequential, or schedule.kind: parallel",
        ),
        (
            p.prune.method != "none" and p.draft.kind in _BLIND,
            "prune.method",
            f"{p.prune.method} chooses what a draft sees, and draft.kind {p.draft.kind} chooses itself",
            "prune.method: none",
        ),
        (
            p.accept.rule in LOSSY and p.generate.temperature > 0,
            "generate.temperature",
            f"{p.accept.rule} compares greedy choices, and {p.generate.temperature:g} draws tokens",
            "generate.temperature: 0, or accept.rule: exact",
        ),
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
            models.device_map is not None and models.device != "auto",
            "models.device",
            f"{models.device} excludes models.device_map, which takes all devices",
            "models.device: auto, and models.draft_device for the draft",
        ),
        (
            models.pair is None and models.target is None,
            "models.target",
            "is needed with models.draft",
            "name a target, or models.pair: embedded",
        ),
        (
            p.drafts_with_a_model and models.target is not None and models.draft is None,
            "models.draft",
            f"is needed with draft.kind {p.draft.kind}",
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
