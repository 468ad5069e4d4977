"""``vidspec sample``: draws clips of the world that the built-in models know, with their ground truth."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from vidspec.errors import OutputError, UsageError

__all__ = ["sample"]


def sample(
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder for the clips and truth.json.")],
    count: Annotated[int, typer.Option(min=1, help="Number of clips.")] = 4,
    seed: Annotated[int, typer.Option(min=0, help="The same seed draws the same clips.")] = 0,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of every error.")] = False,
) -> None:
    """Draw sample clips (mp4) with a truth.json, and print their paths."""
    from vidspec.embedded.samples import draw

    if out.exists() and not out.is_dir():
        raise UsageError(f"--out {out}: is not a folder")
    try:
        drawn = draw(out, count, seed)
    except OSError as error:
        raise OutputError(f"{out}: cannot be written: {error.strerror or error}") from None
    for path in drawn:
        print(path)
