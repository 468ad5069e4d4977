"""Command ``vidspec profile`` and its options; ``vidspec.bench`` measures and draws."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from vidspec.cli.options import ModelOptions, SetOption, flatten_options, parse_measured_settings
from vidspec.cli.printed import print_json, print_note, print_rows

if TYPE_CHECKING:
    from vidspec.bench.profiled import ProfileReport


@flatten_options()
def profile(
    clip: Annotated[Path, typer.Argument(metavar="CLIP", help="A video file.")],
    *,
    profiles: Annotated[
        str,
        typer.Option(
            "--profiles", "--profile", "-p", help="Names or files, separated by commas; all: every lossless profile."
        ),
    ] = "vanilla-sd",
    settings: SetOption = None,
    models: ModelOptions,
    repeats: Annotated[int, typer.Option(min=1, help="Runs of every profile; the median run is shown.")] = 3,
    no_passes: Annotated[bool, typer.Option("--no-passes", help="Do not time single passes.")] = False,
    form: Annotated[
        Literal["text", "json", "markdown"],
        typer.Option("--format", help="json: everything; text, markdown: tables; in a pipe parts in seconds."),
    ] = "text",
) -> None:
    """Break down the time of a clip, for one profile or several side by side.

    The parts add up to the wall time; work that the parallel schedule overlaps is shown per worker. It also times
    single passes on the clip's own caches: T_p(n), T_q(alpha), their ratio c and the draft window that they recommend.

    vidspec profile clip.mp4 --profiles ar,specvlm,parallelvlm
    """

    overrides = parse_measured_settings(settings, "video.frames=16")
    from vidspec.bench.loaded import profile_labels
    from vidspec.bench.profiled import profile_clip

    report = profile_clip(
        clip,
        profile_labels(profiles),
        models.source,
        overrides=overrides,
        repeats=repeats,
        passes=not no_passes,
        threads=models.threads,
        say=print_note,
    )
    _print(report, form)


def _print(report: ProfileReport, form: str) -> None:
    from rich.console import Console

    from vidspec.bench import profile_view

    console = Console(highlight=False)
    if form == "json":
        print_json(report.to_dict())
    elif form == "markdown":
        print(profile_view.markdown(report))
    elif console.is_terminal:
        ascii_only = not console.encoding.lower().startswith("utf")
        console.print(profile_view.render_terminal(report, console.width, ascii_only=ascii_only))
    else:
        print_rows(profile_view.time_rows(report))
