"""Questions about a clip that is read once: a dialogue, several prompts, further questions. No models, no files."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import replace

from vidspec.models.prefix_cache import PrefixCache
from vidspec.models.request import CaptionRequest, DialogueTurn, Question


class ClipSession:
    """Makes the requests of questions about one clip; each continues from the caches of the last that was read.

    Whoever decodes the requests reports those whose prompts have been read and those that have ended. A session is used
    for turns of a dialogue, or for several prompts, which :meth:`take` returns as they can begin.

    Args:
        clip: the request of the clip with its frames; its prompt is not used.

    Attributes:
        exchanges: questions and answers so far.
        begun: requests of prompts that have begun and not ended, by index.
    """

    def __init__(self, clip: CaptionRequest) -> None:
        self.clip = clip
        self.exchanges: tuple[DialogueTurn, ...] = clip.earlier
        self._cache = PrefixCache()
        self._waiting: deque[tuple[int, str]] = deque()  # prompts that have not begun
        self.begun: dict[int, CaptionRequest] = {}
        self._apart = self._is_read = self._complete = False

    @property
    def nbytes(self) -> int:
        """Bytes of frames, vision outputs, and KV entries for further questions."""
        return self.clip.frames.nbytes + self._cache.nbytes

    @property
    def over(self) -> bool:
        """True if every prompt has begun."""
        return not self._waiting

    @property
    def can_begin(self) -> bool:
        """True if a prompt can begin: the first by itself, all others once it has been read or has failed."""
        return bool(self._waiting) and not (self.begun and (self._apart or not self._is_read))

    def turn(self, text: str, earlier: tuple[DialogueTurn, ...] | None = None) -> CaptionRequest:
        """Return the request of the turn after ``earlier``, or after all exchanges."""
        earlier = self.exchanges if earlier is None else earlier
        return self._ask(text, Question("turn", len(earlier)), earlier)

    def add_prompts(self, prompts: Iterable[tuple[int, str]], *, apart: bool = False) -> None:
        """Add all prompts of the session, with the index of each; ``apart`` begins one when the last has ended."""
        self._waiting.extend(prompts)
        self._apart = apart

    def take(self) -> CaptionRequest | None:
        """Return the request of the next prompt that can begin; None if there is none now."""
        if not self.can_begin:
            return None
        index, text = self._waiting.popleft()
        request = replace(self._ask(text, Question("prompt", index), self.exchanges), key=index)
        self.begun[index] = request
        if not self._waiting:  # the caches end with the requests that continue from them
            self._complete = True
            self._cache.seen = {}
            self._cache = PrefixCache()
        return request

    def attach(self, request: CaptionRequest, *, exact: bool = True) -> CaptionRequest:
        """Return a request with the frames of the clip and a cache that continues; of vision outputs only if inexact.

        Args:
            request: about the same clip.
            exact: False if its text may depend on what the draft saw of the clip, which is chosen again.
        """
        cache = self._cache.fork() if exact else PrefixCache(self._cache.seen)
        return replace(request, clip=self.clip.clip, cache=cache)

    def mark_read(self, request: CaptionRequest) -> None:
        """Note that the prompts of a request have been read; later ones continue from its caches."""
        assert request.cache is not None
        request.cache.end()
        self._is_read = True
        if self._complete:
            request.cache.seen = {}  # the other requests have it already
        else:
            self._cache = request.cache

    def mark_answered(self, request: CaptionRequest, answer: str) -> None:
        """Note the answer of a turn, which replaces that of an earlier attempt and of all turns after it."""
        self.exchanges = (*request.earlier, DialogueTurn(request.prompt or "", answer))

    def mark_ended(self, index: int) -> None:
        """Note that a prompt is answered or has failed."""
        del self.begun[index]

    def _ask(self, text: str, question: Question, earlier: tuple[DialogueTurn, ...]) -> CaptionRequest:
        request = self.attach(replace(self.clip, prompt=text, question=question, earlier=earlier))
        self.clip = replace(self.clip, spent=0.0)  # the time of reading counts for the first question
        return request
