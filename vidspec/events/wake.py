"""Wakes a loop of one thread from another; carries no message itself."""

from __future__ import annotations

import threading

__all__ = ["WakeEvent"]


class WakeEvent:
    """Wakes a loop that waits; may be set from any thread."""

    def __init__(self) -> None:
        self._event = threading.Event()

    def set(self) -> None:
        """Something has arrived."""
        self._event.set()

    def wait(self, timeout: float | None) -> bool:
        """Wait until it is set, or was since the last wait; at most ``timeout`` seconds. Whether it was."""
        was_set = self._event.wait(timeout)
        self._event.clear()
        return was_set
