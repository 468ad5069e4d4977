"""``python -m research.pareto``: the command line; measuring, summarising and drawing are in this folder's modules."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from research.commands import TableFormat, run
from vidspec.cli.options import ModelOptions
from vidspec.cli.printed import print_facts, print_json, print_note
from vidspec.errors import UsageError
from vidspec.files import FileKind

SUITE = "pareto"
#: SVG that names vidspec as the creator, or in a comment.
PICTURE = FileKind("picture drawn by vidspec", rb"<dc:title>vidspec</dc:title>|<!-- vidspec ")


class Part(StrEnum):
    """The part to measure."""

    times = "times"
    quality = "quality"


def command(
    *,
    clips: Annotated[
        list[Path] | None,
        typer.Argument(metavar="CLIP...", help="Video files; drawn clips with known truth if none are named."),
    ] = None,
    profiles: Annotated[
        str | None,
        typer.Option(
            "--profiles",
            help="As of `vidspec bench`; the first is the baseline; draft: the draft model alone.",
            show_default="the suite pareto",
        ),
    ] = None,
    repeats: Annotated[int, typer.Option("--repeats", min=1, help="Of every timed clip.")] = 3,
    count: Annotated[int, typer.Option("--count", min=1, help="Number of drawn clips.")] = 200,
    clips_dir: Annotated[
        Path | None,
        typer.Option("--clips-dir", metavar="DIR", help="Where drawn clips are kept and found again.", file_okay=False),
    ] = None,
    timed: Annotated[
        int, typer.Option("--timed", min=1, help="Time so many of the clips; the others serve quality alone.")
    ] = 24,
    only: Annotated[Part | None, typer.Option("--only", help="One part; the other may continue FILE.")] = None,
    models: ModelOptions,
    json: Annotated[
        Path | None,
        typer.Option("--json", metavar="FILE", help="Every record as it comes; the same command continues the file."),
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Begin FILE anew; the older becomes FILE~.")] = False,
    svg: Annotated[
        Path | None, typer.Option("--svg", metavar="FILE", help="Draw speed-up against quality; needs matplotlib.")
    ] = None,
    form: Annotated[TableFormat, typer.Option("--format", help="json: one object with methods.")] = "markdown",
) -> int:
    """Hold speed-up against quality for lossless, loose and lossy methods, and mark those that none beats in both.

    Facts of captions are scored on clips whose truth is known from a truth.json beside them; on others captions are
    held against plain decoding's. Intervals are 95% bootstrap intervals over clips.
    """
    from vidspec.bench.results import check_results

    if clips and clips_dir is not None:
        raise UsageError("--clips-dir is for drawn clips", hint="leave out CLIP...")
    named = list(map(str, clips or ()))
    if svg is not None:
        _check_picture(svg, named)
    if json is not None:
        check_results(json, named, overwrite=overwrite)
    from research.pareto import plot
    from research.pareto.outcome import markdown, outcome
    from research.pareto.run import Pareto, measure
    from research.suites.rows import suite
    from vidspec.bench.loaded import profile_labels

    asked = Pareto(
        contenders=suite(SUITE) if profiles is None else profile_labels(profiles),
        clips=clips or (),
        source=models.source,
        count=count,
        clips_dir=clips_dir,
        timed=timed,
        repeats=repeats,
        threads=models.threads,
        only=only.value if only else None,
        json=json,
        overwrite=overwrite,
    )
    found = outcome(measure(asked, print_note))
    if svg is not None:
        plot.draw(found, svg)
        print_note(f"drew {svg}")
    if form == "json":
        print_json(found.to_dict())
    else:
        print(markdown(found))
        print_facts(found.machine)
    return 0


def _check_picture(file: Path, clips: Sequence[str]) -> None:
    """Check early that the picture can be drawn."""
    from vidspec.files import check_output

    if importlib.util.find_spec("matplotlib") is None:
        raise UsageError("--svg: matplotlib is not installed", hint="pip install matplotlib")
    if file.suffix != ".svg":
        raise UsageError(f"--svg {file}: the name must end in .svg")
    check_output(file, clips, "--svg", PICTURE)


def main(args: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    return run(command, "pareto", args)


if __name__ == "__main__":
    sys.exit(main())
