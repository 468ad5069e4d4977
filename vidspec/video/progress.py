"""Counts the packets and frames that this process has read, so that a watching process can tell slow from hanging."""

from __future__ import annotations

_steps = 0


def advance() -> None:
    """Count one step of reading or decoding; may be called by any thread."""
    global _steps
    _steps += 1  # a concurrent step may be lost: only the change counts


def steps() -> int:
    """Return a number that changes while reading goes on."""
    return _steps
