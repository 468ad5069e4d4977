"""``python -m research.draw``: draw clips of the built-in models' world, with their ground truth."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from research.commands import run
from research.world.samples import draw
from vidspec.errors import OutputError, UsageError


def command(
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder for the clips and truth.json.")],
    count: Annotated[int, typer.Option(min=1, help="Number of clips.")] = 4,
    seed: Annotated[int, typer.Option(min=0, help="The same seed draws the same clips.")] = 0,
) -> None:
    """Draw clips (mp4) with a truth.json, and print their paths."""
    if out.exists() and not out.is_dir():
        raise UsageError(f"--out {out}: is not a folder")
    try:
        drawn = draw(out, count, seed)
    except OSError as error:
        raise OutputError(f"{out}: cannot be written: {error.strerror or error}") from None
    for path in drawn:
        print(path)


def main(args: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    return run(command, "draw", args)


if __name__ == "__main__":
    sys.exit(main())
