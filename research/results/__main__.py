"""``python -m research.results RESULTS.json``: the statistics of a finished bench, as tables and as LaTeX."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from research.commands import run
from research.judging import accepted_shares
from research.results.latex import LATEX, latex_table
from research.results.rows import markdown, read_bench, study
from vidspec.files import check_output, write_whole


def command(
    results: Annotated[Path, typer.Argument(metavar="RESULTS.json", help="Results of `vidspec bench --json`.")],
    latex: Annotated[
        Path | None, typer.Option("--latex", metavar="FILE", help="Write the main columns as a LaTeX tabular.")
    ] = None,
) -> int:
    """Rank the methods of a finished bench, mark speed-ups within noise, and compare them with the speed model."""
    if latex is not None:
        check_output(latex, [str(results)], "--latex", LATEX)
    found, records, content = read_bench(results)
    rows = study(found, records, accepted_shares(content["records"]))
    print(markdown(rows))
    if latex is not None:
        write_whole(latex, latex_table(rows, str(results), content.get("left_out", {})))
    return 0


def main(args: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    return run(command, "results", args)


if __name__ == "__main__":
    sys.exit(main())
