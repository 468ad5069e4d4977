"""Many clips through one captioner's models: who is let in, what is done again, and how the whole stands.

A clip is let in while there are fewer than the most at once and there is room for its keys and values. One that finds
no memory in company is done again without any. What a clip says is given with its key.
"""

from __future__ import annotations

import gc
import time
from collections import deque
from collections.abc import Hashable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from vidspec.decoding.loop import Done, Failed, Loop, Passing
from vidspec.draft_length.batch import BatchSize
from vidspec.engine.device import free_memory, half_the_cores, synchroniser
from vidspec.errors import GenerationError
from vidspec.events.events import Again, Load, Round
from vidspec.events.trace import Trace
from vidspec.events.wake import WakeEvent

if TYPE_CHECKING:
    from vidspec.draft_length.pace import Pace
    from vidspec.engine.forward import Engine
    from vidspec.engine.requests import Steps
    from vidspec.models.base import VideoLanguageModel
    from vidspec.models.request import Request

__all__ = ["Arrivals", "Serves", "Serving"]

#: Share of the free memory that clips in company may take, and seconds between two tellings of how the whole stands.
SHARE, EVERY = 0.8, 0.1


class Arrivals(Protocol):
    """Where clips come from, their frames in memory."""

    @property
    def over(self) -> bool:
        """Whether no more will come."""
        ...

    def take(self) -> Request | None:
        """The next clip, None if there is none just now; never waits. Whoever adds one sets the wake event."""
        ...


class Serves(Protocol):
    """What is needed of a captioner; its methods are described there.

    Attributes:
        fed: whether clips are looked at by another thread, beside the passes.
    """

    fed: bool

    @property
    def target(self) -> Engine[VideoLanguageModel]: ...
    @property
    def pace(self) -> Pace | None: ...
    def needs(self, request: Request) -> int: ...
    def decoding(self, request: Request, trace: Trace) -> Steps[None]: ...


@dataclass(eq=False)
class _Flight:
    """A clip that was let in. ``company`` tells whether it ever shared the models."""

    request: Request
    until: float | None
    company: bool = False


class Serving:
    """One run over clips that come.

    Args:
        captioner: whose models.
        batch: the most clips at once; None to choose by what is measured. Memory may allow fewer.
        wake: set when something new is to be done.
    """

    def __init__(self, captioner: Serves, *, batch: int | None = None, wake: WakeEvent | None = None) -> None:
        if batch is not None and batch < 1:
            raise ValueError(f"a batch must have at least one clip, not {batch}")
        self.captioner, self.batch = captioner, batch
        self.wake = wake or WakeEvent()
        wait = synchroniser(captioner.target.model.device)

        def now() -> float:
            wait()
            return time.perf_counter()

        self.loop = Loop(now, self._passed, self.wake)
        self._flights: dict[Hashable, _Flight] = {}
        self._held: deque[Request] = deque()  # taken and not let in yet
        self._again: deque[Request] = deque()  # to be done without company
        self._last = Passing("target", 0, 0, 0, 0.0)
        self._passes = self._accepted = 0
        self._told = 0.0
        self._size = BatchSize()
        self._threads = ExitStack()
        self._beside = False

    def all(self, arrivals: Arrivals) -> Iterator[tuple[Hashable, Any]]:
        """What :meth:`~vidspec.captioner.Captioner.serve` yields."""
        while True:
            over = arrivals.over
            yield from self._let_in(arrivals)
            if len(self.loop):
                yield from self.turn()
            elif self._held or self._again:
                continue  # there is room for them now
            elif over:
                yield None, self.load()
                return
            else:
                self.wake.wait(1.0)

    def rest(self) -> Iterator[tuple[Hashable, Any]]:
        """What the clips in flight say until the last of them has ended."""
        while len(self.loop):
            yield from self.turn()

    def begin(self, request: Request, trace: Trace | None = None) -> Iterator[tuple[Hashable, Any]]:
        """Let a clip in; what it says at once.

        Args:
            request: the clip.
            trace: begun when the clip was opened; a new one if None.
        """
        model = self.captioner.target.model
        until = None if request.timeout is None else time.monotonic() + request.timeout - request.spent
        self._flights[request.key] = _Flight(request, until)
        company = len(self._flights) > 1
        for flight in self._flights.values():
            flight.company |= company
        trace = trace or Trace(synchroniser(model.device))
        steps = self.captioner.decoding(request, trace)
        yield from self._said(self.loop.begin(request.key, steps))

    def turn(self) -> Iterator[tuple[Hashable, Any]]:
        """One pass, or a wait for other workers."""
        if self.captioner.fed and not self._beside:
            self._beside = True
            if self.captioner.target.model.device.type == "cpu":
                self._threads.enter_context(half_the_cores())
        yield from self._said(self.loop.turn(1.0))
        now = time.monotonic()
        for flight in [one for one in self._flights.values() if one.until is not None and now > one.until]:
            request = flight.request
            self.loop.drop(request.key)
            del self._flights[request.key]
            late = f"{request.path}: not captioned within {request.timeout:g} s"
            yield request.key, GenerationError(late, kind="timeout", hint="raise --timeout")
        if now - self._told > EVERY:
            self._told = now
            yield None, self.load()

    def load(self) -> Load:
        """How the whole stands."""
        slab = self.captioner.target.model.decoder.slab
        return Load(
            clips=len(self.loop),
            waiting=len(self._held) + len(self._again),
            sequences=round(self._last.sequences),
            rows=round(self._last.rows),
            accepted=self._accepted,
            passes=self._passes,
            kv_used=slab.used * slab.entry_bytes,
            kv_capacity=slab.nbytes,
            batch=self._most,
        )

    def close(self) -> None:
        """Give up what is in flight."""
        self._threads.close()
        self.loop.close()
        self._flights.clear()

    @property
    def _most(self) -> int:
        return self.batch or self._size.most

    def _let_in(self, arrivals: Arrivals) -> Iterator[tuple[Hashable, Any]]:
        while len(self.loop) < self._most:
            if self._again:  # without company, and nobody overtakes it
                if len(self.loop):
                    return
                gc.collect()  # what the error of the first time still knows, its keys and values among it
                yield from self.begin(self._again.popleft())
                return
            if self._held:
                request = self._held.popleft()
            elif (taken := arrivals.take()) is not None:
                request = taken
            else:
                return
            if len(self.loop) and not self._fits(request):
                self._held.appendleft(request)
                return
            yield from self.begin(request)

    def _fits(self, request: Request) -> bool:
        """Whether there is room for its keys and values beside the others'."""
        free = free_memory(self.captioner.target.model.device)
        return free is None or request.clip is None or self.captioner.needs(request) <= SHARE * free

    def _passed(self, passing: Passing) -> None:
        if not passing.prompts:
            heard = passing.lane, round(passing.sequences), round(passing.rows), passing.seconds
            self._size.passed(*heard, passing.passes)
            if self.captioner.pace is not None:
                self.captioner.pace.passed(*heard, passing.passes, passing.grows)
        if passing.lane == "target":
            self._passes += 1
            self._last = passing

    def _said(self, turn: Iterator[tuple[Hashable, Any]]) -> Iterator[tuple[Hashable, Any]]:
        """What the loop's clips said, an ending as what the clip ended with."""
        for key, said in turn:
            if isinstance(said, Done):
                self._flights.pop(key, None)
                continue
            if isinstance(said, Failed):
                flight = self._flights.pop(key)
                error = said.error
                if flight.company and isinstance(error, GenerationError) and error.kind == "memory":
                    self._again.append(flight.request)
                    yield key, Again(error.message)
                    continue
                yield key, error
                continue
            if isinstance(said, Round):
                self._accepted += said.accepted
            yield key, said
