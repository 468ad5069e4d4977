"""A source of clips for ``EngineClient.serve``, all of which are ready from the start."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping

from vidspec.models.request import CaptionRequest
from vidspec.video import Clip


class ReadyClips:
    """Hands out requests in order, whose clips are in memory."""

    def __init__(self, requests: Iterable[CaptionRequest]) -> None:
        self._waiting = deque(requests)

    @classmethod
    def of(cls, clips: Mapping[str, Clip]) -> ReadyClips:
        """Return a source of clips by path, which is the key of each."""
        return cls(CaptionRequest(path, clip, key=path) for path, clip in clips.items())

    @property
    def over(self) -> bool:
        return not self._waiting

    def take(self) -> CaptionRequest | None:
        return self._waiting.popleft() if self._waiting else None
