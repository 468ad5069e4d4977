"""Position bias of profiles' kept visual tokens: ``python -m research.position_bias CLIP...``.

The measure itself is in :mod:`research.position_shares`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import Annotated, Any

import torch
import typer

from research.commands import TableFormat, run
from research.position_shares import PositionBias, at_borders, frame_shares, position_bias
from research.position_shares import SharePair as Shares
from vidspec.bench import tables
from vidspec.bench.loaded import LoadedModels, profile_labels
from vidspec.captioner import Captioner
from vidspec.cli.bench import ClipArguments
from vidspec.cli.options import ModelOptions
from vidspec.cli.printed import print_json, print_note
from vidspec.embedded.samples import shipped
from vidspec.errors import UsageError
from vidspec.events.events import Prefilled

__all__ = ["ClipBias", "biases", "block", "clip_bias", "main", "mean_bias", "over_bins", "table"]


@dataclass(frozen=True)
class ClipBias(PositionBias):
    """Position bias of a clip's kept tokens, also by stretches of the video.

    Attributes:
        bins: shares of the kept tokens in equal stretches of the video, in the order of the prompt; they add up to 1.
        peak_rows: the largest share of ``rows`` among the kept tokens of a single frame (HIPPO Fig. 2: 57.8%).
    """

    bins: tuple[float, ...]
    peak_rows: float


DEFAULT = "sd-rand-chain,sd-uniform-chain,sd-attention-chain"


def biases(
    contenders: Mapping[str, object], clips: Sequence[Path], progress: Callable[[str], None] = lambda _: None
) -> dict[str, ClipBias]:
    """Return the mean bias over ``clips`` of each contender that prunes, in their order; nothing is decoded."""
    found: dict[str, ClipBias] = {}
    for name, contender in contenders.items():
        if not isinstance(contender, Captioner) or contender.client.profile.prune.method == "none":
            continue
        progress(f"position bias {name}")
        measured = [one for clip in clips if (one := _of_clip(contender, clip)) is not None]
        if measured:
            found[name] = mean_bias(measured)
    return found


def _of_clip(captioner: Captioner, clip: Path) -> ClipBias | None:
    for event in captioner.stream(clip):
        if isinstance(event, Prefilled):
            return clip_bias(event.grid, event.cells, event.kept, views=event.views)
    raise AssertionError("a stream has a prefill")


def clip_bias(
    grid: tuple[int, int, int],
    cells: Sequence[int],
    kept: Sequence[int],
    bins: int = 10,
    views: Sequence[tuple[int, int]] = (),
) -> ClipBias | None:
    """Measure bias as in ParallelVLM Fig. 4 and HIPPO Fig. 2 and 8.

    Args:
        grid, cells, kept, views: see :func:`~vidspec.pruning.position_bias.position_bias`.
        bins: number of stretches of the video.
    """
    bias = position_bias(grid, cells, kept, views)
    if bias is None:
        return None
    chosen = [cells[index] for index in kept if cells[index] >= 0]
    by_frame: dict[int, list[int]] = {}
    for cell in chosen:
        by_frame.setdefault(cell // (grid[1] * grid[2]), []).append(cell)
    return ClipBias(
        bias.first,
        bias.last,
        bias.rows,
        bias.columns,
        over_bins(frame_shares(grid, chosen), bins),
        max(at_borders(grid, views, of, axis=0) for of in by_frame.values()),
    )


def over_bins(shares: Sequence[float], bins: int) -> tuple[float, ...]:
    """Convert shares of frames to shares of ``bins`` equal stretches of the video; their sum is unchanged.

    A frame f of F covers [f/F, (f+1)/F) of the video; a frame across a border of stretches is divided there.
    """
    borders = [number * len(shares) for number in range(bins + 1)]  # in units of 1 / (bins * F)
    found = []
    for low, high in pairwise(borders):
        covered = ((max(low, f * bins), min(high, (f + 1) * bins)) for f in range(len(shares)))
        found.append(
            sum(share * max(0, end - start) / bins for share, (start, end) in zip(shares, covered, strict=True))
        )
    return tuple(found)


def mean_bias(measured: Sequence[ClipBias]) -> ClipBias:
    """Return the unweighted mean over clips; ``peak_rows`` is the largest of all.

    Raises:
        ValueError: there are no clips, or their bins differ in number.
    """
    if not measured:
        raise ValueError("no clip was measured")
    pairs: dict[str, Shares] = {}
    for field in fields(ClipBias):
        of = [getattr(one, field.name) for one in measured]
        if isinstance(of[0], Shares):
            pairs[field.name] = Shares(fmean(pair.kept for pair in of), fmean(pair.all for pair in of))
    return ClipBias(
        bins=tuple(fmean(column) for column in zip(*(one.bins for one in measured), strict=True)),
        peak_rows=max(one.peak_rows for one in measured),
        **pairs,
    )


def block(found: Mapping[str, ClipBias]) -> dict[str, dict[str, Any]]:
    """Return the JSON block: shares within [0, 1] by profile; ``all`` is the share of all visual tokens."""
    return {name: asdict(bias) for name, bias in found.items()}


def table(found: Mapping[str, ClipBias]) -> str:
    """Return a Markdown table: each share of the kept tokens, followed by that of all visual tokens."""
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
    return tables.table([*header.split(" | "), f"kept tokens by {stretches} equal stretches of the video, %"], lines)


def _pair(pair: Shares) -> str:
    return f"{pair.kept:.1%} ({pair.all:.1%})"


def command(
    *,
    clips: ClipArguments = None,
    profiles: Annotated[
        str,
        typer.Option("--profiles", help="Names or files as of `vidspec bench`; those that prune nothing are left out."),
    ] = DEFAULT,
    models: ModelOptions,
    form: Annotated[TableFormat, typer.Option("--format", help="json: shares by profile.")] = "markdown",
) -> int:
    """Say where in the video and its frames the visual tokens lie that each profile keeps; a Markdown table on stdout.

    Prompts are read and pruned, and nothing is decoded.
    """
    if models.threads:
        torch.set_num_threads(models.threads)
    named = list(clips or ()) or shipped()
    if missing := [clip for clip in named if not clip.is_file()]:
        raise UsageError(f"{missing[0]}: there is no such file")
    loaded = LoadedModels(models.source)
    try:
        found = biases({name: loaded.captioner(name) for name in profile_labels(profiles)}, named, print_note)
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
