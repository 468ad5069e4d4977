"""The clips that come with the package, and copies of them. More are drawn by research, not here."""

from __future__ import annotations

import shutil
from pathlib import Path

from vidspec.errors import OutputError

__all__ = ["CLIPS", "TRUTH", "copy", "shipped"]

#: The file beside clips that says what they show.
TRUTH = "truth.json"
CLIPS = Path(__file__).resolve().parent / "clips"


def shipped() -> list[Path]:
    """The clips that come with the package, sorted by name."""
    return sorted(CLIPS.glob("*.mp4"))


def copy(out: Path) -> list[Path]:
    """Copy the shipped clips and their ``truth.json`` into the folder ``out``, made if absent.

    Returns:
        the copies' paths.

    Raises:
        OutputError: the folder cannot be written, or holds one of these files already.
    """
    files = [*shipped(), CLIPS / TRUTH]  # the truth last: it stands for a complete set
    taken = next((out / file.name for file in files if (out / file.name).exists()), None)
    if taken is not None:
        raise OutputError(f"{taken}: exists already, and is left as it is", hint="name another folder")
    try:
        out.mkdir(parents=True, exist_ok=True)
        for file in files:
            shutil.copyfile(file, out / file.name)
    except OSError as error:
        raise OutputError(f"{out}: cannot be written: {error.strerror or error}") from None
    return [out / file.name for file in files[:-1]]
