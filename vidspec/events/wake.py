"""Wakes a loop of one thread from another; carries no message."""

from __future__ import annotations

from queue import Empty, SimpleQueue


class WakeEvent:
    """Wakes a loop that waits; may be set from any thread, and by a finaliser in the middle of any other call."""

    def __init__(self) -> None:
        self._tokens: SimpleQueue[None] = SimpleQueue()  # re-entrant, as ``threading.Event`` is not

    def set(self) -> None:
        """Wake the loop."""
        if self._tokens.empty():
            self._tokens.put(None)

    def wait(self, timeout: float | None) -> bool:
        """Wait until the event is set, at most ``timeout`` seconds, and clear it; return True if it was set."""
        try:
            self._tokens.get(timeout=timeout)
        except Empty:
            return False
        return True
