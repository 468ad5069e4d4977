"""Questions about a clip that is read once: several prompts, or a dialogue turn by turn. No models, no files."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from typing_extensions import Unpack

from vidspec.errors import ArgumentError, UsageError
from vidspec.events.events import Finished, InputsReleased
from vidspec.models.prefix_cache import PrefixCache
from vidspec.models.request import CaptionOptions, CaptionRequest, DialogueTurn, Question, make_request

if TYPE_CHECKING:
    from collections.abc import Generator

    from vidspec.events.events import Event
    from vidspec.events.record import Caption


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


__all__ = ["Dialogue"]

#: Options of the whole dialogue, which a question cannot change.
FIXED = {"start", "end", "prompt", "system", "clip", "earlier", "plain"}


class Dialogue(ClipSession):
    """Consecutive questions about a clip; each is answered as if all earlier turns were read again.

    Threads may share it: a question waits until the previous one is answered or abandoned.

    Args:
        stream: captions a request, event by event.
        request: the clip; its prompt is not used.

    Attributes:
        exchanges: questions and answers, without turns that failed or were abandoned.
    """

    def __init__(
        self, stream: Callable[[CaptionRequest], Generator[Event, None, None]], request: CaptionRequest
    ) -> None:
        super().__init__(request)
        self._stream = stream
        #: The last question, the turns before it, and its options.
        self._last: tuple[str, tuple[DialogueTurn, ...], Mapping[str, object]] | None = None
        self._attempt = 0
        self._lock = threading.Lock()  # during a turn
        self._turn_thread: int | None = None  # thread of the current turn

    def ask(self, text: str, **options: Unpack[CaptionOptions]) -> Caption:
        """Return the answer; see :meth:`stream`."""
        for event in self.stream(text, **options):
            if isinstance(event, Finished):
                return event.caption
        raise AssertionError("a stream ends with Finished")

    def stream(self, text: str, **options: Unpack[CaptionOptions]) -> Iterator[Event]:
        """Ask, and yield the events of the answer, as ``Captioner.stream`` does.

        Closing the iterator before ``Finished`` abandons the turn, which then does not count.

        Args:
            text: the question.
            options: keys of ``generate`` and ``schema`` for this question; all others are the dialogue's.

        Raises:
            ArgumentError, ProfileError: an option is unknown, the dialogue's, or does not fit the profile.
            GenerationError: the dialogue has become too long for the model, or memory does not suffice.
            UsageError: a turn of the same thread is neither answered nor abandoned.
        """
        with self._turn():
            for name in options.keys() & FIXED:
                raise ArgumentError(f"a question has no argument {name!r}", hint="it is an option of dialogue()")
            if not isinstance(text, str):
                raise ArgumentError(f"a question must be a text, not a {type(text).__name__}")
            if not text.strip():
                raise ArgumentError("the question is empty")
            generate = {**self.clip.generate, **make_request("ask", self.clip.path, options).generate}
            self._last, self._attempt = (text, self.exchanges, generate), 0
            yield from self._stream_turn(*self._last)

    def again(self) -> Iterator[Event]:
        """Ask the last question again, answered or abandoned; the new answer replaces the last one.

        Sampled tokens are drawn with the next seed.

        Raises:
            UsageError: there was no question, or a turn of the same thread is neither answered nor abandoned.
        """
        with self._turn():
            if self._last is None:
                raise UsageError("nothing was asked yet")
            self._attempt += 1
            yield from self._stream_turn(*self._last)

    @contextmanager
    def _turn(self) -> Iterator[None]:
        """Hold the lock for one turn; a thread never waits for itself."""
        me = threading.get_ident()
        if not self._lock.acquire(blocking=self._turn_thread != me):
            raise UsageError(
                "the last question of this dialogue is not answered yet",
                hint="read its events to the end, or close() them",
            )
        try:
            self._turn_thread = me
            yield
        finally:
            self._turn_thread = None
            self._lock.release()

    def _stream_turn(
        self, text: str, earlier: tuple[DialogueTurn, ...], generate: Mapping[str, object]
    ) -> Iterator[Event]:
        request = replace(self.turn(text, earlier), attempt=self._attempt, generate=generate)
        with closing(self._stream(request)) as events:
            for event in events:
                if isinstance(event, InputsReleased):
                    self.mark_read(request)
                elif isinstance(event, Finished):
                    self.mark_answered(request, event.caption.caption or "")
                yield event
