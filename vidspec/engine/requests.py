"""Engine requests, what a clip's decoding yields: passes of a model, work beside them, messages of another worker.

A part of a decoding (a drafter, a schedule) is a generator that yields requests and is sent their answers. Who
answers, a loop that packs the rows of many clips or :func:`alone`, it cannot tell.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Sequence
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias, TypeVar

from vidspec.engine.rows import Passed, Rows

if TYPE_CHECKING:
    from vidspec.engine.forward import Engine
    from vidspec.engine.rows import Prompt
    from vidspec.engine.slab import KVSpan
    from vidspec.engine.taps import Taps
    from vidspec.events.trace import Kind, Trace
    from vidspec.events.wake import WakeEvent

__all__ = [
    "Chain",
    "Encode",
    "EngineRequest",
    "Forward",
    "Lane",
    "Mailbox",
    "PrefillPrompt",
    "Receive",
    "Steps",
    "alone",
    "answered",
    "asked",
    "overheard",
    "timed",
]

T = TypeVar("T")

#: Whose work it is.
Lane: TypeAlias = Literal["target", "draft"]


class EngineRequest:
    """One request of a clip.

    Attributes:
        lane: whose work it is.
        seconds: what the passes it was part of took, in all; known when it is answered.
        answer: known when it is answered.
    """

    lane: Lane = "target"
    seconds: float = 0.0
    answer: Any = None


#: A part of a decoding: yields requests, and events of :mod:`vidspec.events.events` on the outermost level.
Steps: TypeAlias = Generator[Any, Any, T]


class Forward(EngineRequest):
    """Rows of one sequence, or of several, in one pass; the answer is a ``Passed`` for each.

    Args:
        engine: the model's.
        rows: what each sequence adds.
        lane: whose work it is.
        grows: whether a tree grows with it.
    """

    #: Whether it can be given any number of rows, more passes then following.
    divisible = False

    def __init__(self, engine: Engine, rows: Sequence[Rows], lane: Lane = "target", *, grows: bool = False) -> None:
        self.engine, self.rows, self.lane, self.grows = engine, rows, lane, grows

    def parts(self, most: int) -> Sequence[Rows]:
        """What it adds to the next pass, which may have ``most`` rows of a prompt."""
        return self.rows

    def took(self, passed: Sequence[Passed]) -> bool:
        """What the pass gave; whether the ask is answered with it.

        Raises:
            ModelError: logits that are not finite.
        """
        self.engine.check(passed)
        self.answer = list(passed)
        return True


class Chain(Forward):
    """Tokens are read and continued greedily, one pass for each new token; the answer is the ``gamma`` new token ids.

    ``token_ids`` and ``gamma`` are what is left to do, as passes may be taken one by one.

    Args:
        engine: the model's.
        span: the sequence; it grows by all tokens but the last.
        token_ids: at least one.
        gamma: tokens to add, at least one.
        lane: whose work it is.
    """

    def __init__(
        self, engine: Engine, span: KVSpan, token_ids: Sequence[int], gamma: int, lane: Lane = "draft"
    ) -> None:
        super().__init__(engine, [Rows(span, list(token_ids))], lane)
        self.span, self.token_ids, self.gamma = span, list(token_ids), gamma
        self.answer = []

    def took(self, passed: Sequence[Passed]) -> bool:
        self.engine.check(passed)
        token = int(passed[0].logits[-1].argmax())
        self.answer.append(token)
        self.token_ids, self.gamma = [token], self.gamma - 1
        self.rows = [Rows(self.span, self.token_ids)]
        return self.gamma == 0


class PrefillPrompt(Forward):
    """A prompt into a new sequence, in as many passes as it takes; the answer is a ``Prefill``.

    Args:
        engine: the model's.
        prompt: embeddings and positions.
        room: further entries the sequence must be able to take: max_new_tokens and one window.
        taps: observers of the passes.
        states: whether to keep the last states of the N visual tokens.
        lane: whose work it is.
        held: a sequence that begins with as many rows of the prompt, which are not read again.
    """

    divisible = True

    def __init__(
        self,
        engine: Engine,
        prompt: Prompt,
        room: int,
        taps: Taps | None = None,
        *,
        states: bool = False,
        lane: Lane = "target",
        held: tuple[KVSpan, int] | None = None,
    ) -> None:
        super().__init__(engine, (), lane)
        self.reading = engine.reading(prompt, room, taps, states=states, held=held)

    def parts(self, most: int) -> Sequence[Rows]:
        return [self.reading.rows(most)]

    def took(self, passed: Sequence[Passed]) -> bool:
        self.answer = self.reading.took(passed[0])
        return self.answer is not None


class Encode(EngineRequest):
    """Work on a device that is no pass, such as a chunk of a vision tower; the answer is what ``call`` returns."""

    def __init__(self, call: Callable[[], Any], lane: Lane = "target") -> None:
        self.call, self.lane = call, lane


class Mailbox(Protocol):
    """Where messages of another worker arrive.

    Attributes:
        wake: set by whoever puts one there; a loop that is to wait for messages puts its own in its place.
    """

    wake: WakeEvent

    def take(self) -> list[Any]:
        """What has arrived, in its order; never waits."""
        ...


class Receive(EngineRequest):
    """The answer is what has arrived at ``ear``, a list; an empty one if nothing has for ``timeout`` seconds."""

    def __init__(self, mailbox: Mailbox, timeout: float, lane: Lane = "target") -> None:
        self.mailbox, self.timeout, self.lane = mailbox, timeout, lane
        self.until = time.monotonic() + timeout


def asked(part: Callable[..., Any], *args: Any) -> Steps[Any]:
    """What ``part`` returns, which yields requests if it is a generator function and else does all itself."""
    found = part(*args)
    return (yield from found) if isinstance(found, Generator) else found


def timed(
    trace: Trace,
    kind: Kind,
    lane: Lane,
    part: Callable[..., Any],
    *args: Any,
    about: tuple[tuple[str, int], ...] = (),
) -> Steps[tuple[Any, float]]:
    """:func:`asked`, and the seconds it took without those that others' passes took meanwhile; noted in the trace."""
    begun, waited, found = trace.now(), 0.0, part(*args)
    if isinstance(found, Generator):
        answer: Any = None
        throw: BaseException | None = None
        while True:
            try:
                request = found.send(answer) if throw is None else found.throw(throw)
            except StopIteration as end:
                found = end.value
                break
            throw, since = None, trace.elapsed()
            try:
                answer = yield request
            except Exception as error:
                throw = error
            waited += trace.elapsed() - since - request.seconds
    now = trace.now()
    seconds = max(0.0, now - begun - waited)
    trace.add(kind, lane, now - seconds, now, about)
    return found, seconds


def overheard(
    steps: Steps[T],
    hear: Callable[[Any], None] = lambda event: None,
    change: Callable[[Any], Any] = lambda event: event,
) -> Steps[T]:
    """The same decoding; its events are what ``change`` makes of them, and ``hear`` is called once one was given."""
    answer: Any = None
    throw: BaseException | None = None
    while True:
        try:
            said = steps.send(answer) if throw is None else steps.throw(throw)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]
        answer = throw = None
        event = not isinstance(said, EngineRequest)
        try:
            answer = yield change(said) if event else said
        except Exception as error:
            throw = error
        if event:
            hear(said)


def alone(steps: Steps[T]) -> T:
    """Answer every request of a part of a decoding, at once and without company; what it returns."""
    said = answered(steps)
    while True:
        try:
            next(said)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]


def answered(steps: Steps[T]) -> Generator[Any, None, T]:
    """The events of a decoding whose requests are answered at once and without company."""
    answer: Any = None
    while True:
        try:
            request = steps.send(answer)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]
        if not isinstance(request, EngineRequest):
            yield request
            answer = None
            continue
        begun = time.perf_counter()
        if isinstance(request, Forward):
            while not request.took(request.engine.run(request.parts(request.engine.chunk))):
                pass
        elif isinstance(request, Encode):
            request.answer = request.call()
        elif isinstance(request, Receive):
            while not (messages := request.mailbox.take()) and (left := request.until - time.monotonic()) > 0:
                request.mailbox.wake.wait(left)
            request.answer = messages
        request.seconds = time.perf_counter() - begun
        answer = request.answer
