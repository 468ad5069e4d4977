"""The contract of what chooses the draft window while a text is being written."""

from __future__ import annotations

from typing import Protocol

__all__ = ["WindowSize"]


class WindowSize(Protocol):
    """Says how many tokens the draft proposes per round; hears of every measured forward pass."""

    @property
    def gamma(self) -> int:
        """The window from the next round on, at least 1."""
        ...

    def drafted(self, seconds: float) -> None:
        """A draft forward pass on one token took ``seconds``."""
        ...

    def verified(self, rows: int, seconds: float) -> None:
        """A target forward pass on ``rows`` tokens took ``seconds``."""
        ...
