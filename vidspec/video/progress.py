"""Counts the packets and frames that this process has read, so that one that watches it can tell slow from hanging."""

from __future__ import annotations

__all__ = ["advance", "steps"]

_steps = 0


def advance() -> None:
    """Note that something was read or decoded; may be called by any thread."""
    global _steps
    _steps += 1  # of two threads one may be lost: that it changes is what counts


def steps() -> int:
    """Return a number that changes while reading goes on."""
    return _steps
