"""``vidspec sample``: copies the sample clips and their ground truth."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from vidspec.cli.options import DebugOption
from vidspec.errors import UsageError


def sample(
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder to copy the clips and truth.json to.")],
    debug: DebugOption = False,
) -> None:
    """Copy the four sample clips (mp4) with their truth.json, and print their paths."""
    from vidspec.embedded.samples import copy

    if out.exists() and not out.is_dir():
        raise UsageError(f"--out {out}: is not a folder")
    for path in copy(out):
        print(path)
