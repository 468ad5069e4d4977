"""Options of the commands, each declared once, and the dataclasses that group them. No torch."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, is_dataclass
from functools import partial, wraps
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Generic, Literal, TypeAlias, TypeVar, get_args, get_type_hints

import typer
from typer.core import TyperCommand

from vidspec.cli.keys import COMMON_KEYS, KEY_SECTIONS, key_parameters, model_option
from vidspec.dataset.file_marks import ExistingFiles
from vidspec.dataset.formats.base import format_names

if TYPE_CHECKING:
    from vidspec.bench.loaded import ModelSource

R = TypeVar("R")
T = TypeVar("T")

_video, _text, _output = (partial(typer.Option, rich_help_panel=panel) for panel in ("Video", "Generation", "Output"))
_input, _resume = (partial(typer.Option, rich_help_panel=panel) for panel in ("Inputs", "Resuming and failures"))
_scale = partial(typer.Option, rich_help_panel="Many devices and machines")
_check = partial(typer.Option, rich_help_panel="Measuring and checking")

#: Options that `vidspec caption --help` shows; `--help-all` shows all.
COMMON = {*COMMON_KEYS, "paths", "profile", "settings", "start", "end", "segment", "prompt", "turn", "style"}
COMMON |= {"form", "output", "output_dir", "dry_run", "quiet", "verbose", "overwrite", "retry_failed", "batch"}
COMMON |= {"template", "include_images", "existing", "shard"}
COMMON |= {"baseline", "verify", "report", "help", "help_all"}

#: The pairs that come with vidspec.
BUILT_IN = {"embedded": "LLaVA-OneVision's architecture", "embedded-qwen": "Qwen2.5-VL's architecture"}

PairName: TypeAlias = Literal["embedded", "embedded-qwen"]
EngineName: TypeAlias = Literal["local", "ray"]
AnswerFormat: TypeAlias = Literal["text", "json", "jsonl"]
TextOrJson: TypeAlias = Literal["text", "json"]


def profile_names(incomplete: str) -> list[tuple[str, str]]:
    """Complete names of profiles, with descriptions."""
    from vidspec.config.profiles import available

    return _matching(incomplete, ((info.name, info.about) for info in available()))


def pair_names(incomplete: str) -> list[tuple[str, str]]:
    """Complete built-in pairs, with descriptions."""
    return _matching(incomplete, BUILT_IN.items())


def complete_format(incomplete: str) -> list[str]:
    """Complete the last format of a comma-separated list."""
    before, comma, last = incomplete.rpartition(",")
    return [before + comma + form for form in format_names() if form.startswith(last) and form not in before.split(",")]


def target_names(incomplete: str) -> list[tuple[str, str]]:
    """Complete published targets, with their default drafts."""
    from vidspec.models.known_pairs import known_pairs, listed_draft

    names = dict.fromkeys(pair.target.name for pair in known_pairs())
    return _matching(incomplete, ((name, f"draft: {listed_draft(name) or 'itself'}") for name in names))


def style_names(incomplete: str) -> list[tuple[str, str]]:
    """Complete names of prompts, with their text."""
    from vidspec.config.prompts import STYLES

    return _matching(incomplete, STYLES.items())


#: Completions of values that the schema does not list, by key.
COMPLETIONS = {"pair": pair_names, "target": target_names}


def _matching(incomplete: str, choices: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    return [choice for choice in choices if choice[0].startswith(incomplete)]


@dataclass(frozen=True)
class KeyNames:
    """The only keys of a section that are options of a command."""

    names: tuple[str, ...]


class _OptionGroup(Generic[T]):
    """The options of a dataclass: one per field, and for a field called like a section those of the section's keys.

    ``Annotated[..., KeyNames(...)]`` restricts them to some keys.

    Args:
        group: the dataclass.
        names: the options to take, if any are named; the others keep their defaults.
    """

    def __init__(self, group: Callable[..., T], names: Collection[str]) -> None:
        self.group, self.parameters = group, dict[str, Parameter]()
        self.keys: dict[str, str] = {}  # section of each option that is a key
        types = get_type_hints(group, include_extras=True)
        for name, parameter in signature(group).parameters.items():
            options = [parameter.replace(annotation=types[name], kind=Parameter.KEYWORD_ONLY)]
            if name in KEY_SECTIONS:
                only = next((one for one in get_args(types[name]) if isinstance(one, KeyNames)), None)
                options = [one for one in key_parameters(name, COMPLETIONS) if only is None or one.name in only.names]
                self.keys |= {option.name: name for option in options}
            self.parameters |= {option.name: option for option in options if not names or option.name in names}

    def take(self, given: dict[str, object]) -> T:
        """Take the values of its options out of ``given`` and return the dataclass."""
        values = {name: given.pop(name) for name in self.parameters}
        sections: dict[str, dict[str, object]] = {}
        for name, section in self.keys.items():
            if (value := values.pop(name, None)) not in (None, []):
                sections.setdefault(section, {})[f"{section}.{name}"] = value
        return self.group(**values, **sections)


def flatten_options(*names: str) -> Callable[[Callable[..., R]], Callable[..., R]]:
    """Decorator: flatten dataclass parameters of a command into options.

    Args:
        names: the options to take, if any are named; the others keep their defaults.
    """

    def decorated(command: Callable[..., R]) -> Callable[..., R]:
        hints, parameters = get_type_hints(command, include_extras=True), list[Parameter]()
        groups: dict[str, _OptionGroup[object]] = {}
        for name, parameter in signature(command).parameters.items():
            if isinstance(hints[name], type) and is_dataclass(hints[name]):
                groups[name] = _OptionGroup(hints[name], names)
                parameters += groups[name].parameters.values()
            else:
                parameters.append(parameter.replace(annotation=hints[name], kind=Parameter.KEYWORD_ONLY))

        @wraps(command)
        def run(**given: object) -> R:
            return command(**{name: group.take(given) for name, group in groups.items()}, **given)

        run.__dict__["__signature__"] = Signature(parameters)
        run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        del run.__dict__["__wrapped__"]
        return run

    return decorated


ProfileOption: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--profile",
        "-p",
        envvar="VIDSPEC_PROFILE",
        metavar="NAME|FILE",
        help="Method of acceleration; `vidspec profiles` lists the names (default: vanilla-sd-auto). "
        "lvspec, fly and random-loose, and profiles named after them, are not lossless; "
        "nor are fastv, pdrop, sparsevlm and dycoke, which prune the target itself.",
        autocompletion=profile_names,
    ),
]
SetOption: TypeAlias = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Override any key of the profile: --set prune.alpha=0.8."),
]
QuietOption: TypeAlias = Annotated[bool, _output("--quiet", help="Report failures only.")]
DebugOption: TypeAlias = Annotated[bool, _check("--debug", help="Show the traceback of every error.")]
CsvRawOption: TypeAlias = Annotated[
    bool, _output("--csv-raw", help="Write CSV cells unchanged, even those that a spreadsheet may run as formulas.")
]


class CaptionHelp(TyperCommand):
    """Help page with the options in :data:`COMMON`, or all; shells complete all of them."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        rare = [one for one in self.params if not (ctx.params.get("help_all") or one.name in COMMON)]
        try:
            for option in rare:
                option.hidden = True  # type: ignore[attr-defined]
            super().format_help(ctx, formatter)
        finally:
            for option in rare:
                option.hidden = False  # type: ignore[attr-defined]


def _help_all(context: typer.Context, wanted: bool) -> None:
    if wanted:
        context.params["help_all"] = True
        typer.echo(context.get_help())
        raise typer.Exit


@dataclass(frozen=True)
class CaptionArguments:
    """Options of ``vidspec caption``; ``vidspec ask`` takes some of them."""

    paths: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="PATH...",
            help="Videos, folders, manifests (.jsonl, .csv), shards (.tar, .parquet, also s3:// and other URLs), "
            "or - for a list on standard input.",
            show_default=False,
        ),
    ] = None
    profile: ProfileOption = None
    settings: SetOption = None

    from_file: Annotated[
        list[str] | None,
        _input(metavar="FILE", help="A list of paths, separated by newlines or NUL; - is standard input."),
    ] = None
    manifest: Annotated[
        list[str] | None,
        _input(
            metavar="FILE",
            help="JSONL or CSV with path and, optionally, prompt, start, end and id; - is standard input.",
        ),
    ] = None
    include: Annotated[
        list[str] | None, _input(metavar="GLOB", help="Take only matching paths of folders and lists.")
    ] = None
    exclude: Annotated[
        list[str] | None, _input(metavar="GLOB", help="Leave out matching paths of folders and lists.")
    ] = None
    extensions: Annotated[
        str | None, _input(metavar="LIST", help="File suffixes that count as video in folders: mp4,mkv, or any.")
    ] = None

    include_images: Annotated[
        bool,
        _input("--include-images", help="Also take image files of folders and lists, as clips of one frame."),
    ] = False

    column: Annotated[
        str | None, _input(metavar="NAME", help="Column of Parquet files with the clips or their paths.")
    ] = None
    allow_paths: Annotated[
        list[str] | None,
        _input(metavar="DIR", help="Also allow rows of Parquet files to name files in DIR; may be repeated."),
    ] = None
    allow_urls: Annotated[
        list[str] | None,
        _input(
            metavar="SCHEME://HOST",
            help="Also allow rows to name URLs of this host, private addresses included; may be repeated.",
        ),
    ] = None

    #: Keys of the profile that are options, by dotted key: those that were given.
    models: Mapping[str, object] = field(default_factory=dict)
    video: Mapping[str, object] = field(default_factory=dict)
    start: Annotated[str | None, _video(metavar="TIME", help="Start at this time: 90, 1:30 or 1m.")] = None
    end: Annotated[str | None, _video(metavar="TIME", help="Stop at this time.")] = None
    segment: Annotated[
        str | None,
        _video(metavar="LENGTH|scenes", help="Caption each segment: 30s, 2m or scenes (found by PySceneDetect)."),
    ] = None
    context: Annotated[bool, _video("--context", help="Add the previous segment's caption to the prompt.")] = False

    prompt: Annotated[
        list[str] | None,
        _text(
            metavar="TEXT",
            help="Question or instruction about the video; if repeated, each prompt gets a record of its own. "
            "{column} is replaced by a manifest's column.",
        ),
    ] = None
    turn: Annotated[
        list[str] | None,
        _text(
            metavar="TEXT",
            help="A turn of a dialogue about the video, asked after the previous answer; one record per turn.",
        ),
    ] = None
    prompt_file: Annotated[Path | None, _text(metavar="FILE", help="Read the prompt from a file.")] = None
    style: Annotated[
        str | None,
        _text(
            metavar="NAME",
            help="A named prompt: brief, detailed, subjects-actions-background, dataset.",
            autocompletion=style_names,
        ),
    ] = None
    generate: Mapping[str, object] = field(default_factory=dict)
    json: Annotated[
        bool, _text("--json", help="Answer with any JSON object; --fields and --json-schema say which.")
    ] = False
    template: Annotated[
        str | None,
        _text(
            metavar="TEXT",
            help="Insert each caption into this text: 'ohwx, {caption}'. {column} is a manifest's column.",
        ),
    ] = None
    single_line: Annotated[bool, _text("--single-line", help="Write each caption on one line, with single spaces.")] = (
        False
    )
    form: Annotated[
        str | None,
        _output(
            "--format",
            metavar="NAME[,NAME...]",
            help=f"{', '.join(format_names())}. json has every measurement, jsonl is reproducible byte for byte. "
            "Separate several by commas (default: by the suffix of -o FILE, else text).",
            autocompletion=complete_format,
        ),
    ] = None
    csv_raw: CsvRawOption = False
    output: Annotated[
        str | None,
        _output(
            "--output",
            "-o",
            help="One file for all clips; an existing one is continued; - is standard output.",
            metavar="FILE",
        ),
    ] = None
    output_dir: Annotated[
        str | None,
        _output(
            metavar="DIR", help="One file per clip below DIR, mirroring the input folders; for shards, one per shard."
        ),
    ] = None
    name: Annotated[
        str | None, _output(metavar="TEMPLATE", help="Name of each clip's file: '{stem}.{profile}{suffix}'.")
    ] = None
    ordered: Annotated[
        bool, _output("--ordered", help="Write captions on standard output in the order of the clips.")
    ] = False
    dry_run: Annotated[bool, _output("--dry-run", help="Only show the plan and estimate its time.")] = False
    log_file: Annotated[Path | None, _output(metavar="FILE", help="Append one JSON line per event.")] = None
    notify_every: Annotated[
        str | None, _output(metavar="N|TIME", help="Print a line of progress every N clips or every 5m.")
    ] = None
    progress: Annotated[
        TextOrJson,
        _output(
            "--progress",
            help="json: every line on standard error is a JSON object, one for each clip and at the end.",
        ),
    ] = "text"
    quiet: QuietOption = False
    verbose: Annotated[bool, _output("--verbose", "-v", help="Also report loaded models and timings.")] = False
    no_live: Annotated[bool, _output("--no-live", help="Do not show the live panel.")] = False

    overwrite: Annotated[bool, _resume("--overwrite", help="Start over; the earlier output file becomes FILE~.")] = (
        False
    )
    existing: Annotated[
        ExistingFiles | None,
        _resume(
            "--existing",
            help="Clips that have a caption file of other origin: skip them (default), replace the file, or use it: "
            "{existing} in --prompt and --template is its text. The earlier file becomes FILE~. "
            "Files edited since a run wrote them are replaced by --overwrite only.",
        ),
    ] = None
    retry_failed: Annotated[bool, _resume("--retry-failed", help="Retry clips that failed before.")] = False
    checksum: Annotated[bool, _resume("--checksum", help="Recognise clips by content instead of size and time.")] = (
        False
    )
    fail_fast: Annotated[bool, _resume("--fail-fast", help="Stop at the first failure.")] = False
    max_failures: Annotated[int | None, _resume(min=1, metavar="N", help="Stop after N failures.")] = None
    tolerate: Annotated[
        str | None, _resume(metavar="N|P%", help="Exit with 0 although so many clips failed: 10, or 1% of all.")
    ] = None
    timeout: Annotated[float | None, _resume(metavar="SECONDS", help="Give up on a clip after this long.")] = None
    max_fetch: Annotated[
        str, _resume(metavar="SIZE", help="Give up on a clip of a shard or URL larger than this: 500MB, 2GiB.")
    ] = "4GiB"

    batch: Annotated[str, _scale(metavar="auto|N", help="Clips captioned at once; 1 keeps the order of the clips.")] = (
        "auto"
    )
    ahead: Annotated[int, _scale(min=1, metavar="N", help="Maximum number of clips read ahead.")] = 8
    replicas: Annotated[str | None, _scale(metavar="N|auto", help="Captioners to run at once; auto: one per GPU.")] = (
        None
    )
    shard: Annotated[
        str | None, _scale(metavar="I/N", help="Caption only part I of N (default: set by a SLURM job array).")
    ] = None
    engine: Annotated[EngineName, _scale("--engine", help="ray: run captioners as actors on a Ray cluster.")] = "local"
    address: Annotated[str | None, _scale(metavar="ADDRESS", help="Address of the Ray cluster.")] = None

    baseline: Annotated[
        bool, _check("--baseline", help="Also run plain decoding and report the measured speed-up.")
    ] = False
    verify: Annotated[
        bool,
        _check(
            "--verify",
            help="Also run plain decoding and fail on any difference; for a single clip includes --baseline.",
        ),
    ] = False
    trace: Annotated[Path | None, _check("--trace", metavar="FILE", help="Write a Chrome/Perfetto trace.")] = None
    heatmap: Annotated[
        Path | None,
        _check("--heatmap", metavar="FILE.png", help="Draw a heatmap of the parts of the frames that the draft sees."),
    ] = None
    report: Annotated[
        Path | None,
        _check(
            "--report",
            metavar="FILE.html",
            help="Write a page: visual tokens of the draft, the model that wrote each token, a timeline.",
        ),
    ] = None
    debug: DebugOption = False
    help_all: Annotated[
        bool,
        typer.Option("--help-all", is_eager=True, callback=_help_all, help="Show all options and exit."),
    ] = False


@dataclass(frozen=True)
class ModelOptions:
    """Model options of commands that measure."""

    pair: Annotated[PairName, model_option("pair")] = "embedded"
    target: Annotated[str | None, model_option("target")] = None
    draft: Annotated[str | None, model_option("draft")] = None
    device: Annotated[str, model_option("device")] = "auto"
    dtype: Annotated[str, model_option("dtype")] = "auto"
    weights: Annotated[Literal["int8", "int4"] | None, model_option("weights")] = None
    threads: Annotated[int | None, model_option("threads")] = None

    @property
    def source(self) -> ModelSource:
        """Models as ``vidspec.bench`` takes them."""
        from vidspec.bench.loaded import ModelSource

        return ModelSource(self.pair, self.target, self.draft, self.device, self.dtype, self.weights)
