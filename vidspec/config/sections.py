"""The sections of a profile: their keys, types and defaults, each checked by itself; no torch."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    model_validator,
)
from pydantic_core import PydanticCustomError

from vidspec.config.bounds import COLDEST, FASTEST, HOTTEST, LAYERS, MANY, SEED, THREADS, WIDEST
from vidspec.registry import Options, Registry, drafters, lossy, nearest, options_of, pruners, rules, schedules

__all__ = [
    "TREE",
    "AcceptSection",
    "DraftSection",
    "GenerateSection",
    "LossySection",
    "ModelsSection",
    "PruneSection",
    "ScheduleSection",
    "Section",
    "VideoSection",
    "WorkersSection",
]


def _named(registry: Registry[Any]) -> Callable[[str], str]:
    def check(name: str) -> str:
        if name not in registry.names():
            raise PydanticCustomError("name", "{complaint}", {"complaint": registry.complaint(name)})
        return name

    return check


#: The tree of SD-Tree and SpecVLM: 25 nodes, five deep (SpecVLM 4.1).
TREE = "0 1 2 3 | 00 01 02 10 11 20 21 30 | 000 001 002 010 011 020 021 100 | 0000 0001 0002 | 00000 00001"


def _tree(text: str) -> str:
    from vidspec.config.tree import parse_tree

    if len(text.split()) > WIDEST:
        raise PydanticCustomError("tree", "{text}", {"text": f"must have at most {WIDEST} nodes"})
    try:
        parse_tree(text)
    except ValueError as error:
        raise PydanticCustomError("tree", "{text}", {"text": str(error)}) from error
    return text


def _gamma(value: Any) -> Any:
    if value == "auto":
        return value
    if isinstance(value, str) and value.isdecimal() and len(value) <= len(str(WIDEST)):
        value = int(value)
    if isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= WIDEST:
        return value
    raise PydanticCustomError("gamma", "must be auto or a whole number from 1 to {widest}", {"widest": WIDEST})


def _temperature(value: float) -> float:
    if value == 0 or COLDEST <= value <= HOTTEST:
        return value
    raise PydanticCustomError(
        "temperature", "must be 0 or from {coldest} to {hottest}", {"coldest": COLDEST, "hottest": int(HOTTEST)}
    )


def _packed(value: Any) -> Any:
    chosen = {"auto": "auto", "true": True, "false": False}.get(str(value).lower())
    if chosen is None:
        raise PydanticCustomError("packed", "must be auto, true or false")
    return chosen


def _device(name: str) -> str:
    if not re.fullmatch(r"auto|cpu|mps|cuda(:\d+)?", name):
        raise PydanticCustomError("device", "must be auto, cpu, cuda, cuda:N or mps")
    return name


class Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=())


def _options(registry: Registry[Any]) -> AfterValidator:
    """What the part that a section names takes beyond the section's keys, whoever wrote it; the keys come first."""
    section, _, named = registry.key.partition(".")

    def check(given: dict[str, Any], info: ValidationInfo) -> dict[str, Any]:
        name = info.data.get(named)
        if name is None:  # what is wrong with the name is said elsewhere
            return given
        taken = Options if name in registry.always else options_of(registry.get(name), *registry.known)
        for key in given:
            text = ""
            if key not in taken.model_fields:
                close = nearest(key, taken.model_fields)
                text = f"{name} takes {', '.join(taken.model_fields) or 'no options'}"
                text = f"unknown key; did you mean {close}? {text}" if close else f"unknown key; {text}"
            elif key in info.data and registry.owns(name):
                text = f"is a key of the section; nearest valid choice: {section}.{key}"
            if text:
                wrong = PydanticCustomError("name", "{text}", {"text": text})
                raise ValidationError.from_exception_data("options", [{"type": wrong, "loc": (key,), "input": key}])
        return taken.model_validate(given).model_dump(exclude_unset=True)

    return AfterValidator(check)


class ModelsSection(Section):
    """Which models, and how they are loaded. ``pair`` names a built-in target and draft at once.

    ``captioner`` writes the caption that an ensemble's context of that name holds; the draft does if null.
    ``device_map`` splits a target that is larger than one device, as accelerate's strategy of that name does;
    ``draft_device`` is the draft's if it is not ``device``; ``quantization`` is the target's, by bitsandbytes.
    ``decoder`` runs the language models' blocks: our own, or the stock ones of transformers; ``auto`` is the former
    wherever it covers a model. ``packed`` keeps a packed copy of large weights on a CPU in float32, which makes passes
    of a few rows cheap.
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
    decoder: Literal["auto", "fused", "stock"] = "auto"
    threads: int | None = Field(default=None, ge=1, le=THREADS)
    packed: Annotated[bool | Literal["auto"], BeforeValidator(_packed)] = "auto"

    @model_validator(mode="before")
    @classmethod
    def _embedded_by_default(cls, data: Any) -> Any:
        if isinstance(data, Mapping) and all(data.get(key) is None for key in ("pair", "target", "draft")):
            return {**data, "pair": "embedded"}
        return data


class VideoSection(Section):
    """Which frames are shown to the models: a number of ``frames`` or a rate ``fps``; and whether they hear the sound.

    ``allow_damaged``: of a file with damage, those that are whole; otherwise it is an error. ``audio``: with the sound
    of the same time, by models that hear.
    """

    frames: int | None = Field(default=None, ge=1, le=100_000)
    fps: float | None = Field(default=None, gt=0, le=FASTEST, allow_inf_nan=False)
    max_pixels: int | None = Field(default=None, ge=1, le=2**31 - 1)
    decoder: Literal["auto", "decord", "av", "nvdec"] = "auto"
    allow_damaged: bool = False
    audio: bool = True

    @model_validator(mode="before")
    @classmethod
    def _frames_by_default(cls, data: Any) -> Any:
        if isinstance(data, Mapping) and all(data.get(key) is None for key in ("frames", "fps")):
            return {**data, "frames": 32}
        return data


class DraftSection(Section):
    """What proposes tokens, in which shape and how many at a time.

    ``gamma`` is the length of a chain and the depth of a tree; ``auto`` measures which length pays. ``topology``
    adaptive is a tree that grows by the draft's probabilities, as far as rows and passes are worth their measured time,
    or a chain. The rest is read by the drafters it is named for: ``tree`` by the topology tree, its nodes by the ranks
    of children; ``prefill`` by self, where its cache comes from; ``entries`` and ``share`` by sparse_kv, how many cache
    entries it reads and of the visual ones at most which share; ``contexts``, ``weights``, ``divergence`` and
    ``history`` by ensemble: what the draft is shown, how the distributions are weighed, by which divergence from the
    target, over how many of the last tokens (all if null); ``memory`` by suffix and hybrid, a file that keeps captions
    from run to run. ``options``, here and in the sections of other parts, are what the named part's constructor takes
    besides, each checked by its type there.
    """

    kind: Annotated[str, AfterValidator(_named(drafters))] = "none"
    topology: Literal["chain", "tree", "adaptive"] = "chain"
    gamma: Annotated[int | Literal["auto"], BeforeValidator(_gamma)] = 5
    tree: Annotated[str, AfterValidator(_tree)] = TREE
    prefill: Literal["gather", "again"] = "gather"
    entries: int = Field(default=1024, ge=1, le=MANY)
    share: float = Field(default=0.1, gt=0, le=1, allow_inf_nan=False)
    contexts: tuple[Literal["video", "text", "caption", "pooled"], ...] = Field(default=("video", "text"), min_length=1)
    weights: Literal["equal", "grid", "softmax", "inverse"] = "equal"
    divergence: Literal["kl", "tvd"] = "kl"
    history: int | None = Field(default=None, ge=1, le=MANY)
    memory: str | None = Field(default=None, min_length=1)
    options: Annotated[dict[str, Any], _options(drafters)] = Field(default_factory=dict, validate_default=True)


class PruneSection(Section):
    """What the draft sees of the video: ``alpha`` is the share of visual tokens it does not see.

    The rest is read by the pruners it is named for: ``seed`` by random; ``place`` by window, where its run of tokens
    lies; ``lam_r`` by specvlm, the share of all attention its first stage keeps (null: 0.5 for Qwen, 0.4 for
    others); ``layer`` by uv, uv_similarity and uv_attention (null: 20, and half the depth of a target of fewer
    than 24 blocks); the three ``_term``
    by hippo, whether each counts; ``keys`` by attention and hippo, whether the softmax of attention runs over all keys
    or the visual ones alone.

    ``when`` is read by the schedule parallel where both prompts are read at the same time: ``wait``, the draft reads
    its prompt once it is known what it may see; ``late``, it reads the whole video at once and drafts from it, and its
    cache is pruned when the target has read its prompt (HIPPO). Null: late for pruners that need attention over all
    blocks, where a cache can be pruned, and wait for others.
    """

    method: Annotated[str, AfterValidator(_named(pruners))] = "none"
    alpha: float = Field(default=0.9, ge=0, le=0.99, allow_inf_nan=False)
    seed: int = Field(default=0, ge=0, le=SEED)
    positions: Literal["original", "compact"] = "original"
    when: Literal["wait", "late"] | None = None
    place: Literal["front", "middle", "end"] = "middle"
    lam_r: float | None = Field(default=None, ge=0, le=1, allow_inf_nan=False)
    layer: int | None = Field(default=None, ge=1, le=LAYERS)
    keys: Literal["all", "visual"] = "all"
    attention_term: bool = True
    temporal_term: bool = True
    spatial_term: bool = True
    options: Annotated[dict[str, Any], _options(pruners)] = Field(default_factory=dict, validate_default=True)

    @model_validator(mode="before")
    @classmethod
    def _nothing_pruned_by_none(cls, data: Any) -> Any:
        if isinstance(data, Mapping) and data.get("method", "none") == "none":
            return {"alpha": 0.0, **data}
        return data


def _renamed(kind: Any) -> Any:
    """Profiles of earlier versions left drafter and schedule to a ``plan``."""
    return "race" if kind == "plan" else kind


class ScheduleSection(Section):
    """In which order draft and target work: a schedule, ``auto`` to race both orders on the first clip, or ``race`` to
    race a few lossless profiles (``plan`` in profiles of earlier versions).

    The rest is read by parallel: ``prefill``, whether the draft reads its prompt beside the target's prefill or behind
    it; ``startup``, how many tokens it may draft until the target is done, a window (ParallelVLM) or as many as fit
    (HIPPO).
    """

    kind: Annotated[str, BeforeValidator(_renamed), AfterValidator(_named(schedules))] = "autoregressive"
    prefill: Literal["sequential", "parallel"] = "sequential"
    startup: Literal["window", "fit"] = "window"


class WorkersSection(Section):
    """How the parallel schedule divides the machine: devices of target and draft, the draft's threads on a CPU.

    ``timeout``: seconds after which a draft that owes an answer is taken to hang, and is replaced; while it loads its
    model or reads its prompt, seconds without a sign of work.
    """

    target: Annotated[str, AfterValidator(_device)] | None = None
    draft: Annotated[str, AfterValidator(_device)] | None = None
    draft_threads: int | None = Field(default=None, ge=1, le=THREADS)
    timeout: float = Field(default=30.0, gt=0, le=MANY, allow_inf_nan=False)


def _words(words: Any) -> Any:
    return [word.strip() for word in words.split(",") if word.strip()] if isinstance(words, str) else words


class AcceptSection(Section):
    """Which proposed tokens are kept.

    The rest is read by the lossy rules it is named for: ``lam``, the loose share of a window, ``similar``, how many
    visual positions a token's relevance is the mean over, and ``tolerance`` of shifted positions by lvspec; ``theta``,
    the entropy in nats from which a mismatch may pass, by fly and fly_minus; ``window``, how many places must be seen
    from a mismatch on, by fly; ``rate``, how often a mismatch passes, by random_loose. ``protect`` names words, and
    the classes ``numbers`` and ``negations``, that none of them lets pass.
    """

    rule: Annotated[str, AfterValidator(_named(rules))] = "exact"
    lam: float = Field(default=0.7, ge=0, le=1, allow_inf_nan=False)
    similar: int = Field(default=10, ge=1, le=MANY)
    tolerance: bool = True
    theta: float = Field(default=0.3, ge=0, allow_inf_nan=False)
    window: int = Field(default=6, ge=1, le=MANY)
    rate: float = Field(default=0.5, ge=0, le=1, allow_inf_nan=False)
    protect: Annotated[tuple[Annotated[str, Field(min_length=1)], ...], BeforeValidator(_words)] = ()
    options: Annotated[dict[str, Any], _options(rules)] = Field(default_factory=dict, validate_default=True)


def _shares(shares: Any) -> Any:
    if isinstance(shares, str):
        return [share.strip() for share in shares.strip("[] ").split(",")]
    return [shares] if isinstance(shares, int | float) and not isinstance(shares, bool) else shares


class LossySection(Section):
    """What the target itself does not see of the video, in plain decoding, for comparison; its text is another then.

    The rest is read by the methods it is named for, null being the method's own value: ``retention`` by all, the share
    of the visual tokens that a block of the target reads, on average over the blocks, which each method's own shares
    are scaled to; ``keep``, instead of it, these shares as they are (fastv one, pdrop and sparsevlm three, dycoke one,
    that of the cache entries read); ``layer`` by fastv and dycoke, the blocks that read everything; ``recycle``, the
    share of the dropped tokens that is clustered, and ``cluster``, tokens per cluster, by sparsevlm; ``merge``, the
    share of like tokens merged between frames, and ``similarity`` of attention below which entries are chosen anew, by
    dycoke.
    """

    method: Annotated[str, AfterValidator(_named(lossy))] = "none"
    retention: float | None = Field(default=None, gt=0, le=1, allow_inf_nan=False)
    keep: Annotated[tuple[Annotated[float, Field(gt=0, le=1)], ...] | None, BeforeValidator(_shares)] = None
    layer: int | None = Field(default=None, ge=1, le=LAYERS)
    recycle: float = Field(default=0.3, ge=0, le=1, allow_inf_nan=False)
    cluster: int = Field(default=10, ge=1, le=MANY)
    merge: float = Field(default=0.7, ge=0, le=1, allow_inf_nan=False)
    similarity: float = Field(default=0.9, ge=-1, le=1, allow_inf_nan=False)
    options: Annotated[dict[str, Any], _options(lossy)] = Field(default_factory=dict, validate_default=True)


class GenerateSection(Section):
    """What is asked and how the answer is sampled; temperature 0 is greedy.

    ``stop_loops`` ends a text that says the same words again and again, as :mod:`vidspec.decoding.limits` finds out.
    """

    max_new_tokens: int = Field(default=512, ge=1, le=MANY)
    stop_loops: bool = False
    temperature: Annotated[float, AfterValidator(_temperature)] = Field(default=0.0, allow_inf_nan=False)
    top_p: float = Field(default=1.0, ge=1e-6, le=1, allow_inf_nan=False)
    seed: int = Field(default=0, ge=0, le=SEED)
    prompt: str = Field(default="Describe this video in detail.", min_length=1)
    system: str | None = Field(default=None, min_length=1)
