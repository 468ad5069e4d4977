"""The built-in models, trained on clips of a drawn world only. Importing this package imports nothing else."""

from __future__ import annotations

from pathlib import Path

__all__ = ["ships"]


def ships(source: str) -> bool:
    """Return True if the model ``source`` comes with vidspec."""
    return Path(__file__).resolve().parent in Path(source).expanduser().resolve().parents
