"""Files that are written: whole or not at all, as UTF-8 whatever the locale, and where that can be found out before."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from vidspec.errors import OutputError, UsageError

__all__ = ["check_output", "encoded", "write_whole"]


def encoded(line: str) -> bytes:
    """UTF-8 of ``line``, whatever the locale; of a path that is not UTF-8 the foreign bytes become ``\\udcXX``.

    JSON escapes them the same way, so a JSON line stays valid.
    """
    return line.encode("utf-8", "backslashreplace")


def write_whole(path: Path, content: str | bytes) -> None:
    """Write a file at once: it is replaced whole or not at all.

    Raises:
        OutputError: it cannot be written.
    """
    part = path.with_name(f".{path.name}.part")
    try:
        with part.open("wb") as file:
            file.write(encoded(content) if isinstance(content, str) else content)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    except OSError as error:
        raise OutputError(f"{path}: cannot be written: {error.strerror or error}") from None


def check_output(path: Path, inputs: Iterable[str], option: str) -> None:
    """Find out before any model is loaded that ``path`` cannot be written or is one of the clips.

    Raises:
        UsageError: naming ``option``.
    """
    if path.is_dir():
        raise UsageError(f"{option} {path}: is a folder")
    if not path.parent.is_dir():
        raise UsageError(f"{option} {path}: there is no folder {path.parent}")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise UsageError(f"{option} {path}: no permission to write there")
    if any(os.path.realpath(path) == os.path.realpath(clip) for clip in inputs):
        raise UsageError(f"{option} {path}: is one of the clips")
