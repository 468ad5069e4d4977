"""The package's sample clips, and copies of them. More are drawn by ``research.world``."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from vidspec.errors import OutputError
from vidspec.files import open_own

__all__ = ["CLIPS", "TRUTH", "copy", "shipped"]

#: The file next to clips that describes their content.
TRUTH = "truth.json"
CLIPS = Path(__file__).resolve().parent / "clips"


def shipped() -> list[Path]:
    """Return the package's sample clips, sorted by name."""
    return sorted(CLIPS.glob("*.mp4"))


def copy(out: Path) -> list[Path]:
    """Copy the sample clips and their ``truth.json`` into the folder ``out``, created if absent.

    Returns:
        the copies' paths.

    Raises:
        OutputError: the folder cannot be written, or holds one of these files already.
    """
    files = [*shipped(), CLIPS / TRUTH]  # truth.json last: it marks a complete set
    taken = next((out / file.name for file in files if os.path.lexists(out / file.name)), None)
    if taken is not None:
        raise OutputError(f"{taken}: exists already, and is left as it is", hint="name another folder")
    try:
        out.mkdir(parents=True, exist_ok=True)
        for file in files:
            with file.open("rb") as source, open_own(out / file.name, "xb") as copied:
                shutil.copyfileobj(source, copied)
    except OSError as error:
        raise OutputError(f"{out}: cannot be written: {error.strerror or error}") from None
    return [out / file.name for file in files[:-1]]
