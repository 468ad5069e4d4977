"""``python -m research.suites NAME [CLIP...]``: run the rows of a paper's table and compare with its figures."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from research.commands import run
from research.suites.measured import markdown
from research.suites.rows import contenders, papers_of
from vidspec.cli.bench import BenchOptions, ClipArguments, run_bench
from vidspec.cli.options import ModelOptions


def command(
    suite: Annotated[
        str, typer.Argument(metavar="NAME", help="A paper's table, such as lvspec-1; papers: the rows of all tables.")
    ],
    *,
    clips: ClipArguments = None,
    models: ModelOptions,
    options: BenchOptions,
) -> int:
    """Run the rows of a paper's table as profiles, as `vidspec bench` does; then the table with what the paper prints.

    Every record goes to --json at once, and a run that was stopped goes on where it was when the same command is given
    again.
    """
    from research.peers.bench import measure

    names = contenders(suite)
    outcome = run_bench(names, clips or (), models, options, measure)
    if of_papers := papers_of(suite):
        print(f"\n{markdown(of_papers, outcome.studied, names[0])}")
    return 0


def main(args: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    return run(command, "suites", args)


if __name__ == "__main__":
    sys.exit(main())
