"""A source of clips for ``EngineClient.serve``, all of which are ready from the start."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

from vidspec.models.request import CaptionRequest
from vidspec.video import Clip


class ReadyClips:
    """Hands out clips in memory in order; the key of each is its path."""

    def __init__(self, clips: Mapping[str, Clip]) -> None:
        self._waiting = deque(CaptionRequest(path, clip, key=path) for path, clip in clips.items())

    @property
    def over(self) -> bool:
        return not self._waiting

    def take(self) -> CaptionRequest | None:
        return self._waiting.popleft() if self._waiting else None
