"""Where in the video and its frames the tokens lie that profiles keep: ``python -m research.position_bias CLIP...``.

The measure itself is in :mod:`vidspec.pruning.position_bias`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from statistics import fmean
from typing import Annotated, Any

import torch
import typer

from research.commands import run
from vidspec.bench.loaded import Loaded, names_of
from vidspec.captioner import Captioner
from vidspec.cli.bench import Clips, Form
from vidspec.cli.options import ModelOptions
from vidspec.cli.printed import note, print_json
from vidspec.embedded.samples import shipped
from vidspec.errors import UsageError
from vidspec.events import markdown
from vidspec.events.events import Prefilled
from vidspec.pruning import position_bias as measuring
from vidspec.pruning.position_bias import PositionBias, position_bias

__all__ = ["biases", "block", "main", "mean_bias", "table"]

DEFAULT = "sd-rand-chain,sd-uniform-chain,sd-attention-chain"


def biases(
    contenders: Mapping[str, object], clips: Sequence[Path], progress: Callable[[str], None] = lambda _: None
) -> dict[str, PositionBias]:
    """The mean over ``clips`` of the bias of each contender that prunes, in their order; nothing is decoded."""
    found: dict[str, PositionBias] = {}
    for name, contender in contenders.items():
        if not isinstance(contender, Captioner) or contender.profile.prune.method == "none":
            continue
        progress(f"position bias {name}")
        measured = [one for clip in clips if (one := _of_clip(contender, clip)) is not None]
        if measured:
            found[name] = mean_bias(measured)
    return found


def _of_clip(captioner: Captioner, clip: Path) -> PositionBias | None:
    for event in captioner.stream(clip):
        if isinstance(event, Prefilled):
            return position_bias(event.grid, event.cells, event.kept, views=event.views)
    raise AssertionError("a stream has a prefill")


def mean_bias(measured: Sequence[PositionBias]) -> PositionBias:
    """The mean over clips, each counting the same; ``peak_rows`` is the largest of all.

    Raises:
        ValueError: there are no clips, or their bins differ in number.
    """
    if not measured:
        raise ValueError("no clip was measured")
    pairs: dict[str, measuring.Pair] = {}
    for field in fields(PositionBias):
        of = [getattr(one, field.name) for one in measured]
        if isinstance(of[0], measuring.Pair):
            pairs[field.name] = measuring.Pair(fmean(pair.kept for pair in of), fmean(pair.all for pair in of))
    return PositionBias(
        bins=tuple(fmean(column) for column in zip(*(one.bins for one in measured), strict=True)),
        peak_rows=max(one.peak_rows for one in measured),
        **pairs,
    )


def block(found: Mapping[str, PositionBias]) -> dict[str, dict[str, Any]]:
    """As it stands in the JSON file: shares within [0, 1] by profile; ``all`` is the share of all visual tokens."""
    return {name: asdict(bias) for name, bias in found.items()}


def table(found: Mapping[str, PositionBias]) -> str:
    """A Markdown table; each share of the kept tokens with that of all visual tokens behind it."""
    stretches = len(next(iter(found.values())).bins) if found else 0
    header = "method | first frames | last frames | upper and lower border | most in one frame | left and right border"
    lines = [
        (
            name,
            *map(_pair, (bias.first, bias.last, bias.rows)),
            f"{bias.peak_rows:.0%}",
            _pair(bias.columns),
            " ".join(f"{100 * share:.0f}" for share in bias.bins),
        )
        for name, bias in found.items()
    ]
    return markdown.table([*header.split(" | "), f"kept tokens by {stretches} equal stretches of the video, %"], lines)


def _pair(pair: measuring.Pair) -> str:
    return f"{pair.kept:.1%} ({pair.all:.1%})"


def command(
    *,
    clips: Clips = None,
    profiles: Annotated[
        str,
        typer.Option("--profiles", help="Names or files as of `vidspec bench`; those that prune nothing are left out."),
    ] = DEFAULT,
    models: ModelOptions,
    form: Annotated[Form, typer.Option("--format", help="json: shares by profile.")] = "markdown",
) -> int:
    """Say where in the video and its frames the visual tokens lie that each profile keeps; a Markdown table on stdout.

    Prompts are read and pruned, and nothing is decoded.
    """
    if models.threads:
        torch.set_num_threads(models.threads)
    named = list(clips or ()) or shipped()
    if missing := [clip for clip in named if not clip.is_file()]:
        raise UsageError(f"{missing[0]}: there is no such file")
    loaded = Loaded(models.source)
    try:
        found = biases({name: loaded.captioner(name) for name in names_of(profiles)}, named, note)
    finally:
        loaded.close()
    if not found:
        raise UsageError(f"--profiles {profiles}: none of them prunes", hint=f"such as --profiles {DEFAULT}")
    if form == "json":
        print_json(block(found))
    else:
        print(table(found))
    return 0


def main(args: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    return run(command, "position_bias", args)


if __name__ == "__main__":
    sys.exit(main())
