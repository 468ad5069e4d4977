"""``vidspec profile``: its options; measuring and drawing are in ``vidspec.bench``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from vidspec.cli.bench import Device, Draft, Dtype, Pair, PairName, Target, Threads
from vidspec.cli.printed import Form, print_csv, print_json, say
from vidspec.errors import UsageError

if TYPE_CHECKING:
    from vidspec.bench.profiled import Report

__all__ = ["profile"]


def profile(
    clip: Annotated[Path, typer.Argument(metavar="CLIP", help="A video file.")],
    profiles: Annotated[
        str,
        typer.Option("--profiles", "--profile", "-p", help="Names or files, parted by commas; all: lossless ones."),
    ] = "vanilla-sd",
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Override any key of every profile: --set video.frames=16."),
    ] = None,
    pair: Pair = PairName.embedded,
    target: Target = None,
    draft: Draft = None,
    device: Device = "auto",
    dtype: Dtype = "auto",
    threads: Threads = None,
    repeats: Annotated[
        int, typer.Option("--repeats", min=1, help="Of every profile, in turn; the median run is shown.")
    ] = 3,
    no_passes: Annotated[bool, typer.Option("--no-passes", help="Do not time single passes.")] = False,
    form: Annotated[
        Form, typer.Option("--format", help="json: everything; csv: parts in seconds; text: tables.")
    ] = Form.text,
    svg: Annotated[Path | None, typer.Option("--svg", metavar="FILE", help="Also draw the tables.")] = None,
) -> None:
    """Show where the time and the memory of a clip go, for one profile or several side by side.

    Parts add up to the wall clock; what the parallel schedule hides is shown by worker. Also times single passes on
    the clip's own caches: T_p(n), T_q(alpha), their ratio c and the draft window they recommend.

    vidspec profile clip.mp4 --profiles ar,specvlm,parallelvlm
    """
    from vidspec.config.profiles import setting

    overrides: dict[str, object] = {}
    for given in settings or ():
        try:
            key, value = setting(given)
        except ValueError:
            raise UsageError(f"--set {given}: must be KEY=VALUE, such as video.frames=16") from None
        overrides[key] = value
    if svg is not None:
        from vidspec.files import PICTURE, check_output

        check_output(svg, [str(clip)], "--svg", PICTURE)
    from vidspec.bench.loaded import Source, names_of
    from vidspec.bench.profiled import profile_clip

    report = profile_clip(
        clip,
        names_of(profiles),
        Source(pair.value, target, draft, device, dtype),
        overrides=overrides,
        repeats=repeats,
        passes=not no_passes,
        threads=threads,
        say=say,
    )
    if svg is not None:
        from vidspec.bench import profile_view
        from vidspec.files import write_whole

        write_whole(svg, profile_view.svg(report))
    _print(report, form)


def _print(report: Report, form: Form) -> None:
    from rich.console import Console

    from vidspec.bench import profile_view

    if form is Form.json:
        print_json(report.to_dict())
    elif form is Form.markdown:
        print(profile_view.markdown(report))
    elif form is Form.csv:
        print_csv(profile_view.CSV_COLUMNS, profile_view.csv_rows(report))
    else:
        console = Console(highlight=False)
        if console.is_terminal:
            console.print(profile_view.drawn(report, ascii_only=not console.encoding.lower().startswith("utf")))
        else:
            print("\n".join("\t".join(map(str, row)) for row in profile_view.csv_rows(report)))
