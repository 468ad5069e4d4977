"""Files in the user's cache folder: what was measured or computed once, and can be again."""

from __future__ import annotations

import os
import tempfile
from contextlib import suppress
from pathlib import Path

__all__ = ["KEPT", "cache_file", "write_cached"]

#: Files of one kind that are kept.
KEPT = 8


def cache_file(kind: str, name: str) -> Path:
    """Return the file of a kind in the user's cache folder; it need not exist."""
    import platformdirs

    return Path(platformdirs.user_cache_dir("vidspec"), kind, name)


def write_cached(file: Path, content: bytes) -> None:
    """Write a file of the cache whole, and remove the oldest of its kind; many processes may do so at once.

    A folder that cannot be written is no error.
    """
    with suppress(OSError):
        file.parent.mkdir(parents=True, exist_ok=True)
        others = sorted((one for one in file.parent.iterdir() if one != file), key=lambda one: one.stat().st_mtime)
        for old in others[: 1 - KEPT]:
            old.unlink()
        number, part = tempfile.mkstemp(dir=file.parent)
        with os.fdopen(number, "wb") as written:
            written.write(content)
        os.replace(part, file)
