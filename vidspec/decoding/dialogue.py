"""A dialogue about one clip, whose turns are answered one after another. No models, no files."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from typing_extensions import Unpack

from vidspec.decoding.clip_session import ClipSession
from vidspec.errors import ArgumentError, UsageError
from vidspec.events.events import Finished, InputsReleased
from vidspec.models.request import CaptionOptions, CaptionRequest, DialogueTurn, make_request

if TYPE_CHECKING:
    from collections.abc import Generator

    from vidspec.events.events import Event
    from vidspec.events.record import Caption

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
