"""Where the draft's answers on one clip arrive, on another thread, for the loop to take them."""

from __future__ import annotations

from collections import deque
from typing import Any, TypeAlias

from vidspec.decoding.protocol import Result
from vidspec.decoding.workers.messages import Spans
from vidspec.events.bell import Bell

__all__ = ["Ear", "Heard"]

#: What a draft's process says of a clip: answers, and in the end its account.
Heard: TypeAlias = Result | Spans


class Ear:
    """Messages in the order of their coming; ``bell`` wakes who waits for them."""

    def __init__(self) -> None:
        self.bell = Bell()
        self._arrived: deque[Heard] = deque()

    def put(self, message: Heard) -> None:
        """From any thread."""
        self._arrived.append(message)
        self.bell.ring()

    def take(self) -> list[Any]:
        """All that have come; the account comes last, when the clip is over."""
        return [self._arrived.popleft() for _ in range(len(self._arrived))]
