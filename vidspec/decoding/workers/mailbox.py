"""The mailbox of one clip: another thread puts the draft's answers, the loop takes them."""

from __future__ import annotations

from collections import deque
from typing import Any, TypeAlias

from vidspec.decoding.protocol import WorkerResult
from vidspec.decoding.workers.messages import DraftSpans
from vidspec.events.wake import WakeEvent

__all__ = ["ClipMailbox", "DraftAnswer"]

#: What a draft's process says of a clip: answers, and in the end its account.
DraftAnswer: TypeAlias = WorkerResult | DraftSpans


class ClipMailbox:
    """Messages in the order of their arrival; each sets ``wake``."""

    def __init__(self) -> None:
        self.wake = WakeEvent()
        self._arrived: deque[DraftAnswer] = deque()

    def put(self, message: DraftAnswer) -> None:
        """From any thread."""
        self._arrived.append(message)
        self.wake.set()

    def take(self) -> list[Any]:
        """All messages that have arrived; the account is the last, when the clip is over."""
        return [self._arrived.popleft() for _ in range(len(self._arrived))]
