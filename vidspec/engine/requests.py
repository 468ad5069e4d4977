"""Engine requests, as a clip's decoding yields them: passes of a model, other device work, messages of another worker.

A part of a decoding (a drafter, a schedule) is a generator that yields requests and is sent their answers. The answers
come from the loop (:mod:`vidspec.decoding.loop`), which packs the rows of many clips, or from
:func:`run_to_completion`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Sequence
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias, TypeVar

from vidspec.deprecation import old_names
from vidspec.engine.rows import HeadState, PassResult, Rows

if TYPE_CHECKING:
    import torch

    from vidspec.engine.forward import Engine
    from vidspec.engine.history import TextHistory
    from vidspec.engine.rows import Prompt
    from vidspec.engine.slab import KVSpan
    from vidspec.engine.taps import Taps
    from vidspec.events.wake import WakeEvent

__all__ = [
    "Chain",
    "Encode",
    "EngineRequest",
    "Forward",
    "Mailbox",
    "ModelLane",
    "PrefillPrompt",
    "Receive",
    "Steps",
    "run_to_completion",
]

T = TypeVar("T")

#: Worker of a request.
ModelLane: TypeAlias = Literal["target", "draft"]


class _BaseRequest:
    """Base of all requests; the loop dispatches on the class in every turn.

    Attributes:
        lane: worker of the request.
        seconds: total time of its passes; set with the answer.
        answer: set by the loop.
    """

    lane: ModelLane = "target"
    seconds: float = 0.0
    answer: Any = None

    def run(self) -> None:
        """Compute the answer now, without rows of other clips."""
        raise NotImplementedError


class Forward(_BaseRequest):
    """Rows of one sequence, or of several, in one pass; the answer is a ``PassResult`` for each.

    Args:
        engine: the model's engine.
        rows: the rows of each sequence.
        lane: worker of the request.
        grows: True if a tree grows with it.
    """

    #: True if its rows can be split over several passes.
    splittable = False
    grows = False

    def __init__(
        self, engine: Engine, rows: Sequence[Rows], lane: ModelLane = "target", *, grows: bool = False
    ) -> None:
        self.engine, self.rows, self.lane, self.grows = engine, rows, lane, grows

    def parts(self, limit: int) -> Sequence[Rows]:
        """Return its rows for the next pass, which may have ``limit`` rows of a prompt."""
        return self.rows

    def add_result(self, passed: Sequence[PassResult]) -> bool:
        """Take the result of a pass; return True once the request is answered.

        Raises:
            ModelError: some logits are not finite.
        """
        if not all([result.finite for result in passed]):
            self.engine.check(passed)
        self.answer = list(passed)
        return True

    def run(self) -> None:
        while not self.add_result(self.engine.run(self.parts(self.engine.chunk))):
            pass


class Chain(Forward):
    """Greedy continuation of tokens, one pass for each new token; the answer is the ``gamma`` new token ids.

    ``token_ids`` and ``gamma`` are the remaining work, as passes may be run one by one.

    Args:
        engine: the model's engine.
        span: the sequence; it grows by all tokens but the last.
        token_ids: tokens to read, at least one.
        gamma: tokens to add, at least one.
        lane: worker of the request.
        history: penalties on the new tokens; with it each pass is read back before the next.
        path: tokens between its text and the first new one.
        states: for a head, the state that it reads with each token.
        ids: for a head, the token id of each logit, on the host; for ``history``.
    """

    def __init__(
        self,
        engine: Engine,
        span: KVSpan,
        token_ids: Sequence[int],
        gamma: int,
        lane: ModelLane = "draft",
        *,
        history: TextHistory | None = None,
        path: Sequence[int] = (),
        states: Sequence[HeadState] = (),
        ids: torch.Tensor | None = None,
    ) -> None:
        self.engine, self.rows, self.lane = engine, (), lane
        self.states, self.ids = states, ids
        self.span, self.token_ids, self.gamma = span, list(token_ids), gamma
        self.history, self.path = history, path
        self.answer = []

    def parts(self, limit: int) -> Sequence[Rows]:
        processor, tapped = None, (self.engine.model.decoder.depth,) if self.states else ()
        if self.history is not None:
            processor = self.history.changes_for_paths([[*self.path, *self.answer]], self.ids)
        return [Rows(self.span, self.token_ids, tapped=tapped, processor=processor, head_states=self.states)]

    def add_result(self, passed: Sequence[PassResult]) -> bool:
        self.engine.check(passed)
        token = passed[0].chosen[-1]
        self.answer.append(token)
        self.token_ids, self.gamma, self.states = [token], self.gamma - 1, passed[0].own_states[-1:]
        return self.gamma == 0


class PrefillPrompt(Forward):
    """Prefill of a prompt into a new sequence, in as many passes as it takes; the answer is a ``PrefillResult``.

    Args:
        engine: the model's engine.
        prompt: embeddings and positions.
        room: further entries that the sequence must hold: max_new_tokens and one window.
        taps: observers of the passes.
        states: True to keep the last states of the N visual tokens.
        lane: worker of the request.
        cached: a sequence and the number of its first rows that equal the prompt's; they are not read again.
    """

    splittable = True

    def __init__(
        self,
        engine: Engine,
        prompt: Prompt,
        room: int,
        taps: Taps | None = None,
        *,
        states: bool = False,
        lane: ModelLane = "target",
        cached: tuple[KVSpan, int] | None = None,
    ) -> None:
        super().__init__(engine, (), lane)
        self.reading = engine.start_prefill(prompt, room, taps, states=states, cached=cached)

    def parts(self, limit: int) -> Sequence[Rows]:
        return [self.reading.rows(limit)]

    def add_result(self, passed: Sequence[PassResult]) -> bool:
        self.answer = self.reading.add_result(passed[0])
        return self.answer is not None


class Encode(_BaseRequest):
    """Device work other than a pass, such as a chunk of a vision tower; the answer is the result of ``call``."""

    def __init__(self, call: Callable[[], object], lane: ModelLane = "target") -> None:
        self.call, self.lane = call, lane

    def run(self) -> None:
        self.answer = self.call()


class Mailbox(Protocol):
    """Incoming messages of another worker.

    Attributes:
        wake: set with each message; a loop that waits for messages replaces it with its own.
    """

    wake: WakeEvent

    def take(self) -> list[Any]:
        """Return the messages that have arrived, in order; never wait."""
        ...


class Receive(_BaseRequest):
    """Wait for messages; the answer is the list in ``mailbox``, empty if none arrives within ``timeout`` seconds."""

    def __init__(self, mailbox: Mailbox, timeout: float, lane: ModelLane = "target") -> None:
        self.mailbox, self.timeout, self.lane = mailbox, timeout, lane
        self.until = time.monotonic() + timeout

    def run(self) -> None:
        while not (messages := self.mailbox.take()) and (left := self.until - time.monotonic()) > 0:
            self.mailbox.wake.wait(left)
        self.answer = messages


#: Any request of a decoding; ``Chain`` and ``PrefillPrompt`` are kinds of ``Forward``.
EngineRequest: TypeAlias = Forward | Encode | Receive

#: A part of a decoding: yields requests, is sent their answers, and returns a T.
Steps: TypeAlias = Generator[EngineRequest, Any, T]


def run_to_completion(steps: Steps[T]) -> T:
    """Run a part of a decoding without other clips, and return its result."""
    answer: object = None
    while True:
        try:
            request = steps.send(answer)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]
        begun = time.perf_counter()
        request.run()
        request.seconds, answer = time.perf_counter() - begun, request.answer


if not TYPE_CHECKING:  # see old_names
    __getattr__ = old_names(__name__, {"Lane": "ModelLane"})
