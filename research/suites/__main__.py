"""``python -m research.suites NAME [CLIP...]``: runs the rows of a paper's table, its figures beside ours."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from research import plots as drawing
from research.commands import run
from research.suites.measured import markdown
from research.suites.rows import contenders, papers_of
from vidspec.bench.loaded import Source
from vidspec.cli import bench
from vidspec.cli.printed import say

__all__ = ["main"]


def command(
    context: typer.Context,
    suite: Annotated[
        str, typer.Argument(metavar="NAME", help="A paper's table, such as lvspec-1; papers: the rows of all tables.")
    ],
    clips: bench.Clips = None,
    pair: bench.Pair = bench.PairName.embedded,
    repeats: bench.Repeats = 3,
    target: bench.Target = None,
    draft: bench.Draft = None,
    device: bench.Device = "auto",
    dtype: bench.Dtype = "auto",
    threads: bench.Threads = None,
    no_peers: bench.NoPeers = False,
    peer: bench.Peers = None,
    json: bench.Json = None,
    overwrite: bench.Overwrite = False,
    plots: Annotated[
        Path | None, typer.Option("--plots", metavar="DIR", help="Draw SVG pictures; needs matplotlib.")
    ] = None,
    report: bench.Report = None,
    turn: bench.Turns = None,
) -> int:
    """Run the rows of a paper's table as profiles, as `vidspec bench` does; then the table with what the paper prints.

    Every record goes to --json at once, and a run that was stopped goes on where it was when the same command is given
    again.
    """
    names = contenders(suite)
    if plots is not None:
        drawing.check(plots)
    source = Source(pair.value, target, draft, device, dtype)
    outcome = bench.run_bench(
        context, names, clips or (), source, repeats, threads, no_peers, peer, json, overwrite, report, turn
    )
    if of_papers := papers_of(suite):
        print(f"\n{markdown(of_papers, outcome.rows, names[0])}")
    if plots is not None:
        for file in drawing.draw(outcome.rows, outcome.records, plots):
            say(f"drew {file}")
    return 0


def main(args: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    return run(command, "suites", args)


if __name__ == "__main__":
    sys.exit(main())
