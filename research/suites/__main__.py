"""``python -m research.suites NAME [CLIP...]``: run the rows of a paper's table and compare with its figures."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from research.commands import run
from research.results.latex import LATEX
from research.suites.measured import CSV, csv_text, markdown, paper_tables
from research.suites.measured import latex as latex_of
from research.suites.rows import contenders, papers_of
from vidspec.cli.bench import BenchOptions, ClipArguments, run_bench
from vidspec.cli.options import ModelOptions
from vidspec.errors import UsageError
from vidspec.files import check_output, write_whole


def command(
    suite: Annotated[
        str, typer.Argument(metavar="NAME", help="A paper's table, such as lvspec-1; papers: the rows of all tables.")
    ],
    *,
    clips: ClipArguments = None,
    models: ModelOptions,
    options: BenchOptions,
    latex: Annotated[
        Path | None, typer.Option("--latex", metavar="FILE", help="Write the paper's table as LaTeX, for booktabs.")
    ] = None,
    csv: Annotated[Path | None, typer.Option("--csv", metavar="FILE", help="Write the paper's table as CSV.")] = None,
) -> int:
    """Run the rows of a paper's table as profiles, as `vidspec bench` does; then the table with what the paper prints.

    Every record goes to --json at once, and a run that was stopped goes on where it was when the same command is given
    again.
    """
    from research.peers.bench import measure

    names, of_papers = contenders(suite), papers_of(suite)
    for option, file, kind in (("--latex", latex, LATEX), ("--csv", csv, CSV)):
        if file is not None:
            if not of_papers:
                raise UsageError(f"{option}: {suite} is no paper's table")
            check_output(file, map(str, clips or ()), option, kind)
    outcome = run_bench(names, clips or (), models, options, measure)
    tables = paper_tables(of_papers, outcome.studied, names[0])
    for one in tables:
        print(f"\n{markdown(one)}")
    if latex is not None:
        write_whole(latex, "\n".join(map(latex_of, tables)))
    if csv is not None:
        write_whole(csv, csv_text(tables))
    return 0


def main(args: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    return run(command, "suites", args)


if __name__ == "__main__":
    sys.exit(main())
