"""The sections of a profile: keys that do not belong to a single part, and refused combinations. No torch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypedDict, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    create_model,
    model_validator,
)
from pydantic_core import PydanticCustomError

from vidspec.config import values
from vidspec.config.bounds import FASTEST, MANY, SEED, STALL, THREADS
from vidspec.models.unsupported import find_target_problem
from vidspec.registry import (
    OptionConflict,
    PartOptions,
    Registry,
    drafters,
    lossy,
    nearest,
    options_of,
    pruners,
    rules,
    schedules,
)

if TYPE_CHECKING:
    from vidspec.config.schema import Profile

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


def _validate_name(registry: Registry[Any]) -> Callable[[str], str]:
    def check(name: str) -> str:
        if name not in registry.names():
            raise PydanticCustomError("name", "{complaint}", {"complaint": registry.complaint(name)})
        return name

    return check


#: The tree of SD-Tree and SpecVLM: 25 nodes, five deep (SpecVLM 4.1).
TREE = "0 1 2 3 | 00 01 02 10 11 20 21 30 | 000 001 002 010 011 020 021 100 | 0000 0001 0002 | 00000 00001"


class Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=())

    def check(self, profile: Profile) -> Iterator[OptionConflict]:
        """Yield conflicts of its keys with others of the profile."""
        yield from ()


def _options(registry: Registry[Any]) -> AfterValidator:
    """Return a validator of ``options`` against the part that the section names; needs the section's keys validated."""
    section, _, named = registry.key.partition(".")

    def check(given: dict[str, object], info: ValidationInfo) -> dict[str, object]:
        name = info.data.get(named)
        if name is None:  # the name is invalid and reported already
            return given
        taken = PartOptions if name in registry.always else options_of(registry.get(name), *registry.known)
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


class PartSection(Section):
    """A section that names a part and takes its options."""

    if TYPE_CHECKING:  # set by with_parts, after all keys
        options: dict[str, object] = Field(default_factory=dict)


S = TypeVar("S", bound=PartSection)


def with_parts(registry: Registry[Any]) -> Callable[[type[S]], type[S]]:
    """Class decorator: add the keys of built-in parts to a section, and ``options`` for all other options.

    A key is checked whichever part is named, so a profile may change the part alone.
    """

    def extended(section: type[S]) -> type[S]:
        options = Annotated[dict[str, object], _options(registry)]
        fields: dict[str, Any] = {
            **registry.section_keys(),
            "options": (options, Field(default_factory=dict, validate_default=True)),
        }
        return create_model(
            section.__name__, __base__=section, __module__=section.__module__, __doc__=section.__doc__, **fields
        )

    return extended


class ModelsSection(Section):
    """Models and how they are loaded. ``pair`` names a built-in target and draft.

    ``adapter`` is a LoRA in PEFT's format, merged into the target.
    ``captioner`` is the model that writes the caption for an ensemble's context ``caption``; null: the draft.
    ``device_map`` splits a target over several devices, by accelerate's strategy of that name;
    ``draft_device`` is the draft's device if it is not ``device``; ``quantization`` loads the target with bitsandbytes.
    ``weights`` quantises the target's language model to codes of that many bits; lossless then refers to these weights.
    ``decoder`` runs the language models' blocks: fused, or the stock ones of transformers; ``auto`` is fused wherever
    it covers a model. ``packed`` keeps a packed copy of large float32 weights on a CPU, which makes passes of a few
    rows cheap, and packs bfloat16 weights.
    """

    pair: Literal["embedded", "embedded-qwen"] | None = None
    target: str | None = Field(default=None, min_length=1)
    draft: str | None = Field(default=None, min_length=1)
    adapter: str | None = Field(default=None, min_length=1)
    captioner: str | None = Field(default=None, min_length=1)
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    device: Annotated[str, AfterValidator(values.device)] = "auto"
    device_map: Literal["auto", "balanced", "balanced_low_0", "sequential"] | None = None
    draft_device: Annotated[str, AfterValidator(values.device)] | None = None
    quantization: Literal["8bit", "4bit"] | None = None
    weights: Literal["int8", "int4"] | None = None
    decoder: Literal["auto", "fused", "stock"] = "auto"
    threads: int | None = Field(default=None, ge=1, le=THREADS)
    packed: Annotated[bool | Literal["auto"], BeforeValidator(values.packed)] = "auto"

    @model_validator(mode="before")
    @classmethod
    def _embedded_by_default(cls, data: object) -> object:
        if isinstance(data, Mapping) and all(data.get(key) is None for key in ("pair", "target", "draft")):
            return {**data, "pair": "embedded"}
        return data

    def check(self, profile: Profile) -> Iterator[OptionConflict]:
        kind, unnamed = profile.draft.kind, self.target is not None and self.draft is None
        if self.captioner is not None and not profile.describes:
            reason = "has no effect unless draft.contexts has caption"
            yield OptionConflict("models.captioner", reason, "leave it out, or the profile tabed-mtcp")
        if self.pair is not None and (self.target is not None or self.draft is not None):
            reason = "excludes models.target and models.draft"
            yield OptionConflict("models.pair", reason, f"models.pair: {self.pair} alone")
        if self.device_map is not None and self.device != "auto":
            reason = f"{self.device} excludes models.device_map, which takes all devices"
            yield OptionConflict("models.device", reason, "models.device: auto, and models.draft_device for the draft")
        if self.weights is not None and (self.quantization is not None or self.device_map is not None):
            key = "quantization" if self.quantization is not None else "device_map"
            yield OptionConflict("models.weights", f"{self.weights} excludes models.{key}", f"models.{key} alone")
        if self.pair is None and self.target is None:
            yield OptionConflict(
                "models.target", "is needed with models.draft", "name a target, or models.pair: embedded"
            )
        if unnamed and profile.drafts_with_a_model and self.target is not None:
            if (problem := find_target_problem(self.target)) is not None:
                yield OptionConflict("models.target", problem.what, problem.instead)
            instead = "name a draft of the target's family (`vidspec models` lists some), or take the profile ar"
            yield OptionConflict("models.draft", f"is needed with draft.kind {kind}", instead)
        if unnamed and profile.names_a_head:
            instead = "name the head that was trained for the target, or take the profile ar"
            yield OptionConflict("models.draft", f"is needed with draft.kind {kind}", instead)


class VideoArguments(TypedDict):
    """Arguments of ``vidspec.video.read`` that come from a profile."""

    frames: int | None
    fps: float | None
    max_pixels: int | None
    decoder: str
    seek: str
    allow_damaged: bool


class VideoSection(Section):
    """Frames that the models see: a number of ``frames`` or a rate ``fps``; and sound.

    ``seek``: exactly these frames, or the keyframes nearest to them. ``allow_damaged``: use the intact frames of a
    damaged file; otherwise damage is an error. ``audio``: models with audio input also get the sound of the same time
    range. ``stall``: seconds without a packet or a frame until reading a clip is given up.
    """

    frames: int | None = Field(default=None, ge=1, le=100_000)
    fps: float | None = Field(default=None, gt=0, le=FASTEST, allow_inf_nan=False)
    max_pixels: int | None = Field(default=None, ge=1, le=2**31 - 1)
    decoder: Literal["auto", "decord", "av", "nvdec", "vaapi", "videotoolbox"] = "auto"
    seek: Literal["exact", "keyframes"] = "exact"
    allow_damaged: bool = False
    audio: bool = True
    stall: float = Field(default=STALL, gt=0, le=MANY, allow_inf_nan=False)

    @property
    def arguments(self) -> VideoArguments:
        """Arguments of ``vidspec.video.read``."""
        return VideoArguments(
            frames=self.frames,
            fps=self.fps,
            max_pixels=self.max_pixels,
            decoder=self.decoder,
            seek=self.seek,
            allow_damaged=self.allow_damaged,
        )

    @model_validator(mode="before")
    @classmethod
    def _frames_by_default(cls, data: object) -> object:
        if isinstance(data, Mapping) and all(data.get(key) is None for key in ("frames", "fps")):
            return {**data, "frames": 32}
        return data

    def check(self, profile: Profile) -> Iterator[OptionConflict]:
        if self.frames is not None and self.fps is not None:
            yield OptionConflict("video.fps", "excludes video.frames", f"video.frames: {self.frames} alone")


@with_parts(drafters)
class DraftSection(PartSection):
    """The drafter, and shape and length of its drafts.

    ``gamma`` is the length of a chain and the depth of a tree; ``auto`` chooses it by measured times. ``topology``
    adaptive is a chain, or a tree that grows by the draft's probabilities as far as rows and passes are worth their
    measured time. ``precision`` is the format of the drafting model's weights: int8 or int4 codes, unchanged
    (as-target), or ``auto``: int8 for a draft model if that is known to make its passes cheaper, otherwise unchanged.
    ``tree`` is used by the topology tree, its nodes named by the ranks of children. Further keys, and ``options``, here
    and in the sections of other parts, are parameters of the parts' constructors.
    """

    kind: Annotated[str, AfterValidator(_validate_name(drafters))] = "none"
    topology: Literal["chain", "tree", "adaptive"] = "chain"
    gamma: Annotated[int | Literal["auto"], BeforeValidator(values.gamma)] = 5
    tree: Annotated[str, AfterValidator(values.tree)] = TREE
    precision: Literal["auto", "as-target", "int8", "int4"] = "auto"

    def check(self, profile: Profile) -> Iterator[OptionConflict]:
        drafter, kind, concurrent = profile.drafter, self.kind, profile.concurrent
        if drafter is not None and self.topology != "chain" and not drafter.trees:
            reason = f"{'an' if kind[0] in 'aeiou' else 'a'} {kind} drafts a chain"
            yield OptionConflict("draft.topology", reason, "draft.topology: chain")
        if self.topology == "adaptive" and profile.drafts_for_free:
            reason = f"adaptive trees grow by the probabilities of a model, and trees of {kind} by matches in the text"
            yield OptionConflict("draft.topology", reason, "draft.topology: tree")
        if concurrent and self.topology != "chain":
            instead = "draft.topology: chain, or schedule.kind: sequential"
            yield OptionConflict("draft.topology", "the parallel schedule drafts a chain", instead)
        if concurrent and drafter is not None and not drafter.remote:
            reason = f"{kind} needs more of the target than token ids, which is all that the parallel schedule sends"
            yield OptionConflict("draft.kind", reason, "draft.kind: model, or schedule.kind: sequential")
        if self.gamma == "auto" and self.topology == "tree" and not (drafter and drafter.paces):
            reason = "auto applies to chains, and draft.topology is tree"
            yield OptionConflict("draft.gamma", reason, "draft.gamma: 5, or draft.topology: chain")
        if self.precision in ("int8", "int4") and not (profile.drafts_with_a_model or profile.drafts_with_the_target):
            reason = f"{self.precision} applies to the weights of a model that drafts, and draft.kind is {kind}"
            yield OptionConflict("draft.precision", reason, "draft.precision: auto, or draft.kind: self")
        if self.gamma == "auto" and drafter is None:
            yield OptionConflict("draft.gamma", "auto needs a draft", "draft.gamma: 5, or draft.kind: model")


@with_parts(pruners)
class PruneSection(PartSection):
    """Pruning of the draft's visual tokens: ``alpha`` is the share it does not see; ``seed`` is for random pruners.

    ``when`` applies to the parallel schedule with parallel prefill. ``wait``: the draft reads its prompt once its
    visual tokens are chosen. ``late``: it reads the whole video at once and drafts from it, and its cache is pruned
    after the target's prefill (HIPPO). Null: late for pruners that need attention over all blocks, if the cache can be
    pruned; wait for others.
    """

    method: Annotated[str, AfterValidator(_validate_name(pruners))] = "none"
    alpha: float = Field(default=0.9, ge=0, le=0.99, allow_inf_nan=False)
    seed: int = Field(default=0, ge=0, le=SEED)
    positions: Literal["original", "compact"] = "original"
    when: Literal["wait", "late"] | None = None

    @model_validator(mode="before")
    @classmethod
    def _nothing_pruned_by_none(cls, data: object) -> object:
        if isinstance(data, Mapping) and data.get("method", "none") == "none":
            return {"alpha": 0.0, **data}
        return data

    def check(self, profile: Profile) -> Iterator[OptionConflict]:
        drafter, method, kind = profile.drafter, self.method, profile.draft.kind
        if self.when == "late" and self.positions == "compact" and profile.schedule.prefill == "parallel":
            reason = "late prunes the cache at its original positions, and prune.positions is compact"
            yield OptionConflict("prune.when", reason, "prune.when: wait, or prune.positions: original")
        if method != "none" and drafter is None:
            reason = f"{method} prunes what the draft sees, and draft.kind is none"
            yield OptionConflict("prune.method", reason, "prune.method: none")
        if method != "none" and drafter is not None and drafter.sees != "kept":
            reason = f"{method} chooses what a draft sees, and draft.kind {kind} chooses itself"
            yield OptionConflict("prune.method", reason, "prune.method: none")
        if method == "none" and self.alpha > 0:
            instead = next((name for name in ("uniform", *pruners.names()) if name != "none"), "none")
            reason = f"{self.alpha:g} has no effect with prune.method none"
            yield OptionConflict("prune.alpha", reason, f"prune.alpha: 0, or prune.method: {instead}")


class ScheduleSection(Section):
    """Order of the work of draft and target.

    The other keys apply to parallel: ``prefill``, the draft reads its prompt alongside the target's prefill or after
    it; ``startup``, the tokens it may draft until the target's prefill ends: a window (ParallelVLM) or as many as fit
    (HIPPO).
    """

    kind: Annotated[str, AfterValidator(_validate_name(schedules))] = "autoregressive"
    prefill: Literal["sequential", "parallel"] = "sequential"
    startup: Literal["window", "fit"] = "window"

    def check(self, profile: Profile) -> Iterator[OptionConflict]:
        if self.prefill == "parallel" and not profile.concurrent:
            reason = f"parallel needs two workers, and schedule.kind is {self.kind}"
            yield OptionConflict("schedule.prefill", reason, "schedule.prefill: sequential, or schedule.kind: parallel")
        drafts = schedules.get(self.kind).drafts
        if drafts and profile.drafter is None:
            reason = f"{self.kind} needs a draft, and draft.kind is none"
            yield OptionConflict("schedule.kind", reason, "schedule.kind: autoregressive, or draft.kind: model")
        if not drafts and profile.drafter is not None:
            reason = f"autoregressive uses no draft, and draft.kind is {profile.draft.kind}"
            yield OptionConflict("schedule.kind", reason, "schedule.kind: sequential, or draft.kind: none")


class WorkersSection(Section):
    """Devices of target and draft in the parallel schedule, and the draft's threads on a CPU.

    ``timeout``: seconds until a draft worker that does not answer counts as hung and is replaced; while it loads its
    model or reads its prompt, seconds without a sign of work.
    """

    target: Annotated[str, AfterValidator(values.device)] | None = None
    draft: Annotated[str, AfterValidator(values.device)] | None = None
    draft_threads: int | None = Field(default=None, ge=1, le=THREADS)
    timeout: float = Field(default=30.0, gt=0, le=MANY, allow_inf_nan=False)


@with_parts(rules)
class AcceptSection(PartSection):
    """The acceptance rule.

    ``protect`` names words, and the classes ``numbers`` and ``negations``, that lossy rules verify exactly.
    """

    rule: Annotated[str, AfterValidator(_validate_name(rules))] = "exact"
    protect: Annotated[tuple[Annotated[str, Field(min_length=1)], ...], BeforeValidator(values.words)] = ()


@with_parts(lossy)
class LossySection(PartSection):
    """Pruning of the target itself in plain decoding, for comparison; it changes the text.

    ``retention`` is the share of visual tokens that a block of the target reads, on average over the blocks; each
    method's own shares are scaled to it. ``keep`` sets these shares directly, as many as the method has. Null is the
    method's own value.
    """

    method: Annotated[str, AfterValidator(_validate_name(lossy))] = "none"
    retention: float | None = Field(default=None, gt=0, le=1, allow_inf_nan=False)
    keep: Annotated[tuple[Annotated[float, Field(gt=0, le=1)], ...] | None, BeforeValidator(values.shares)] = None

    def check(self, profile: Profile) -> Iterator[OptionConflict]:
        if self.method != "none" and profile.drafter is not None:
            reason = f"{self.method} prunes the target of plain decoding, and draft.kind is {profile.draft.kind}"
            instead = "lossy.method: none, or draft.kind: none with schedule.kind: autoregressive"
            yield OptionConflict("lossy.method", reason, instead)
        if self.keep is not None and self.retention is not None:
            yield OptionConflict("lossy.keep", "excludes lossy.retention", f"lossy.retention: {self.retention} alone")
        if self.keep is not None and self.method != "none":
            shares = lossy.get(self.method).shares
            if shares != len(self.keep):
                reason = f"{self.method} takes {shares} shares, not {len(self.keep)}"
                yield OptionConflict("lossy.keep", reason, f"lossy.keep: {[0.5, 0.25, 0.125][:shares]}")


class GenerateSection(Section):
    """Prompt and sampling; temperature 0 is greedy, ``top_k`` 0 is all tokens.

    Penalties (:class:`vidspec.engine.penalties.Penalties`) come before the temperature, and change greedy choices too.
    ``stop_loops`` ends a text that repeats itself, as :mod:`vidspec.decoding.limits` detects; ``stop`` strings end the
    text and are not part of it.
    """

    max_new_tokens: int = Field(default=512, ge=1, le=MANY)
    stop_loops: bool = False
    stop: Annotated[tuple[Annotated[str, Field(min_length=1)], ...], BeforeValidator(values.strings)] = ()
    temperature: Annotated[float, AfterValidator(values.temperature)] = Field(default=0.0, allow_inf_nan=False)
    top_p: float = Field(default=1.0, ge=1e-6, le=1, allow_inf_nan=False)
    top_k: int = Field(default=0, ge=0, le=MANY)
    min_p: float = Field(default=0.0, ge=0, le=1, allow_inf_nan=False)
    repetition_penalty: float = Field(default=1.0, ge=1e-6, le=MANY, allow_inf_nan=False)
    presence_penalty: float = Field(default=0.0, ge=-2, le=2, allow_inf_nan=False)
    no_repeat_ngram: int = Field(default=0, ge=0, le=MANY)
    seed: int = Field(default=0, ge=0, le=SEED)
    prompt: str = Field(default="Describe this video in detail.", min_length=1)
    system: str | None = Field(default=None, min_length=1)

    @property
    def sampling(self) -> dict[str, Any]:
        """Keys of the sampling distribution."""
        return self.model_dump(include={"temperature", "top_p", "top_k", "min_p"})

    @property
    def penalties(self) -> dict[str, float]:
        """Penalty keys that differ from their defaults, which have no effect."""
        keys = {"repetition_penalty", "presence_penalty", "no_repeat_ngram"}
        return self.model_dump(include=keys, exclude_defaults=True)

    def check(self, profile: Profile) -> Iterator[OptionConflict]:
        if self.temperature > 0 and not profile.rule.draws:
            reason = f"{profile.accept.rule} compares greedy choices, and {self.temperature:g} draws tokens"
            yield OptionConflict("generate.temperature", reason, "generate.temperature: 0, or accept.rule: exact")
