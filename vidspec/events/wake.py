"""Wakes a loop of one thread from another; carries no message itself."""

from __future__ import annotations

import threading

__all__ = ["WakeEvent"]


class WakeEvent:
    """Wakes a loop that waits; may be set from any thread.

    Attributes:
        relay: is set too; of a loop that may wait instead of this one.
    """

    def __init__(self) -> None:
        self._event = threading.Event()
        self.relay: WakeEvent | None = None

    def set(self) -> None:
        """Something has arrived."""
        self._event.set()
        if (relay := self.relay) is not None:
            relay.set()

    def wait(self, timeout: float | None) -> bool:
        """Wait until it is set, or was since the last wait; at most ``timeout`` seconds. Whether it was."""
        was_set = self._event.wait(timeout)
        self._event.clear()
        return was_set
