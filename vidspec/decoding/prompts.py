"""Several prompts about one clip: one reads it, the others continue from its caches. No models, no files."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from typing import Generic, TypeVar

from vidspec.models.prefix_cache import PrefixCache
from vidspec.models.request import CaptionRequest

__all__ = ["PromptQueue"]

R = TypeVar("R", bound=CaptionRequest)


class PromptQueue(Generic[R]):
    """Requests that differ in their prompts, in the order in which they can be begun.

    The first is alone until its prompts are read; then all others can be. If it fails before, the next one reads.

    Args:
        requests: of the same clip, each with its question.
        apart: begin each when the one before has ended.
    """

    def __init__(self, requests: Sequence[R], *, apart: bool = False) -> None:
        self._waiting, self._apart = deque(requests), apart
        self._cache = PrefixCache()
        self._ready: deque[R] = deque()
        self._begun: dict[int, PrefixCache] = {}  # of those whose prompts are not read, by question
        self._left = len(requests)
        self._release(1)

    @property
    def over(self) -> bool:
        """Whether none is left to be begun."""
        return not (self._ready or self._waiting)

    @property
    def done(self) -> bool:
        """Whether all have ended."""
        return not self._left

    def take(self) -> R | None:
        """The next that can be begun; None if there is none now."""
        if not self._ready:
            return None
        request = self._ready.popleft()
        assert request.question is not None and request.cache is not None
        self._begun[request.question.index] = request.cache
        return request

    def read(self, index: int) -> None:
        """One of them has read its prompts."""
        if (cache := self._begun.pop(index, None)) is not None:
            cache.end()  # what it went on from
            self._cache = cache
            self._release(0 if self._apart else len(self._waiting))
            if not self._waiting:
                cache.seen = {}  # all that are to come have it already

    def ended(self) -> None:
        """One of them is answered, or has failed."""
        self._left -= 1
        if not self._ready:
            self._release(1)

    def _release(self, count: int) -> None:
        for _ in range(min(count, len(self._waiting))):
            self._ready.append(replace(self._waiting.popleft(), cache=self._cache.fork()))
        if not self._waiting:
            self._cache = PrefixCache()  # so that its caches end with the requests that go on from them
