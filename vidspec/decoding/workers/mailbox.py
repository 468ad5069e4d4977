"""The mailbox of one clip: another thread adds the draft's answers, the loop takes them."""

from __future__ import annotations

from collections import deque
from typing import Any, TypeAlias

from vidspec.decoding.protocol import WorkerResult
from vidspec.decoding.workers.messages import DraftSpans
from vidspec.events.wake import WakeEvent

__all__ = ["ClipMailbox", "DraftAnswer"]

#: Messages of a draft process about a clip: results, and finally its spans.
DraftAnswer: TypeAlias = WorkerResult | DraftSpans


class ClipMailbox:
    """Messages in order of arrival; each sets ``wake``."""

    def __init__(self) -> None:
        self.wake = WakeEvent()
        self._arrived: deque[DraftAnswer] = deque()

    def put(self, message: DraftAnswer) -> None:
        """Add a message; callable from any thread."""
        self._arrived.append(message)
        self.wake.set()

    def take(self) -> list[Any]:
        """Return all messages that have arrived; ``DraftSpans`` is the last, when the clip is closed."""
        return [self._arrived.popleft() for _ in range(len(self._arrived))]
