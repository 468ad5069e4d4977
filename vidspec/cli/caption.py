"""``vidspec caption``: turns options into a profile and a run, and its outcomes into lines, messages and a code."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from contextlib import ExitStack, redirect_stdout
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vidspec.cli.report import EMBEDDED_NOTICE, failure, note, summary
from vidspec.errors import UsageError

if TYPE_CHECKING:
    from vidspec.batch.run import Observer, Options, Outcome
    from vidspec.batch.writers import Lines

__all__ = ["caption"]

MODELS, VIDEO, TEXT, OUTPUT, CHECKS = "Models", "Video", "Generation", "Output", "Measuring and checking"


class Form(str, Enum):
    """How captions are written."""

    text = "text"
    json = "json"


def _profile_names(incomplete: str) -> list[tuple[str, str]]:
    from vidspec.profiles import available

    return [(info.name, info.about) for info in available() if info.name.startswith(incomplete)]


def caption(
    paths: Annotated[list[str], typer.Argument(metavar="PATH", help="Video files.", show_default=False)],
    profile: Annotated[
        str,
        typer.Option(
            "--profile",
            "-p",
            envvar="VIDSPEC_PROFILE",
            metavar="NAME|FILE",
            help="How to accelerate; `vidspec profiles` lists the names.",
            autocompletion=_profile_names,
        ),
    ] = "vanilla-sd",
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Override any key of the profile: --set prune.alpha=0.8."),
    ] = None,
    pair: Annotated[
        str | None, typer.Option(help="A built-in target and draft: embedded.", rich_help_panel=MODELS)
    ] = None,
    target: Annotated[
        str | None, typer.Option(help="The target: a hub id or a folder.", rich_help_panel=MODELS)
    ] = None,
    draft: Annotated[str | None, typer.Option(help="The draft: a hub id or a folder.", rich_help_panel=MODELS)] = None,
    device: Annotated[str | None, typer.Option(help="auto, cpu, cuda, cuda:N or mps.", rich_help_panel=MODELS)] = None,
    dtype: Annotated[
        str | None, typer.Option(help="auto, float32, bfloat16 or float16.", rich_help_panel=MODELS)
    ] = None,
    attn: Annotated[
        str | None, typer.Option(help="Attention kernel: auto, sdpa, eager, ...", rich_help_panel=MODELS)
    ] = None,
    frames: Annotated[int | None, typer.Option(help="Frames to show.", rich_help_panel=VIDEO)] = None,
    fps: Annotated[float | None, typer.Option(help="Frames to show per second.", rich_help_panel=VIDEO)] = None,
    start: Annotated[float | None, typer.Option(help="Begin here, in seconds.", rich_help_panel=VIDEO)] = None,
    end: Annotated[float | None, typer.Option(help="End here, in seconds.", rich_help_panel=VIDEO)] = None,
    max_pixels: Annotated[
        int | None, typer.Option(help="Shrink frames to at most this many pixels.", rich_help_panel=VIDEO)
    ] = None,
    decoder: Annotated[str | None, typer.Option(help="auto, decord or av.", rich_help_panel=VIDEO)] = None,
    prompt: Annotated[str | None, typer.Option(help="What to ask about the video.", rich_help_panel=TEXT)] = None,
    max_new_tokens: Annotated[int | None, typer.Option(help="Longest caption.", rich_help_panel=TEXT)] = None,
    temperature: Annotated[float | None, typer.Option(help="0 is greedy.", rich_help_panel=TEXT)] = None,
    top_p: Annotated[float | None, typer.Option(help="Nucleus sampling.", rich_help_panel=TEXT)] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of sampling.", rich_help_panel=TEXT)] = None,
    form: Annotated[
        Form, typer.Option("--format", help="json: one object per clip and line.", rich_help_panel=OUTPUT)
    ] = Form.text,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            help="Write here instead of stdout; an older file becomes FILE~.",
            metavar="FILE",
            rich_help_panel=OUTPUT,
        ),
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="Say only what failed.", rich_help_panel=OUTPUT)] = False,
    no_live: Annotated[bool, typer.Option("--no-live", help="No live panel.", rich_help_panel=OUTPUT)] = False,
    baseline: Annotated[
        bool, typer.Option("--baseline", help="Also decode plainly; report the true speed-up.", rich_help_panel=CHECKS)
    ] = False,
    verify: Annotated[
        bool, typer.Option("--verify", help="Also decode plainly; fail on any difference.", rich_help_panel=CHECKS)
    ] = False,
    trace: Annotated[
        Path | None,
        typer.Option("--trace", metavar="FILE", help="Write a Chrome/Perfetto trace.", rich_help_panel=CHECKS),
    ] = None,
    debug: Annotated[
        bool, typer.Option("--debug", help="Show the traceback of every error.", rich_help_panel=CHECKS)
    ] = False,
) -> int:
    """Caption video files. Captions go to stdout (or FILE), everything else to stderr.

    Exit codes: 0 all captioned, 1 some clip failed, 2 usage or profile error,
    3 model or device unavailable, 130 interrupted.
    """
    from vidspec import profiles
    from vidspec.batch.run import Options
    from vidspec.batch.writers import FileLines, StdoutLines, check_output

    named = {
        "models.pair": pair,
        "models.target": target,
        "models.draft": draft,
        "models.device": device,
        "models.dtype": dtype,
        "models.attention": attn,
        "video.frames": frames,
        "video.fps": fps,
        "video.max_pixels": max_pixels,
        "video.decoder": decoder,
        "generate.prompt": prompt,
        "generate.max_new_tokens": max_new_tokens,
        "generate.temperature": temperature,
        "generate.top_p": top_p,
        "generate.seed": seed,
    }
    _check_part(start, end)
    chosen = profiles.load(profile, _overrides(named, settings or []))
    for option, file in (("--output", output), ("--trace", trace)):
        if file is not None:
            check_output(file, paths, option)
    lines: Lines = StdoutLines() if output is None else FileLines(output)
    options = Options(start=start, end=end, baseline=baseline, verify=verify)
    debug = debug or os.environ.get("VIDSPEC_DEBUG", "") not in ("", "0")
    # Libraries that print must not mix with captions; only ``lines`` still holds the true stdout.
    with redirect_stdout(sys.stderr):
        return _run(chosen, paths, options, lines, form.value, trace, quiet=quiet, live=not no_live, debug=debug)


def _run(
    profile: Any,
    paths: list[str],
    options: Options,
    lines: Lines,
    form: Any,
    trace: Path | None,
    *,
    quiet: bool,
    live: bool,
    debug: bool,
) -> int:
    from vidspec.batch.run import exit_code, run
    from vidspec.batch.writers import FileLines, render
    from vidspec.captioner import Captioner

    errors: list[Exception | None] = []
    traces: list[tuple[str, Any]] = []
    complete = False
    with ExitStack() as stack:
        try:
            captioner = stack.enter_context(Captioner.from_profile(profile))
            stack.callback(lambda: _finish(lines, complete, trace, traces))
            stack.callback(lambda: note(EMBEDDED_NOTICE) if captioner.embedded and None in errors else None)
            observer = _observer(
                stack, profile.name, quiet=quiet, live=live, to_stdout=not isinstance(lines, FileLines)
            )
            for outcome in run(captioner, paths, options, observer):
                _tell(outcome, quiet=quiet, debug=debug)
                errors.append(outcome.error)
                line = render(outcome.caption, form, several=len(paths) > 1)
                if line is not None:
                    lines.write(line)
                if trace is not None and outcome.caption.trace is not None:
                    traces.append((outcome.caption.path, outcome.caption.trace))
        except KeyboardInterrupt:
            stack.close()
            note(f"interrupted: {len(errors)} of {len(paths)} clips were done, and are kept")
            return 130
        complete = True
    if isinstance(lines, FileLines) and lines.replaced and not quiet:
        note(f"{lines.path}: the earlier file is now {lines.replaced}")
    return exit_code(errors)


def _tell(outcome: Outcome, *, quiet: bool, debug: bool) -> None:
    if outcome.error is not None:
        failure(outcome.caption, outcome.error, debug=debug)
    elif not quiet:
        note(summary(outcome.caption))


def _finish(lines: Lines, complete: bool, trace: Path | None, traces: list[tuple[str, Any]]) -> None:
    lines.close(complete=complete)
    if trace is not None and (traces or complete):
        from vidspec.batch.trace_file import write
        from vidspec.decoding.trace import to_chrome

        write(trace, [(path, to_chrome(events)) for path, events in traces])


def _observer(stack: ExitStack, profile: str, *, quiet: bool, live: bool, to_stdout: bool) -> Observer:
    from vidspec.batch.run import Observer

    if quiet or not live or not sys.stderr.isatty():
        return Observer()
    from rich.console import Console

    from vidspec.live.panel import LivePanel

    console = Console(stderr=True)
    if console.is_dumb_terminal:
        return Observer()
    # Where the terminal shows stdout too, the finished caption stands there and not twice.
    keep = not (to_stdout and sys.__stdout__ is not None and sys.__stdout__.isatty())
    return stack.enter_context(LivePanel(console, profile=profile, keep_caption=keep))


def _check_part(start: float | None, end: float | None) -> None:
    for option, value in (("--start", start), ("--end", end)):
        if value is not None and not 0 <= value < float("inf"):
            raise UsageError(f"{option} {value:g}: must be zero or more seconds")
    if start is not None and end is not None and end <= start:
        raise UsageError(f"--end {end:g}: must be after --start {start:g}")


def _overrides(named: Mapping[str, object], settings: list[str]) -> dict[str, object]:
    """Options and ``--set`` as dotted keys; the same key by both is refused, since neither is the obvious winner."""
    overrides = {key: value for key, value in named.items() if value is not None}
    for setting in settings:
        key, equals, value = setting.partition("=")
        if not equals or not key.strip():
            raise UsageError(f"--set {setting}: must be KEY=VALUE, such as prune.alpha=0.8")
        if key.strip() in overrides:
            raise UsageError(f"--set {setting}: {key.strip()} is set twice on this command line")
        overrides[key.strip()] = value.strip()
    return overrides
