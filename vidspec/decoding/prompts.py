"""Several prompts about one clip: one reads it, the others continue from its caches. No models, no files."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Sequence
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING, Generic, TypeVar

from vidspec.events.events import Finished, InputsReleased
from vidspec.models.prefix_cache import PrefixCache
from vidspec.models.request import CaptionRequest, Question

if TYPE_CHECKING:
    from vidspec.decoding.tickets import Arrivals, ServingEvents
    from vidspec.events.record import Caption

__all__ = ["PromptQueue", "caption_prompts"]

R = TypeVar("R", bound=CaptionRequest)


class PromptQueue(Generic[R]):
    """Requests that differ in their prompts, in the order in which they can begin.

    The first runs by itself until its prompts are read; then all others can begin. If it fails before, the next one
    reads.

    Args:
        requests: requests for the same clip, each with its question.
        apart: True to begin each when the previous one has ended.
    """

    def __init__(self, requests: Sequence[R], *, apart: bool = False) -> None:
        self._waiting, self._one_by_one = deque(requests), apart
        self._cache = PrefixCache()
        self._ready: deque[R] = deque()
        self._unread_caches: dict[int, PrefixCache] = {}  # of requests whose prompts are not read, by question
        self._left = len(requests)
        self._release(1)

    @property
    def over(self) -> bool:
        """True if every request has begun."""
        return not (self._ready or self._waiting)

    @property
    def done(self) -> bool:
        """True if all requests have ended."""
        return not self._left

    def take(self) -> R | None:
        """Return the next request that can begin; None if there is none now."""
        if not self._ready:
            return None
        request = self._ready.popleft()
        assert request.question is not None and request.cache is not None
        self._unread_caches[request.question.index] = request.cache
        return request

    def read(self, index: int) -> None:
        """Note that a request has read its prompts."""
        if (cache := self._unread_caches.pop(index, None)) is not None:
            cache.end()  # release the cache it continued from
            self._cache = cache
            self._release(0 if self._one_by_one else len(self._waiting))
            if not self._waiting:
                cache.seen = {}  # all later requests have it already

    def ended(self) -> None:
        """Note that a request is answered or has failed."""
        self._left -= 1
        if not self._ready:
            self._release(1)

    def _release(self, count: int) -> None:
        for _ in range(min(count, len(self._waiting))):
            self._ready.append(replace(self._waiting.popleft(), cache=self._cache.fork()))
        if not self._waiting:
            self._cache = PrefixCache()  # so that the caches end with the requests that continue from them


def caption_prompts(
    serve: Callable[[Arrivals], ServingEvents], request: CaptionRequest, prompts: Sequence[str]
) -> list[Caption]:
    """Return the caption of each prompt about one clip, decoded together.

    Args:
        serve: captions clips as they arrive.
        request: the clip, which has been read; its prompt is not used.
        prompts: the prompts.

    Raises:
        VideoError, GenerationError: of the first prompt that fails.
    """
    requests = [
        replace(request, key=number, prompt=prompt, question=Question("prompt", number))
        for number, prompt in enumerate(prompts)
    ]
    queue = PromptQueue(requests)
    answers: dict[Hashable, Caption] = {}
    with closing(serve(queue)) as events:
        for key, event in events:
            if isinstance(event, Exception):
                raise event
            if isinstance(event, InputsReleased) and isinstance(key, int):
                queue.read(key)
            elif isinstance(event, Finished):
                queue.ended()
                answers[key] = event.caption
    return [answers[number] for number in range(len(prompts))]
