"""Wakes a loop of one thread from another; carries no message itself."""

from __future__ import annotations

import threading

__all__ = ["Bell"]


class Bell:
    """Wakes a loop that waits; may be rung from any thread."""

    def __init__(self) -> None:
        self._rung = threading.Event()

    def ring(self) -> None:
        """Something has arrived."""
        self._rung.set()

    def wait(self, timeout: float | None) -> bool:
        """Wait until it is rung, or was since the last wait; at most ``timeout`` seconds. Whether it was."""
        rung = self._rung.wait(timeout)
        self._rung.clear()
        return rung
