"""The options of ``vidspec caption``, each as a type; what they do is said in their help and done elsewhere."""

# Annotations are not postponed: Typer looks at those of the request.
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Annotated, TypeAlias

import typer

MODELS, VIDEO, TEXT, OUTPUT, CHECKS = "Models", "Video", "Generation", "Output", "Measuring and checking"
INPUTS, RESUME, SCALE = "Inputs", "Resuming and failures", "Many devices and machines"


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


CsvRaw: TypeAlias = Annotated[
    bool,
    typer.Option(
        "--csv-raw", help="CSV cells that a spreadsheet may run as formulas, as they are.", rich_help_panel=OUTPUT
    ),
]


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
        list[str] | None,
        typer.Option(metavar="FILE", help="A list of paths, a line or a NUL each; - is stdin.", rich_help_panel=INPUTS),
    ] = None
    manifest: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FILE",
            help="JSONL or CSV: path, and perhaps prompt, start, end, id; - is stdin.",
            rich_help_panel=INPUTS,
        ),
    ] = None
    include: Annotated[
        list[str] | None,
        typer.Option(metavar="GLOB", help="In folders and lists: only these.", rich_help_panel=INPUTS),
    ] = None
    exclude: Annotated[
        list[str] | None,
        typer.Option(metavar="GLOB", help="In folders and lists: not these.", rich_help_panel=INPUTS),
    ] = None
    extensions: Annotated[
        str | None,
        typer.Option(metavar="LIST", help="What is a video in folders: mp4,mkv, or any.", rich_help_panel=INPUTS),
    ] = None

    pair: Annotated[
        str | None,
        typer.Option(
            help="A built-in target and draft: embedded or embedded-qwen.",
            rich_help_panel=MODELS,
            autocompletion=pair_names,
        ),
    ] = None
    target: Annotated[
        str | None,
        typer.Option(help="The target: a hub id or a folder.", rich_help_panel=MODELS, autocompletion=target_names),
    ] = None
    draft: Annotated[
        str | None,
        typer.Option(
            help="The draft: a hub id or a folder. [default: what `vidspec models` lists for the target]",
            rich_help_panel=MODELS,
        ),
    ] = None
    captioner: Annotated[
        str | None,
        typer.Option(
            help="Captions a frame for a draft that is shown a text: a hub id or a folder. [default: the draft]",
            rich_help_panel=MODELS,
        ),
    ] = None
    device: Annotated[str | None, typer.Option(help="auto, cpu, cuda, cuda:N or mps.", rich_help_panel=MODELS)] = None
    dtype: Annotated[str | None, typer.Option(help="auto, float32, bfloat16 or float16.", rich_help_panel=MODELS)] = (
        None
    )

    frames: Annotated[int | None, typer.Option(help="Frames to show.", rich_help_panel=VIDEO)] = None
    fps: Annotated[float | None, typer.Option(help="Frames to show per second.", rich_help_panel=VIDEO)] = None
    start: Annotated[
        str | None, typer.Option(metavar="TIME", help="Begin here: 90, 1:30 or 1m.", rich_help_panel=VIDEO)
    ] = None
    end: Annotated[str | None, typer.Option(metavar="TIME", help="End here.", rich_help_panel=VIDEO)] = None
    max_pixels: Annotated[
        int | None, typer.Option(help="Shrink frames to at most this many pixels.", rich_help_panel=VIDEO)
    ] = None
    decoder: Annotated[str | None, typer.Option(help="auto, decord, av or nvdec.", rich_help_panel=VIDEO)] = None
    allow_damaged: Annotated[
        bool | None,
        typer.Option(
            "--allow-damaged",
            help="Caption what is there of a damaged file; the record says so.",
            rich_help_panel=VIDEO,
        ),
    ] = None
    audio: Annotated[
        bool | None,
        typer.Option(
            "--audio/--no-audio",
            help="Whether models that hear do.",
            rich_help_panel=VIDEO,
        ),
    ] = None
    segment: Annotated[
        str | None,
        typer.Option(
            metavar="LENGTH|scenes",
            help="Caption each part: 30s, 2m or scenes (by PySceneDetect).",
            rich_help_panel=VIDEO,
        ),
    ] = None
    context: Annotated[
        bool, typer.Option("--context", help="Show each segment the caption before it.", rich_help_panel=VIDEO)
    ] = False

    prompt: Annotated[
        list[str] | None,
        typer.Option(
            metavar="TEXT",
            help="What to ask about the video; given again, several things at once: a record for each.",
            rich_help_panel=TEXT,
        ),
    ] = None
    turn: Annotated[
        list[str] | None,
        typer.Option(
            metavar="TEXT",
            help="Talk about the video: each --turn is asked behind the answer before; a record for each.",
            rich_help_panel=TEXT,
        ),
    ] = None
    prompt_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Read the prompt from a file.", rich_help_panel=TEXT)
    ] = None
    style: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="A named prompt: brief, detailed, subjects-actions-background, dataset.",
            rich_help_panel=TEXT,
            autocompletion=style_names,
        ),
    ] = None
    system: Annotated[str | None, typer.Option(metavar="TEXT", help="The system prompt.", rich_help_panel=TEXT)] = None
    max_new_tokens: Annotated[int | None, typer.Option(help="Longest caption.", rich_help_panel=TEXT)] = None
    stop_loops: Annotated[
        bool | None,
        typer.Option("--stop-loops", help="End a caption that says the same again and again.", rich_help_panel=TEXT),
    ] = None
    temperature: Annotated[float | None, typer.Option(help="0 is greedy.", rich_help_panel=TEXT)] = None
    top_p: Annotated[float | None, typer.Option(help="Nucleus sampling.", rich_help_panel=TEXT)] = None
    seed: Annotated[int | None, typer.Option(help="Seed of sampling.", rich_help_panel=TEXT)] = None

    form: Annotated[
        str | None,
        typer.Option(
            "--format",
            metavar="NAME[,NAME...]",
            help="text, txt, json (all that was measured), jsonl (the same captions, the same bytes), csv, srt, vtt or "
            "webdataset-txt; several by commas (default: what the suffix of --output FILE names, else text).",
            rich_help_panel=OUTPUT,
            autocompletion=format_names,
        ),
    ] = None
    csv_raw: CsvRaw = False
    output: Annotated[
        str | None,
        typer.Option(
            "--output",
            "-o",
            help="One file for all clips, continued if it exists; - is stdout.",
            metavar="FILE",
            rich_help_panel=OUTPUT,
        ),
    ] = None
    output_dir: Annotated[
        str | None,
        typer.Option(metavar="DIR", help="A file for each clip below DIR, as the clips lie.", rich_help_panel=OUTPUT),
    ] = None
    name: Annotated[
        str | None,
        typer.Option(
            metavar="TEMPLATE", help="Of each clip's file: '{stem}.{profile}{suffix}'.", rich_help_panel=OUTPUT
        ),
    ] = None
    ordered: Annotated[
        bool,
        typer.Option("--ordered", help="To stdout: captions in the order of the clips.", rich_help_panel=OUTPUT),
    ] = False
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run", help="Only say what would be done, and how long it may take.", rich_help_panel=OUTPUT
        ),
    ] = False
    log_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Add a JSON line for every event.", rich_help_panel=OUTPUT)
    ] = None
    notify_every: Annotated[
        str | None,
        typer.Option(metavar="N|TIME", help="A line of progress every 100 clips, or every 5m.", rich_help_panel=OUTPUT),
    ] = None
    quiet: Annotated[bool, typer.Option("--quiet", help="Say only what failed.", rich_help_panel=OUTPUT)] = False
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Say what is loaded, and where time goes.", rich_help_panel=OUTPUT)
    ] = False
    no_live: Annotated[bool, typer.Option("--no-live", help="No live panel.", rich_help_panel=OUTPUT)] = False

    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Begin anew; the older file becomes FILE~.", rich_help_panel=RESUME)
    ] = False
    retry_failed: Annotated[
        bool, typer.Option("--retry-failed", help="Try again what failed before.", rich_help_panel=RESUME)
    ] = False
    checksum: Annotated[
        bool,
        typer.Option("--checksum", help="Know clips by their bytes, not by size and time.", rich_help_panel=RESUME),
    ] = False
    fail_fast: Annotated[
        bool, typer.Option("--fail-fast", help="Stop at the first failure.", rich_help_panel=RESUME)
    ] = False
    max_failures: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Stop after this many.", rich_help_panel=RESUME)
    ] = None
    timeout: Annotated[
        float | None, typer.Option(metavar="SECONDS", help="Give up a clip after this long.", rich_help_panel=RESUME)
    ] = None

    batch: Annotated[
        str, typer.Option(metavar="auto|N", help="Clips to caption at once; 1: in their order.", rich_help_panel=SCALE)
    ] = "auto"
    ahead: Annotated[
        int, typer.Option(min=1, metavar="N", help="Clips that may be read and wait.", rich_help_panel=SCALE)
    ] = 8
    replicas: Annotated[
        str | None,
        typer.Option(metavar="N|auto", help="Captioners at once; auto: one for each GPU.", rich_help_panel=SCALE),
    ] = None
    shard: Annotated[
        str | None,
        typer.Option(
            metavar="I/N", help="Only this part of the clips; of SLURM's job array by default.", rich_help_panel=SCALE
        ),
    ] = None
    engine: Annotated[
        EngineName, typer.Option("--engine", help="ray: actors on a Ray cluster.", rich_help_panel=SCALE)
    ] = EngineName.local
    address: Annotated[
        str | None, typer.Option(metavar="ADDRESS", help="Of the Ray cluster.", rich_help_panel=SCALE)
    ] = None

    baseline: Annotated[
        bool, typer.Option("--baseline", help="Also decode plainly; report the true speed-up.", rich_help_panel=CHECKS)
    ] = False
    verify: Annotated[
        bool, typer.Option("--verify", help="Also decode plainly; fail on any difference.", rich_help_panel=CHECKS)
    ] = False
    trace: Annotated[
        Path | None,
        typer.Option("--trace", metavar="FILE", help="Write a Chrome/Perfetto trace.", rich_help_panel=CHECKS),
    ] = None
    heatmap: Annotated[
        Path | None,
        typer.Option(
            "--heatmap", metavar="FILE.png", help="Draw what the draft sees of the frames.", rich_help_panel=CHECKS
        ),
    ] = None
    report: Annotated[
        Path | None,
        typer.Option(
            "--report",
            metavar="FILE.html",
            help="One page to look at: what the draft saw, who wrote each token, where the time went.",
            rich_help_panel=CHECKS,
        ),
    ] = None
    debug: Annotated[
        bool, typer.Option("--debug", help="Show the traceback of every error.", rich_help_panel=CHECKS)
    ] = False
