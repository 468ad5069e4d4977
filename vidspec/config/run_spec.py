"""One run, described: inputs, prompts, outputs, resuming, limits. Reads no file and opens no output. No torch.

A field is declared once, with its type, help and, as a :class:`~vidspec.config.sections.Flag`, how the command line
shows it. The options of ``vidspec caption``, the keywords of :func:`vidspec.run` and their refusals follow from it, as
they do for the keys of a profile. Errors mark the field that they are about (:func:`vidspec.errors.option`).
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, TypeAlias

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from vidspec.config.sections import Flag
from vidspec.config.values import filled, parse_count, parse_segment, parse_size, parse_timeout, require_text, seconds
from vidspec.errors import UsageError, option
from vidspec.registry import key

__all__ = [
    "EngineName",
    "ExistingFiles",
    "RunSpec",
    "Text",
    "flag_of",
]

EngineName: TypeAlias = Literal["local", "ray"]
#: Treatment of caption files that no run wrote.
ExistingFiles: TypeAlias = Literal["skip", "replace", "use"]

_INPUT, _VIDEO, _TEXT, _OUTPUT = "Inputs", "Video", "Generation", "Output"
_RESUME, _SCALE, _CHECK = "Resuming and failures", "Many devices and machines", "Measuring and checking"


def _names(value: object) -> object:
    """Return one path or text as a tuple of one."""
    if value is None:
        return ()
    return (value,) if isinstance(value, str | os.PathLike) else value


def _text(value: object) -> object:
    """Return a path or a number as text."""
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    return str(value) if isinstance(value, int | float) and not isinstance(value, bool) else value


Text = Annotated[str, BeforeValidator(_text)]
Texts = Annotated[tuple[Text, ...], BeforeValidator(_names)]


class Needs(NamedTuple):
    """A field is refused without another: an example of that, and of its own value, for the hint."""

    name: str
    example: object
    own: object = True


class Excludes(NamedTuple):
    """Fields that are refused beside one."""

    names: tuple[str, ...]


class RunSpec(BaseModel):
    """A run over one clip or a million.

    Fields that are not given are None, empty or False. Keys of the profile are in ``overrides``, by dotted name.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=(), defer_build=True)

    paths: Annotated[
        Texts,
        key(
            "Videos, folders, manifests (.jsonl, .json, .csv), shards (.tar, .parquet, also s3:// and other URLs), "
            "or - for a list on standard input"
        ),
        Flag(metavar="PATH...", common=True),
    ] = ()
    profile: Annotated[
        Text | None,
        key(
            "Method of acceleration; `vidspec profiles` lists the names (default: sparrow "
            "for the built-in models, vanilla-sd-auto for others). "
            "lvspec, fly and random-loose, and profiles named after them, are not lossless; "
            "nor are fastv, pdrop, sparsevlm and dycoke, which prune the target itself"
        ),
        Flag(metavar="NAME|FILE", names=("--profile", "-p"), variable="VIDSPEC_PROFILE", common=True),
    ] = None
    overrides: Mapping[str, object] = Field(default_factory=dict, description="Keys of the profile, by dotted name")

    from_file: Annotated[
        Texts,
        key("A list of paths, separated by newlines or NUL; - is standard input"),
        Flag(panel=_INPUT, metavar="FILE"),
    ] = ()
    manifest: Annotated[
        Texts,
        key("JSONL or CSV with path and, optionally, prompt, start, end and id; - is standard input"),
        Flag(panel=_INPUT, metavar="FILE"),
    ] = ()
    include: Annotated[
        Texts, key("Take only matching paths of folders and lists"), Flag(panel=_INPUT, metavar="GLOB")
    ] = ()
    exclude: Annotated[
        Texts, key("Leave out matching paths of folders and lists"), Flag(panel=_INPUT, metavar="GLOB")
    ] = ()
    include_images: Annotated[
        bool, key("Also take image files of folders and lists, as clips of one frame"), Flag(panel=_INPUT, common=True)
    ] = False
    column: Annotated[
        str | None, key("Column of Parquet files with the clips or their paths"), Flag(panel=_INPUT, metavar="NAME")
    ] = None
    allow_paths: Annotated[
        Texts,
        key("Also allow rows of Parquet files to name files in DIR; may be repeated"),
        Flag(panel=_INPUT, metavar="DIR"),
    ] = ()
    allow_urls: Annotated[
        Texts,
        key("Also allow rows to name URLs of this host, private addresses included; may be repeated"),
        Flag(panel=_INPUT, metavar="SCHEME://HOST"),
    ] = ()

    start: Annotated[
        float | None,
        key("Start at this time: 90, 1:30 or 1m"),
        BeforeValidator(seconds),
        Flag(panel=_VIDEO, metavar="TIME", common=True),
    ] = None
    end: Annotated[
        float | None,
        key("Stop at this time"),
        BeforeValidator(seconds),
        Flag(panel=_VIDEO, metavar="TIME", common=True),
    ] = None
    segment: Annotated[
        float | Literal["scenes"] | None,
        key("Caption each segment: 30s, 2m or scenes (found by PySceneDetect)"),
        BeforeValidator(parse_segment),
        Flag(panel=_VIDEO, metavar="LENGTH|scenes", common=True),
    ] = None
    context: Annotated[
        bool, key("Add the previous segment's caption to the prompt"), Needs("segment", "30s"), Flag(panel=_VIDEO)
    ] = False

    prompt: Annotated[
        Texts,
        key(
            "Question or instruction about the video; if repeated, each prompt gets a record of its own. "
            "{column} is replaced by a manifest's column"
        ),
        filled("What moves?"),
        Excludes(("prompt_file", "style", "turn")),
        Flag(panel=_TEXT, metavar="TEXT", common=True),
    ] = ()
    turn: Annotated[
        Texts,
        key("A turn of a dialogue about the video, asked after the previous answer; one record per turn"),
        filled("What happens then?"),
        Excludes(("segment",)),
        Flag(panel=_TEXT, metavar="TEXT", common=True),
    ] = ()
    prompt_file: Annotated[
        Path | None,
        key("Read the prompt from a file"),
        Excludes(("style", "turn")),
        Flag(panel=_TEXT, metavar="FILE"),
    ] = None
    style: Annotated[
        str | None,
        key("A named prompt: brief, detailed, subjects-actions-background, dataset, events (timed, as JSON)"),
        Excludes(("turn",)),
        Flag(panel=_TEXT, metavar="NAME", common=True),
    ] = None
    json_object: Annotated[
        bool,
        key("Answer with any JSON object; --fields and --json-schema say which"),
        Flag(panel=_TEXT, names=("--json",)),
    ] = False
    rewrite: Annotated[
        Text | None,
        key(
            "Rewrite each caption with the same model, without the video: 'use 40 words', a prompt with {caption}, "
            "or @FILE, which holds one"
        ),
        filled("shorten to 40 words"),
        Flag(panel=_TEXT, metavar="TEXT|@FILE", common=True),
    ] = None
    summary: Annotated[
        bool,
        key("Also summarise the captions of a clip's segments by the same model, without the video"),
        Needs("segment", "30s"),
        Flag(panel=_TEXT, common=True),
    ] = False
    template: Annotated[
        str | None,
        key("Insert each caption into this text: 'ohwx, {caption}'. {column} is a manifest's column"),
        Flag(panel=_TEXT, metavar="TEXT", common=True),
    ] = None

    limit: Annotated[
        int | None,
        key(
            "Most words of a caption, or tokens with --limit-tokenizer: a longer one is asked for again, shorter, "
            "without the video, at most twice, then ended at a whole sentence",
            ge=1,
        ),
        Flag(panel=_TEXT, metavar="N", common=True),
    ] = None
    limit_tokenizer: Annotated[
        Text | None,
        key("Unit of --limit: words (default), characters, or the tokenizer of a trainer's text encoder"),
        Needs("limit", 226, "words"),
        Flag(panel=_TEXT, metavar="HUB_ID|FOLDER|words|characters"),
    ] = None

    format: Annotated[
        str | None,
        key(
            "json has every measurement, jsonl is reproducible byte for byte. Separate several by commas "
            "(default: by the suffix of -o FILE, else text)"
        ),
        Flag(panel=_OUTPUT, metavar="NAME[,NAME...]", common=True),
    ] = None
    output: Annotated[
        Text | None,
        key("One file for all clips; an existing one is continued; - is standard output"),
        filled("captions.jsonl"),
        Excludes(("output_dir", "name")),
        Flag(panel=_OUTPUT, metavar="FILE", names=("--output", "-o"), common=True),
    ] = None
    output_dir: Annotated[
        Text | None,
        key("One file per clip below DIR, mirroring the input folders; for shards, one per shard"),
        filled("DIR"),
        Flag(panel=_OUTPUT, metavar="DIR", common=True),
    ] = None
    cut: Annotated[
        Text | None,
        key("With --segment: write each segment to DIR as a training clip, NAME-001.mp4 and its caption NAME-001.txt"),
        filled("DIR"),
        Needs("segment", "scenes", "DIR"),
        Excludes(("output_dir", "name")),
        Flag(panel=_OUTPUT, metavar="DIR", common=True),
    ] = None
    name: Annotated[
        str | None,
        key("Name of each clip's file: '{stem}.{profile}{suffix}'"),
        filled("{stem}{suffix}"),
        Flag(panel=_OUTPUT, metavar="TEMPLATE"),
    ] = None

    overwrite: Annotated[
        bool,
        key("Start over; the earlier output file becomes FILE~"),
        Excludes(("retry_failed",)),
        Flag(panel=_RESUME, common=True),
    ] = False
    existing: Annotated[
        ExistingFiles | None,
        key(
            "Clips that have a caption file of other origin: skip them (default), replace the file, or use it: "
            "{existing} in --prompt and --template is its text. The earlier file becomes FILE~. "
            "Files edited since a run wrote them are replaced by --overwrite only"
        ),
        Flag(panel=_RESUME, common=True),
    ] = None
    retry_failed: Annotated[bool, key("Retry clips that failed before"), Flag(panel=_RESUME, common=True)] = False
    checksum: Annotated[bool, key("Recognise clips by content instead of size and time"), Flag(panel=_RESUME)] = False
    fail_fast: Annotated[bool, key("Stop at the first failure"), Excludes(("max_failures",)), Flag(panel=_RESUME)] = (
        False
    )
    max_failures: Annotated[int | None, key("Stop after N failures", ge=1), Flag(panel=_RESUME, metavar="N")] = None
    timeout: Annotated[
        float | None,
        key("Give up on a clip after this long"),
        AfterValidator(parse_timeout),
        Flag(panel=_RESUME, metavar="SECONDS"),
    ] = None
    max_fetch: Annotated[
        int,
        key("Give up on a clip of a shard or URL larger than this: 500MB, 2GiB (default: 4GiB)"),
        BeforeValidator(lambda size: parse_size(str(size), option("max_fetch"))),
        Flag(panel=_RESUME, metavar="SIZE"),
    ] = 4 << 30

    batch: Annotated[
        int | Literal["auto"],
        key("Clips captioned at once; 1 keeps the order of the clips (default: auto)"),
        BeforeValidator(parse_count),
        Flag(panel=_SCALE, metavar="auto|N", common=True),
    ] = "auto"
    ahead: Annotated[int, key("Maximum number of clips read ahead", ge=1), Flag(panel=_SCALE, metavar="N")] = 8
    replicas: Annotated[
        int | Literal["auto"] | None,
        key("Captioners to run at once; auto: one per GPU"),
        BeforeValidator(parse_count),
        Flag(panel=_SCALE, metavar="N|auto"),
    ] = None
    shard: Annotated[
        str | None,
        key("Caption only part I of N (default: set by a SLURM job array)"),
        Flag(panel=_SCALE, metavar="I/N", common=True),
    ] = None
    engine: Annotated[EngineName, key("ray: run captioners as actors on a Ray cluster"), Flag(panel=_SCALE)] = "local"
    address: Annotated[str | None, key("Address of the Ray cluster"), Flag(panel=_SCALE, metavar="ADDRESS")] = None

    baseline: Annotated[
        bool, key("Also run plain decoding and report the measured speed-up"), Flag(panel=_CHECK, common=True)
    ] = False
    verify: Annotated[
        bool,
        key("Also run plain decoding and fail on any difference; for a single clip includes --baseline"),
        Flag(panel=_CHECK, common=True),
    ] = False
    trace: Annotated[Path | None, key("Write a Chrome/Perfetto trace"), Flag(panel=_CHECK, metavar="FILE")] = None
    report: Annotated[
        Path | None,
        key("Write a page: visual tokens of the draft, the model that wrote each token, a timeline"),
        Flag(panel=_CHECK, metavar="FILE.html", common=True),
    ] = None

    @classmethod
    def make(cls, values: Mapping[str, Any]) -> RunSpec:
        """Return a checked spec.

        Raises:
            UsageError: a field is of a wrong type, or excludes another.
        """
        try:
            spec = cls(**values)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            name, message = str(first["loc"][0]), first["msg"]
            raise UsageError(f"{option(name)}: {message[:1].lower()}{message[1:]}") from None
        spec.check()
        return spec

    @property
    def questions(self) -> tuple[str, ...]:
        """Several questions about each clip, turns of a dialogue or independent prompts; empty for one prompt."""
        return self.turn or (self.prompt if len(self.prompt) > 1 else ())

    @property
    def names_models(self) -> bool:
        """True if the models were chosen; otherwise captions of the built-in models are marked."""
        return not {"models.pair", "models.target"}.isdisjoint(self.overrides)

    @property
    def is_remote(self) -> bool:
        """True if captioners run in other processes or on other machines."""
        return self.replicas is not None or self.engine == "ray"

    def check(self) -> None:
        """Check fields against each other, before anything is read.

        Raises:
            UsageError: names the field.
        """
        for name, field in type(self).model_fields.items():
            for rule in field.metadata if getattr(self, name) else ():
                if isinstance(rule, Needs) and not getattr(self, rule.name):
                    hint = f"{option(rule.name, rule.example)} {option(name, rule.own)}"
                    raise UsageError(f"{option(name)} needs {option(rule.name)}", hint=hint)
                if isinstance(rule, Excludes) and (others := [one for one in rule.names if getattr(self, one)]):
                    raise UsageError(f"{option(name)} and {option(others[0])} exclude each other")
        start, end = self.start or 0.0, self.end
        if end is not None and end <= start:
            raise UsageError(f"{option('end', end)}: must be after {option('start', start)}")
        if len(self.prompt) > 1 and self.segment is not None:
            raise UsageError(f"several {option('prompt')} and {option('segment')} exclude each other")
        if len(set(self.prompt)) < len(self.prompt):
            raise UsageError(f"{option('prompt')}: the same prompt is given twice")
        if self.rewrite == "@":
            raise UsageError(f"{option('rewrite', '@')}: names no file", hint=option("rewrite", "@shorter.txt"))
        given = [option("json_object")] * self.json_object
        given += [option("style", "events")] * (self.style == "events")
        given += [option(key) for key in ("generate.fields", "generate.json_schema") if given and key in self.overrides]
        if len(given) > 1:
            hint = f"{given[1]} alone answers with JSON too"
            raise UsageError(f"{given[0]} and {given[1]} exclude each other", hint=hint)
        self._check_existing()
        if self.address is not None and self.engine != "ray":
            raise UsageError(f"{option('address')} needs {option('engine', 'ray')}")
        if self.is_remote:
            hint = f"leave out {option('replicas')} and {option('engine')}"
            self.refuse(("trace", "report"), "needs a single captioner", hint=hint)
        for name in self.model_fields_set & _TEXTS:
            require_text(option(name), getattr(self, name))

    def refuse(self, names: Iterable[str], reason: str, hint: str | None = None) -> None:
        """Refuse options for a common reason.

        Raises:
            UsageError: one of the fields is given; names it, and says why.
        """
        for name in names:
            if getattr(self, name):
                raise UsageError(f"{option(name)} {reason}", hint=hint)

    @property
    def rewrite_path(self) -> Path | None:
        """The file that ``rewrite`` names by ``@FILE``; a text that begins with ``@@`` stands for one with ``@``."""
        named = (self.rewrite or "").startswith("@") and not (self.rewrite or "").startswith("@@")
        return Path((self.rewrite or "")[1:]) if named else None

    def _check_existing(self) -> None:
        use = option("existing", "use")
        if self.existing == "skip" and self.overwrite:
            raise UsageError(f"{option('existing', 'skip')} and {option('overwrite')} exclude each other")
        if self.existing == "use" and self.cut is not None:
            raise UsageError(f"{use} and {option('cut')} exclude each other")
        tars = any(path.lower().endswith(".tar") for path in self.paths)  # each clip's KEY.txt
        texts = (self.template, self.rewrite, *self.prompt, *self.turn)
        if self.existing != "use" and not tars and any("{existing}" in text for text in texts if text):
            raise UsageError(f"{{existing}} needs {use}", hint=f"{option('format', 'txt')} {use}")


def flag_of(name: str) -> str:
    """Return the option of a field: ``--max-fetch``."""
    flag = _declared(name)
    return flag.names[0] if flag.names else f"--{name.replace('_', '-')}"


def _declared(name: str) -> Flag:
    return next((one for one in RunSpec.model_fields[name].metadata if isinstance(one, Flag)), Flag())


#: Fields whose values name no files, and so hold text alone.
_TEXTS = {name for name in RunSpec.model_fields if not _declared(name).names_files}
