"""Wakes a loop of one thread from another; carries no message."""

from __future__ import annotations

import threading

__all__ = ["WakeEvent"]


class WakeEvent:
    """Wakes a loop that waits; may be set from any thread.

    Attributes:
        relay: another event to set too, for a loop that may wait on that one instead.
    """

    def __init__(self) -> None:
        self._event = threading.Event()
        self.relay: WakeEvent | None = None

    def set(self) -> None:
        """Wake the loop."""
        self._event.set()
        if (relay := self.relay) is not None:
            relay.set()

    def wait(self, timeout: float | None) -> bool:
        """Wait until the event is set, at most ``timeout`` seconds, and clear it; return True if it was set."""
        was_set = self._event.wait(timeout)
        self._event.clear()
        return was_set
