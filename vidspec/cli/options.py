"""The options of ``vidspec caption``, each as a type; what they do is said in their help and done elsewhere."""

# Annotations are not postponed: Typer looks at those of the request.
from dataclasses import dataclass
from enum import Enum
from functools import partial
from pathlib import Path
from typing import Annotated, Any, TypeAlias

import typer
from typer.core import TyperCommand

_model, _video, _text, _output = (
    partial(typer.Option, rich_help_panel=panel) for panel in ("Models", "Video", "Generation", "Output")
)
_input, _resume = (partial(typer.Option, rich_help_panel=panel) for panel in ("Inputs", "Resuming and failures"))
_scale = partial(typer.Option, rich_help_panel="Many devices and machines")
_check = partial(typer.Option, rich_help_panel="Measuring and checking")

#: What `vidspec caption --help` shows; `--help-all` shows the other options too.
COMMON = {"paths", "profile", "settings", "pair", "target", "draft", "device"}
COMMON |= {"frames", "fps", "start", "end", "segment", "prompt", "turn", "style", "max_new_tokens", "temperature"}
COMMON |= {"form", "output", "output_dir", "dry_run", "quiet", "verbose", "overwrite", "retry_failed", "batch"}
COMMON |= {"baseline", "verify", "report", "help", "help_all"}

#: The pairs that come with vidspec.
BUILT_IN = {"embedded": "LLaVA-OneVision's architecture", "embedded-qwen": "Qwen2.5-VL's architecture"}


class Format(str, Enum):
    """How captions are written."""

    text = "text"
    txt = "txt"
    json = "json"
    jsonl = "jsonl"
    csv = "csv"
    srt = "srt"
    vtt = "vtt"
    webdataset_txt = "webdataset-txt"


class TextOrJson(str, Enum):
    """How a command that finds something out says what it found."""

    text = "text"
    json = "json"


class EngineName(str, Enum):
    """Who runs the captioners."""

    local = "local"
    ray = "ray"


def profile_names(incomplete: str) -> list[tuple[str, str]]:
    """For completion: names of profiles and what they are."""
    from vidspec.config.profiles import available

    return [(info.name, info.about) for info in available() if info.name.startswith(incomplete)]


def pair_names(incomplete: str) -> list[tuple[str, str]]:
    """For completion: the built-in pairs and what they are."""
    return [(name, about) for name, about in BUILT_IN.items() if name.startswith(incomplete)]


def format_names(incomplete: str) -> list[str]:
    """For completion: formats, behind those that are there already."""
    before, comma, last = incomplete.rpartition(",")
    forms = (form.value for form in Format)
    return [before + comma + form for form in forms if form.startswith(last) and form not in before.split(",")]


def target_names(incomplete: str) -> list[tuple[str, str]]:
    """For completion: published targets and the draft that each takes by itself."""
    from vidspec.models.known_pairs import draft_of, known

    names = dict.fromkeys(pair.target.name for pair in known())
    return [(name, f"draft: {draft_of(name) or 'itself'}") for name in names if name.startswith(incomplete)]


def style_names(incomplete: str) -> list[tuple[str, str]]:
    """For completion: names of prompts and what they say."""
    from vidspec.config.prompts import STYLES

    return [(name, text) for name, text in STYLES.items() if name.startswith(incomplete)]


Profile: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--profile",
        "-p",
        envvar="VIDSPEC_PROFILE",
        metavar="NAME|FILE",
        help="How to accelerate; `vidspec profiles` lists the names (default: vanilla-sd). "
        "lvspec, fly and random-loose, and profiles named after them, are not lossless; "
        "nor are fastv, pdrop, sparsevlm and dycoke, which prune the target itself.",
        autocompletion=profile_names,
    ),
]
Settings: TypeAlias = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Override any key of the profile: --set prune.alpha=0.8."),
]


Pair: TypeAlias = Annotated[
    str | None, _model(help="A built-in target and draft: embedded or embedded-qwen.", autocompletion=pair_names)
]
Target: TypeAlias = Annotated[str | None, _model(help="The target: a hub id or a folder.", autocompletion=target_names)]
Draft: TypeAlias = Annotated[
    str | None,
    _model(help="The draft: a hub id or a folder (default: what `vidspec models` lists for the target)."),
]
Device: TypeAlias = Annotated[str | None, _model(help="auto, cpu, cuda, cuda:N or mps.")]
Dtype: TypeAlias = Annotated[str | None, _model(help="auto, float32, bfloat16 or float16.")]
Frames: TypeAlias = Annotated[int | None, _video(help="Frames to show.")]
Fps: TypeAlias = Annotated[float | None, _video(help="Frames to show per second.")]
Start: TypeAlias = Annotated[str | None, _video(metavar="TIME", help="Begin here: 90, 1:30 or 1m.")]
End: TypeAlias = Annotated[str | None, _video(metavar="TIME", help="End here.")]
System: TypeAlias = Annotated[str | None, _text(metavar="TEXT", help="The system prompt.")]
Temperature: TypeAlias = Annotated[float | None, _text(help="0 is greedy.")]
Quiet: TypeAlias = Annotated[bool, _output("--quiet", help="Say only what failed.")]
Debug: TypeAlias = Annotated[bool, _check("--debug", help="Show the traceback of every error.")]
CsvRaw: TypeAlias = Annotated[
    bool, _output("--csv-raw", help="CSV cells that a spreadsheet may run as formulas, as they are.")
]


class CaptionHelp(TyperCommand):
    """Help that shows the options in :data:`COMMON`, or all; the others are completed by shells all the same."""

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
class Request:
    """The options of ``vidspec caption``, and what each is where it is not given."""

    paths: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="PATH...",
            help="Videos, folders, manifests (.jsonl, .csv), or - for a list on standard input.",
            show_default=False,
        ),
    ] = None
    profile: Profile = None
    settings: Settings = None

    from_file: Annotated[
        list[str] | None, _input(metavar="FILE", help="A list of paths, a line or a NUL each; - is stdin.")
    ] = None
    manifest: Annotated[
        list[str] | None,
        _input(metavar="FILE", help="JSONL or CSV: path, and perhaps prompt, start, end, id; - is stdin."),
    ] = None
    include: Annotated[list[str] | None, _input(metavar="GLOB", help="In folders and lists: only these.")] = None
    exclude: Annotated[list[str] | None, _input(metavar="GLOB", help="In folders and lists: not these.")] = None
    extensions: Annotated[str | None, _input(metavar="LIST", help="What is a video in folders: mp4,mkv, or any.")] = (
        None
    )

    pair: Pair = None
    target: Target = None
    draft: Draft = None
    captioner: Annotated[
        str | None,
        _model(help="Captions a frame for a draft that is shown a text: a hub id or a folder (default: the draft)."),
    ] = None
    device: Device = None
    dtype: Dtype = None

    frames: Frames = None
    fps: Fps = None
    start: Start = None
    end: End = None
    max_pixels: Annotated[int | None, _video(help="Shrink frames to at most this many pixels.")] = None
    decoder: Annotated[str | None, _video(help="auto, decord, av, nvdec, vaapi or videotoolbox.")] = None
    seek: Annotated[
        str | None,
        _video(metavar="exact|keyframes", help="keyframes: those nearest to the frames; fast in long files."),
    ] = None
    allow_damaged: Annotated[
        bool | None, _video("--allow-damaged", help="Caption what is there of a damaged file; the record says so.")
    ] = None
    audio: Annotated[bool | None, _video("--audio/--no-audio", help="Whether models that hear do.")] = None
    segment: Annotated[
        str | None, _video(metavar="LENGTH|scenes", help="Caption each part: 30s, 2m or scenes (by PySceneDetect).")
    ] = None
    context: Annotated[bool, _video("--context", help="Show each segment the caption before it.")] = False

    prompt: Annotated[
        list[str] | None,
        _text(
            metavar="TEXT", help="What to ask about the video; given again, several things at once: a record for each."
        ),
    ] = None
    turn: Annotated[
        list[str] | None,
        _text(
            metavar="TEXT",
            help="Talk about the video: each --turn is asked behind the answer before; a record for each.",
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
    system: System = None
    max_new_tokens: Annotated[int | None, _text(help="Longest caption.")] = None
    stop_loops: Annotated[
        bool | None, _text("--stop-loops", help="End a caption that says the same again and again.")
    ] = None
    temperature: Temperature = None
    top_p: Annotated[float | None, _text(help="Nucleus sampling.")] = None
    seed: Annotated[int | None, _text(help="Seed of sampling.")] = None

    form: Annotated[
        str | None,
        _output(
            "--format",
            metavar="NAME[,NAME...]",
            help="text, txt, json (all that was measured), jsonl (the same captions, the same bytes), csv, srt, vtt or "
            "webdataset-txt; several by commas (default: what the suffix of --output FILE names, else text).",
            autocompletion=format_names,
        ),
    ] = None
    csv_raw: CsvRaw = False
    output: Annotated[
        str | None,
        _output("--output", "-o", help="One file for all clips, continued if it exists; - is stdout.", metavar="FILE"),
    ] = None
    output_dir: Annotated[
        str | None, _output(metavar="DIR", help="A file for each clip below DIR, as the clips lie.")
    ] = None
    name: Annotated[
        str | None, _output(metavar="TEMPLATE", help="Of each clip's file: '{stem}.{profile}{suffix}'.")
    ] = None
    ordered: Annotated[bool, _output("--ordered", help="To stdout: captions in the order of the clips.")] = False
    dry_run: Annotated[bool, _output("--dry-run", help="Only say what would be done, and how long it may take.")] = (
        False
    )
    log_file: Annotated[Path | None, _output(metavar="FILE", help="Add a JSON line for every event.")] = None
    notify_every: Annotated[
        str | None, _output(metavar="N|TIME", help="A line of progress every 100 clips, or every 5m.")
    ] = None
    quiet: Quiet = False
    verbose: Annotated[bool, _output("--verbose", "-v", help="Say what is loaded, and where time goes.")] = False
    no_live: Annotated[bool, _output("--no-live", help="No live panel.")] = False

    overwrite: Annotated[bool, _resume("--overwrite", help="Begin anew; the older file becomes FILE~.")] = False
    retry_failed: Annotated[bool, _resume("--retry-failed", help="Try again what failed before.")] = False
    checksum: Annotated[bool, _resume("--checksum", help="Know clips by their bytes, not by size and time.")] = False
    fail_fast: Annotated[bool, _resume("--fail-fast", help="Stop at the first failure.")] = False
    max_failures: Annotated[int | None, _resume(min=1, metavar="N", help="Stop after this many.")] = None
    timeout: Annotated[float | None, _resume(metavar="SECONDS", help="Give up a clip after this long.")] = None

    batch: Annotated[str, _scale(metavar="auto|N", help="Clips to caption at once; 1: in their order.")] = "auto"
    ahead: Annotated[int, _scale(min=1, metavar="N", help="Clips that may be read and wait.")] = 8
    replicas: Annotated[str | None, _scale(metavar="N|auto", help="Captioners at once; auto: one for each GPU.")] = None
    shard: Annotated[
        str | None, _scale(metavar="I/N", help="Only this part of the clips; of SLURM's job array by default.")
    ] = None
    engine: Annotated[EngineName, _scale("--engine", help="ray: actors on a Ray cluster.")] = EngineName.local
    address: Annotated[str | None, _scale(metavar="ADDRESS", help="Of the Ray cluster.")] = None

    baseline: Annotated[bool, _check("--baseline", help="Also decode plainly; report the true speed-up.")] = False
    verify: Annotated[bool, _check("--verify", help="Also decode plainly; fail on any difference.")] = False
    trace: Annotated[Path | None, _check("--trace", metavar="FILE", help="Write a Chrome/Perfetto trace.")] = None
    heatmap: Annotated[
        Path | None, _check("--heatmap", metavar="FILE.png", help="Draw what the draft sees of the frames.")
    ] = None
    report: Annotated[
        Path | None,
        _check(
            "--report",
            metavar="FILE.html",
            help="One page to look at: what the draft saw, who wrote each token, where the time went.",
        ),
    ] = None
    debug: Debug = False
    help_all: Annotated[
        bool,
        typer.Option(
            "--help-all", is_eager=True, callback=_help_all, help="Show this with the rarer options and exit."
        ),
    ] = False
