"""What a clip's decoding asks for: passes of a model's engine, work beside them, and messages of another worker.

A part of a decoding (a drafter, a schedule) is a generator that yields what it asks for and is sent the answer. Who
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
    from vidspec.events.bell import Bell
    from vidspec.events.trace import Kind, Trace

__all__ = [
    "Ask",
    "Asks",
    "Continue",
    "Ear",
    "Hear",
    "Lane",
    "Look",
    "Pass",
    "Read",
    "alone",
    "answered",
    "asked",
    "overheard",
    "timed",
]

T = TypeVar("T")

#: Whose work it is.
Lane: TypeAlias = Literal["target", "draft"]


class Ask:
    """One question of a clip.

    Attributes:
        lane: whose work it is.
        seconds: what the passes it was part of took, in all; known when it is answered.
        answer: known when it is answered.
    """

    lane: Lane = "target"
    seconds: float = 0.0
    answer: Any = None


#: A part of a decoding: yields asks, and events of :mod:`vidspec.events.events` on the outermost level.
Asks: TypeAlias = Generator[Any, Any, T]


class Pass(Ask):
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


class Continue(Pass):
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


class Read(Pass):
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


class Look(Ask):
    """Work on a device that is no pass, such as a chunk of a vision tower; the answer is what ``call`` returns."""

    def __init__(self, call: Callable[[], Any], lane: Lane = "target") -> None:
        self.call, self.lane = call, lane


class Ear(Protocol):
    """Where messages of another worker arrive.

    Attributes:
        bell: rung by whoever puts one there; a loop that is to wait for messages puts its own in its place.
    """

    bell: Bell

    def take(self) -> list[Any]:
        """What has arrived, in its order; never waits."""
        ...


class Hear(Ask):
    """The answer is what has arrived at ``ear``, a list; an empty one if nothing has for ``timeout`` seconds."""

    def __init__(self, ear: Ear, timeout: float, lane: Lane = "target") -> None:
        self.ear, self.timeout, self.lane = ear, timeout, lane
        self.until = time.monotonic() + timeout


def asked(part: Callable[..., Any], *args: Any) -> Asks[Any]:
    """What ``part`` returns, which asks if it is a generator function and else does all itself."""
    found = part(*args)
    return (yield from found) if isinstance(found, Generator) else found


def timed(
    trace: Trace,
    kind: Kind,
    lane: Lane,
    part: Callable[..., Any],
    *args: Any,
    about: tuple[tuple[str, int], ...] = (),
) -> Asks[tuple[Any, float]]:
    """:func:`asked`, and the seconds it took without those that others' passes took meanwhile; noted in the trace."""
    begun, waited, found = trace.now(), 0.0, part(*args)
    if isinstance(found, Generator):
        answer: Any = None
        throw: BaseException | None = None
        while True:
            try:
                ask = found.send(answer) if throw is None else found.throw(throw)
            except StopIteration as end:
                found = end.value
                break
            throw, since = None, trace.elapsed()
            try:
                answer = yield ask
            except Exception as error:
                throw = error
            waited += trace.elapsed() - since - ask.seconds
    now = trace.now()
    seconds = max(0.0, now - begun - waited)
    trace.add(kind, lane, now - seconds, now, about)
    return found, seconds


def overheard(
    steps: Asks[T],
    hear: Callable[[Any], None] = lambda event: None,
    change: Callable[[Any], Any] = lambda event: event,
) -> Asks[T]:
    """The same decoding; its events are what ``change`` makes of them, and ``hear`` is called once one was given."""
    answer: Any = None
    throw: BaseException | None = None
    while True:
        try:
            said = steps.send(answer) if throw is None else steps.throw(throw)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]
        answer = throw = None
        event = not isinstance(said, Ask)
        try:
            answer = yield change(said) if event else said
        except Exception as error:
            throw = error
        if event:
            hear(said)


def alone(steps: Asks[T]) -> T:
    """Answer everything that a part of a decoding asks, at once and without company; what it returns."""
    said = answered(steps)
    while True:
        try:
            next(said)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]


def answered(steps: Asks[T]) -> Generator[Any, None, T]:
    """The events of a decoding whose asks are answered at once and without company."""
    answer: Any = None
    while True:
        try:
            ask = steps.send(answer)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]
        if not isinstance(ask, Ask):
            yield ask
            answer = None
            continue
        begun = time.perf_counter()
        if isinstance(ask, Pass):
            while not ask.took(ask.engine.run(ask.parts(ask.engine.chunk))):
                pass
        elif isinstance(ask, Look):
            ask.answer = ask.call()
        elif isinstance(ask, Hear):
            while not (messages := ask.ear.take()) and (left := ask.until - time.monotonic()) > 0:
                ask.ear.bell.wait(left)
            ask.answer = messages
        ask.seconds = time.perf_counter() - begun
        answer = ask.answer
