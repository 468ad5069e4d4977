"""``python -m research.results RESULTS.json``: the statistics of a finished bench, as tables, LaTeX or a page."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from research.commands import run
from research.judging import accepted_shares
from research.results.latex import LATEX, latex_table
from research.results.page import write_page
from research.results.rows import markdown, read_bench, study
from vidspec.display.pages.page import check_page
from vidspec.files import check_distinct, check_output, write_whole

__all__ = ["main"]


def command(
    results: Annotated[Path, typer.Argument(metavar="RESULTS.json", help="Results of `vidspec bench --json`.")],
    latex: Annotated[
        Path | None, typer.Option("--latex", metavar="FILE", help="Write the main columns as a LaTeX tabular.")
    ] = None,
    report: Annotated[
        Path | None,
        typer.Option("--report", metavar="FILE.html", help="Write a page with a sortable table and error bars."),
    ] = None,
) -> int:
    """Rank the methods of a finished bench, mark speed-ups within noise, and compare them with the speed model."""
    if latex is not None:
        check_output(latex, [str(results)], "--latex", LATEX)
    if report is not None:
        check_page(report, [str(results)])
    check_distinct((("--latex", latex), ("--report", report)))
    found, records, content = read_bench(results)
    rows = study(found, records, accepted_shares(content["records"]))
    print(markdown(rows))
    left = content.get("left_out", {})
    if latex is not None:
        write_whole(latex, latex_table(rows, str(results), left))
    if report is not None:
        demo = any(one.demo for by_clip in records.values() for runs in by_clip.values() for one in runs)
        settings = {
            key: value for key, value in content.get("settings", {}).items() if isinstance(value, str | int | float)
        }
        write_page(report, rows, str(results), settings | content.get("machine", {}), demo=demo, left=left)
    return 0


def main(args: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    return run(command, "results", args)


if __name__ == "__main__":
    sys.exit(main())
