"""The contract of a draft window that adapts during decoding."""

from __future__ import annotations

from typing import Protocol

__all__ = ["WindowSize"]


class WindowSize(Protocol):
    """Draft tokens per round, updated with the time of every forward pass."""

    @property
    def gamma(self) -> int:
        """The window from the next round on, at least 1."""
        ...

    def add_draft_pass(self, seconds: float) -> None:
        """Add the time of a draft pass over one token."""
        ...

    def add_target_pass(self, rows: int, seconds: float) -> None:
        """Add the time of a target pass over ``rows`` tokens."""
        ...
