"""SVG plots of a bench, drawn by matplotlib: speed-up bars, M against alpha, a histogram of accepted lengths.

``python -m research.plots RESULTS.json --out DIR`` draws those of a finished bench.
"""

from __future__ import annotations

import importlib.util
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from research.commands import PICTURE, run
from research.results.rows import read_bench
from vidspec.bench.rows import BenchRow
from vidspec.cli.printed import print_note
from vidspec.errors import OutputError, UsageError
from vidspec.events.record import Caption
from vidspec.files import check_output

__all__ = ["check", "check_drawing", "draw", "main"]

_SPEEDUP, _AGAINST_ALPHA, _ACCEPTED = "speedup.svg", "m-against-alpha.svg", "accepted.svg"


def check(folder: Path) -> None:
    """Check early that plots can be written to ``folder``, which is created if absent.

    Raises:
        UsageError: matplotlib is not installed, or a picture of others has one of our names.
    """
    check_drawing("pictures")
    for name in (_SPEEDUP, _AGAINST_ALPHA, _ACCEPTED) if folder.is_dir() else ():
        check_output(folder / name, (), "--out", PICTURE)


def check_drawing(asked: str) -> None:
    """Check early that matplotlib is installed; ``asked`` is the option that needs it.

    Raises:
        UsageError: matplotlib is not installed.
    """
    if importlib.util.find_spec("matplotlib") is None:
        raise UsageError(f"{asked}: matplotlib is not installed", hint="pip install matplotlib")


def draw(rows: Sequence[BenchRow], records: Mapping[str, Mapping[str, Sequence[Caption]]], folder: Path) -> list[Path]:
    """Write ``speedup.svg``, ``m-against-alpha.svg`` and ``accepted.svg`` into ``folder``; returns those written.

    The latter two are left out if nothing was drafted. M is ``tokens_per_target_pass``.

    Raises:
        UsageError: matplotlib is not installed.
        OutputError: the folder cannot be written.
    """
    check_drawing("--plots")
    from matplotlib.figure import Figure

    drafting = [row for row in rows if row.kept is not None and row.tokens_per_target_pass is not None]
    lengths = {name: _lengths(by_clip) for name, by_clip in records.items()}
    pictures: dict[str, Any] = {_SPEEDUP: _speedups(Figure, rows)}
    if drafting:
        pictures[_AGAINST_ALPHA] = _against_alpha(Figure, drafting)
    if any(lengths.values()):
        pictures[_ACCEPTED] = _histogram(Figure, {name: one for name, one in lengths.items() if one})
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, figure in pictures.items():
            figure.savefig(folder / name, format="svg", bbox_inches="tight", metadata={"Creator": "vidspec"})
    except OSError as error:
        raise OutputError(f"{folder}: cannot be written: {error.strerror}") from error
    return [folder / name for name in pictures]


def _speedups(figure: Any, rows: Sequence[BenchRow]) -> Any:
    """Bars of the median with least and greatest over clips, for decoding and end to end."""
    picture = figure(figsize=(7, 0.45 * len(rows) + 1.2))
    axes = picture.add_subplot()
    for offset, (name, color) in enumerate((("decode", "#3b6fb6"), ("end_to_end", "#d98b3a"))):
        values = [getattr(row, name) for row in rows]
        places = [index + 0.4 * (offset - 0.5) for index in range(len(rows))]
        medians = [value[0] for value in values]
        spread = [[value[0] - value[1] for value in values], [value[2] - value[0] for value in values]]
        axes.barh(places, medians, 0.38, xerr=spread, color=color, label=name.replace("_", " "), ecolor="#555555")
    axes.axvline(1, color="#555555", linewidth=0.8)
    axes.set_yticks(range(len(rows)), [row.name for row in rows])
    axes.invert_yaxis()
    axes.set_xlabel(f"speed-up over {rows[0].name}: median, least and greatest over clips")
    axes.legend()
    return picture


def _against_alpha(figure: Any, rows: Sequence[BenchRow]) -> Any:
    picture = figure(figsize=(7, 4.5))
    axes = picture.add_subplot()
    for row in rows:
        alpha = 1 - (row.kept or 0.0)
        axes.plot([alpha], [row.tokens_per_target_pass], "o")
        axes.annotate(
            row.name, (alpha, row.tokens_per_target_pass), xytext=(4, 3), textcoords="offset points", fontsize=8
        )
    axes.set_xlabel("alpha: share of visual tokens the draft does not see")
    axes.set_ylabel("M: tokens per target pass")
    return picture


def _histogram(figure: Any, lengths: Mapping[str, Counter[int]]) -> Any:
    picture = figure(figsize=(7, 4.5))
    axes = picture.add_subplot()
    longest = max(max(one) for one in lengths.values())
    for name, counts in lengths.items():
        total = sum(counts.values())
        axes.step(
            range(longest + 1), [counts[length] / total for length in range(longest + 1)], where="mid", label=name
        )
    axes.set_xlabel("draft tokens accepted in one verification")
    axes.set_ylabel("share of verifications")
    axes.legend(fontsize=8)
    return picture


def _lengths(by_clip: Mapping[str, Sequence[Caption]]) -> Counter[int]:
    return Counter(
        length
        for runs in by_clip.values()
        for run in runs
        if run.counters.get("drafted")
        for length in run.counters["accepted_lengths"]
    )


def command(
    results: Annotated[Path, typer.Argument(metavar="RESULTS.json", help="What `vidspec bench --json` wrote.")],
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Folder for the pictures.")],
) -> int:
    """Draw a finished bench: speed-ups, tokens per target pass against pruning, accepted lengths."""
    check(out)
    rows, records, _ = read_bench(results)
    for file in draw(rows, records, out):
        print_note(f"drew {file}")
    return 0


def main(args: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    return run(command, "plots", args)


if __name__ == "__main__":
    sys.exit(main())
