"""The sections of a profile that name no part: their keys, each declared once, and refused combinations. No torch.

A key's declaration has its type, bounds, default and help. One with a :class:`Flag` is an option of ``vidspec caption``
too. The command line (:mod:`vidspec.cli.keys`), environment variables, error messages and ``vidspec config
keys`` follow from it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypedDict, cast

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from vidspec.bounds import FASTEST, MANY, SEED, STALL, THREADS
from vidspec.config import values
from vidspec.config.json_schema import fields_schema, json_grammar
from vidspec.errors import option
from vidspec.registry import OptionConflict, key

if TYPE_CHECKING:
    from vidspec.config.schema import Profile

_NAMES_FILES = re.compile(r"(?<!@)\b(FILE|DIR|FOLDER|GLOB|PATH)\b")


@dataclass(frozen=True)
class Flag:
    """Makes a key or a field an option of ``vidspec caption``: ``--max-pixels`` is ``video.max_pixels``.

    Attributes:
        common: True if ``--help`` shows it; ``--help-all`` shows all.
        metavar: placeholder of the value in the help; by default the name of its type.
        panel: heading in the help; None for that of its section.
        names: spellings, if not the name with hyphens.
        variable: environment variable that sets it too.
    """

    common: bool = False
    metavar: str | None = None
    panel: str | None = None
    names: tuple[str, ...] = ()
    variable: str | None = None

    @property
    def names_files(self) -> bool:
        """True if its value names files, which may have any bytes."""
        return _NAMES_FILES.search(self.metavar or "") is not None


def either(*options: tuple[str, object]) -> str:
    """Spell keys with values of which any one will do, for a conflict's nearest valid choice."""
    return ", or ".join(option(key, value) for key, value in options)


class Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=(), defer_build=True)

    def check(self, profile: Profile) -> Iterator[OptionConflict]:
        """Yield conflicts of its keys with others of the profile."""
        yield from ()


class ModelsSection(Section):
    """Models and how they are loaded."""

    pair: Annotated[
        Literal["embedded", "embedded-qwen"] | None, key("A built-in target and draft"), Flag(common=True)
    ] = None
    target: Annotated[str | None, key("The target: a hub id or a folder", min_length=1), Flag(common=True)] = None
    draft: Annotated[
        str | None,
        key(
            "The draft: a hub id or a folder (default: the one `vidspec models` lists for the target)",
            min_length=1,
        ),
        Flag(common=True),
    ] = None
    adapter: Annotated[
        str | None, key("A LoRA of the target, merged into it: a hub id or a folder", min_length=1), Flag()
    ] = None
    captioner: Annotated[
        str | None,
        key("Captions a frame for drafts with a caption context: a hub id or a folder (default: draft)", min_length=1),
        Flag(),
    ] = None
    dtype: Annotated[Literal["auto", "float32", "bfloat16", "float16"], key("Number format of the models"), Flag()] = (
        "auto"
    )
    device: Annotated[
        str,
        key("Device of the models: auto, cpu, cuda, cuda:N, xpu or mps"),
        AfterValidator(values.device),
        Flag(common=True),
    ] = "auto"
    device_map: Annotated[
        Literal["auto", "balanced", "balanced_low_0", "sequential"] | None,
        key("Split the target over several devices, by accelerate's strategy of that name"),
    ] = None
    draft_device: Annotated[
        Annotated[str, AfterValidator(values.device)] | None, key("Device of the draft, if not that of the target")
    ] = None
    quantization: Annotated[Literal["8bit", "4bit"] | None, key("Load the target with bitsandbytes")] = None
    weights: Annotated[
        Literal["int8", "int4"] | None,
        key("Quantise the target to codes of that many bits; lossless then refers to these weights"),
    ] = None
    decoder: Annotated[
        Literal["auto", "fused", "stock"],
        key("Implementation of the language models' blocks; auto is fused wherever it covers a model"),
    ] = "auto"
    threads: Annotated[int | None, key("CPU threads (default: torch's choice)", ge=1, le=THREADS), Flag()] = None
    packed: Annotated[
        bool | Literal["auto"],
        BeforeValidator(values.packed),
        key("Pack weights on a CPU where products are faster then; auto: second copies only if memory is free"),
    ] = "auto"

    @model_validator(mode="before")
    @classmethod
    def _embedded_by_default(cls, data: object) -> object:
        if isinstance(data, Mapping) and all(data.get(key) is None for key in ("pair", "target", "draft")):
            return {**data, "pair": "embedded"}
        return data

    def check(self, profile: Profile) -> Iterator[OptionConflict]:
        unnamed = self.target is not None and self.draft is None
        if self.captioner is not None and not profile.draft.has_caption:
            reason = f"has no effect unless {option('draft.contexts')} has caption"
            yield OptionConflict("models.captioner", reason, "leave it out, or the profile tabed-mtcp")
        if self.device_map is not None and self.device != "auto":
            reason = f"{self.device} excludes {option('models.device_map')}, which takes all devices"
            instead = f"{option('models.device', 'auto')}, and {option('models.draft_device')} for the draft"
            yield OptionConflict("models.device", reason, instead)
        if self.weights is not None and (self.quantization is not None or self.device_map is not None):
            other = option("models.quantization" if self.quantization is not None else "models.device_map")
            yield OptionConflict("models.weights", f"{self.weights} excludes {other}", f"{other} alone")
        if self.pair is None and self.target is None:
            reason = f"is needed with {option('models.draft')}"
            yield OptionConflict("models.target", reason, f"name a target, or {option('models.pair', 'embedded')}")
        if unnamed and profile.draft.has_model:
            instead = "name a draft of the target's family (`vidspec models` lists some), or take the profile ar"
            yield OptionConflict("models.draft", "is needed, since this profile drafts with a smaller model", instead)
        if unnamed and profile.draft.named_head:
            instead = "name the head that was trained for the target, or take the profile ar"
            reason = "is needed, since this profile drafts with a head of its own"
            yield OptionConflict("models.draft", reason, instead)


class VideoArguments(TypedDict):
    """Arguments of ``vidspec.video.read`` that come from a profile."""

    frames: int | None
    fps: float | None
    max_pixels: int | None
    decoder: str
    seek: str
    allow_damaged: bool


class VideoSection(Section):
    """Frames that the models see, and sound."""

    frames: Annotated[int | None, key("Number of frames to sample", ge=1, le=100_000), Flag(common=True)] = None
    fps: Annotated[
        float | None,
        key("Frames to sample per second", gt=0, le=FASTEST, allow_inf_nan=False),
        Flag(common=True),
    ] = None
    max_pixels: Annotated[int | None, key("Shrink frames to at most this many pixels", ge=1, le=2**31 - 1), Flag()] = (
        None
    )
    decoder: Annotated[
        Literal["auto", "decord", "av", "nvdec", "vaapi", "videotoolbox"], key("Decoder of the file"), Flag()
    ] = "auto"
    seek: Annotated[
        Literal["exact", "keyframes"],
        key("Frames at exact times, or the keyframes nearest to them, which is fast in long files"),
        Flag(),
    ] = "exact"
    allow_damaged: Annotated[
        bool, key("Caption the readable part of damaged files and note it in the record"), Flag()
    ] = False
    audio: Annotated[bool, key("Give the sound to models with audio input, or not"), Flag()] = True
    stall: Annotated[
        float,
        key("Give up reading a clip after this long without a packet or a frame", gt=0, le=MANY, allow_inf_nan=False),
        Flag(metavar="SECONDS"),
    ] = STALL

    @property
    def arguments(self) -> VideoArguments:
        """Arguments of ``vidspec.video.read``."""
        return cast(VideoArguments, self.model_dump(include={*VideoArguments.__annotations__}))

    @model_validator(mode="before")
    @classmethod
    def _frames_by_default(cls, data: object) -> object:
        if isinstance(data, Mapping) and all(data.get(key) is None for key in ("frames", "fps")):
            return {**data, "frames": 32}
        return data


class WorkersSection(Section):
    """Workers of the parallel schedule."""

    target: Annotated[Annotated[str, AfterValidator(values.device)] | None, key("Device of the target")] = None
    draft: Annotated[Annotated[str, AfterValidator(values.device)] | None, key("Device of the draft")] = None
    draft_threads: Annotated[int | None, key("CPU threads of the draft", ge=1, le=THREADS)] = None
    timeout: Annotated[
        float,
        key(
            "Seconds until a draft worker that does not answer counts as hung and is replaced; while it loads its "
            "model or reads its prompt, seconds without a sign of work",
            gt=0,
            le=MANY,
            allow_inf_nan=False,
        ),
    ] = 30.0


class GenerateSection(Section):
    """Prompt and sampling. Penalties come before the temperature, and change greedy choices too."""

    max_new_tokens: Annotated[
        int, key("Maximum length of a caption or answer, in tokens", ge=1, le=MANY), Flag(common=True)
    ] = 512
    stop_loops: Annotated[bool, key("Stop a caption once it repeats itself over and over"), Flag()] = False
    stop: Annotated[
        tuple[Annotated[str, Field(min_length=1, max_length=1024)], ...],
        key("End a caption before this text; may be repeated"),
        BeforeValidator(values.strings),
        Flag(metavar="TEXT"),
    ] = ()
    temperature: Annotated[
        float,
        key("Sampling temperature; 0 is greedy", allow_inf_nan=False),
        AfterValidator(values.temperature),
        Flag(common=True),
    ] = 0.0
    top_p: Annotated[float, key("Nucleus sampling threshold", ge=1e-6, le=1, allow_inf_nan=False), Flag()] = 1.0
    top_k: Annotated[int, key("Sample from this many of the most probable tokens; 0: all", ge=0, le=MANY), Flag()] = 0
    min_p: Annotated[
        float,
        key("Minimum probability of a token relative to the most probable one", ge=0, le=1, allow_inf_nan=False),
        Flag(),
    ] = 0.0
    repetition_penalty: Annotated[
        float,
        key("Penalty factor for tokens of prompt and text; 1: none", ge=1e-6, le=MANY, allow_inf_nan=False),
        Flag(),
    ] = 1.0
    presence_penalty: Annotated[
        float, key("Penalty subtracted from logits of tokens in the text", ge=-2, le=2, allow_inf_nan=False), Flag()
    ] = 0.0
    no_repeat_ngram: Annotated[
        int, key("Never repeat N tokens in a row; 0: no limit", ge=0, le=MANY), Flag(metavar="N")
    ] = 0
    seed: Annotated[int, key("Seed for sampling; -1: another for each text", ge=-1, le=SEED), Flag()] = 0
    json_schema: Annotated[
        str | None,
        key("Answer with JSON that follows this JSON Schema: a file, or the schema itself"),
        BeforeValidator(values.json_schema),
        Flag(metavar="FILE"),
    ] = None
    fields: Annotated[
        tuple[Annotated[str, Field(min_length=1)], ...],
        key("Answer with a JSON object of these text fields, as in 'subject, action'"),
        BeforeValidator(values.words),
        Flag(metavar="NAMES"),
    ] = ()
    prompt: Annotated[str, key("Question or instruction about the video", min_length=1)] = (
        "Describe this video in detail."
    )
    system: Annotated[str | None, key("The system prompt", min_length=1), Flag(metavar="TEXT")] = None

    @property
    def sampling(self) -> dict[str, Any]:
        return self.model_dump(include={"temperature", "top_p", "top_k", "min_p"})

    @property
    def penalties(self) -> dict[str, float]:
        """Penalty keys that differ from their defaults, which have no effect."""
        keys = {"repetition_penalty", "presence_penalty", "no_repeat_ngram"}
        return self.model_dump(include=keys, exclude_defaults=True)

    @property
    def grammar_schema(self) -> str | None:
        """JSON Schema of the text, as JSON; None if it is free."""
        return fields_schema(self.fields) if self.fields else self.json_schema

    def _check_grammar(self, profile: Profile) -> Iterator[OptionConflict]:
        where = "generate.fields" if self.fields else "generate.json_schema"
        if self.fields and self.json_schema is not None:
            yield OptionConflict(where, f"excludes {option('generate.json_schema')}", "one of the two")
        if self.stop:
            reason = f"excludes {option(where)}, which ends the text"
            yield OptionConflict("generate.stop", reason, f"leave out {option('generate.stop')}")
        if profile.draft.kind != "none" and not profile.rule.lossless:
            reason = f"{profile.accept.rule} emits tokens that the grammar of {option(where)} may forbid"
            yield OptionConflict("accept.rule", reason, option("accept.rule", "exact"))
        try:
            json_grammar(self.grammar_schema or "{}")
        except ModuleNotFoundError:
            yield OptionConflict(where, "needs llguidance, which is not installed", "pip install llguidance")
        except ValueError as error:
            yield OptionConflict(where, f"is not a JSON Schema for text: {error}", "the schema of an object")

    def check(self, profile: Profile) -> Iterator[OptionConflict]:
        if self.grammar_schema is not None:
            yield from self._check_grammar(profile)
        if self.temperature > 0 and not profile.rule.draws:
            reason = f"{profile.accept.rule} compares greedy choices, and {self.temperature:g} samples tokens"
            instead = either(("generate.temperature", 0), ("accept.rule", "exact"))
            yield OptionConflict("generate.temperature", reason, instead)
