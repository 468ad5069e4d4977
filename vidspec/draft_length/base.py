"""The contract of a draft window that adapts while a text is written."""

from __future__ import annotations

from typing import Protocol

__all__ = ["WindowSize"]


class WindowSize(Protocol):
    """The number of tokens the draft proposes per round; it is given the time of every forward pass."""

    @property
    def gamma(self) -> int:
        """The window from the next round on, at least 1."""
        ...

    def add_draft_pass(self, seconds: float) -> None:
        """A draft forward pass on one token took ``seconds``."""
        ...

    def add_target_pass(self, rows: int, seconds: float) -> None:
        """A target forward pass on ``rows`` tokens took ``seconds``."""
        ...
