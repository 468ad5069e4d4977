"""Many clips through one captioner's models: admission, repetition for lack of memory, timeouts, and the load.

A clip is admitted while there are fewer than the limit and there is room for its keys and values. One that runs out of
memory beside others is done again alone. Events are given with the key of their clip.
"""

from __future__ import annotations

import gc
import time
from collections import deque
from collections.abc import Generator, Hashable
from collections.abc import Sequence as Items
from contextlib import ExitStack
from itertools import chain
from typing import TYPE_CHECKING, Protocol, TypeAlias

from vidspec import garbage
from vidspec.decoding.admission import Claim, fits, reserve
from vidspec.decoding.loop import Loop, Passing
from vidspec.decoding.sequence import Sequence
from vidspec.draft_length.batch import SIZES, BatchSize
from vidspec.engine.device import half_the_cores, synchroniser
from vidspec.engine.requests import PrefillPrompt
from vidspec.errors import DeviceError, GenerationError, VidspecError
from vidspec.events.events import Again, Event, Load, Prefilled, Reading, Round
from vidspec.events.trace import Trace
from vidspec.events.wake import WakeEvent

if TYPE_CHECKING:
    import torch

    from vidspec.draft_length.pace import Pace
    from vidspec.engine.forward import Engine
    from vidspec.models.base import VideoLanguageModel
    from vidspec.models.request import Request

__all__ = ["Arrivals", "News", "Serves", "Serving"]

#: Seconds between two reports of the load.
EVERY = 0.1

#: Events with the key of their clip, or the exception that ended it; the load, with None.
News: TypeAlias = Generator[tuple[Hashable, Event | Load | Exception], None, None]


class Arrivals(Protocol):
    """The source of clips whose frames are in memory."""

    @property
    def over(self) -> bool:
        """Whether no more will come."""
        ...

    def take(self) -> Request | None:
        """The next clip, None if there is none now; never waits. The wake event is set when one is added."""
        ...


class Serves(Protocol):
    """The part of a captioner that serving uses; its methods are described there.

    Attributes:
        has_feed: whether another thread encodes clips during the passes.
    """

    has_feed: bool

    @property
    def target(self) -> Engine[VideoLanguageModel]: ...
    @property
    def devices(self) -> tuple[torch.device, ...]: ...
    @property
    def pace(self) -> Pace | None: ...
    def needs(self, request: Request) -> Items[Claim]: ...
    def start(self, request: Request, trace: Trace) -> Sequence: ...


class Serving:
    """One run over the clips of a source.

    Args:
        captioner: has the models.
        batch: the most clips at once; None to choose by measurement. Memory may allow fewer.
        wake: set when there is new work.
    """

    def __init__(self, captioner: Serves, *, batch: int | None = None, wake: WakeEvent | None = None) -> None:
        if batch is not None and batch < 1:
            raise ValueError(f"a batch must have at least one clip, not {batch}")
        self.captioner, self.batch = captioner, batch
        self.wake = wake or WakeEvent()
        self.loop = Loop(passed=self._passed, wake=self.wake, synchronise=synchroniser(*captioner.devices))
        self._sequences: dict[Hashable, Sequence] = {}
        self._claims: dict[Hashable, Items[Claim]] = {}  # of clips whose prompts have not been read
        self._waiting: deque[Request] = deque()  # taken and not admitted yet
        self._again: deque[Request] = deque()  # to be done without others
        self._last = Passing("target", 0, 0, 0, 0.0)
        self._passes = self._accepted = 0
        self._reported = 0.0
        self._size = BatchSize()
        self._threads = ExitStack()
        self._collections = ExitStack()
        self._collections.enter_context(garbage.deferred(self._add_collection))
        self._halved = False
        self._begun, self._reading_s = time.monotonic(), 0.0

    def all(self, arrivals: Arrivals) -> News:
        """The iterator of :meth:`~vidspec.captioner.Captioner.serve`."""
        while True:
            over = arrivals.over
            yield from self._admit(arrivals)
            if len(self.loop):
                yield from self.turn()
            elif self._waiting or self._again:
                continue  # there is room for them now
            elif over:
                yield None, self.load()
                return
            else:
                waits = time.monotonic()
                garbage.collect_if_due()
                self.wake.wait(1.0)
                self._reading_s += time.monotonic() - waits
                yield None, self.load()

    def rest(self) -> News:
        """The events of the clips in flight until the last of them has ended."""
        while len(self.loop):
            yield from self.turn()

    def begin(self, request: Request, trace: Trace | None = None) -> News:
        """Admit a clip; its first events.

        Args:
            request: the clip.
            trace: begun when the clip was opened; a new one if None.
        """
        sequence = self.captioner.start(request, trace or Trace(synchroniser(*self.captioner.devices)))
        if request.timeout is not None:
            sequence.deadline = time.monotonic() + request.timeout - request.spent
        self._sequences[request.key] = sequence
        for one in self._sequences.values():
            one.shared |= len(self._sequences) > 1
        yield from self._news(sequence)  # before anything is computed
        self.loop.begin(sequence)
        yield from self._news(sequence)

    def turn(self) -> News:
        """One pass, or a wait for other workers."""
        if self.captioner.has_feed and not self._halved:
            self._halved = True
            if self.captioner.target.model.device.type == "cpu":
                self._threads.enter_context(half_the_cores())
        for client in self.loop.turn(1.0):
            sequence = self._sequences[client.key]
            if sequence.events or sequence.over:
                yield from self._news(sequence)
        now = time.monotonic()
        for one in [one for one in self._sequences.values() if one.deadline is not None and now > one.deadline]:
            self.loop.drop(one.key)
            del self._sequences[one.key]
            self._claims.pop(one.key, None)
            late = f"{one.job.path}: not captioned within {one.job.timeout:g} s"
            yield one.key, GenerationError(late, kind="timeout", hint="raise --timeout")
        if now - self._reported > EVERY:
            self._reported = now
            for key, sequence in list(self._sequences.items()):
                prompt = sequence.request
                if isinstance(prompt, PrefillPrompt) and prompt.lane == "target" and prompt.reading.span is not None:
                    yield key, Reading(prompt.reading.span.length, prompt.reading.prompt.length)
            yield None, self.load()

    def load(self) -> Load:
        """The number of clips, and the size of the last pass."""
        slab = self.captioner.target.model.decoder.slab
        return Load(
            clips=len(self.loop),
            waiting=len(self._waiting) + len(self._again),
            sequences=round(self._last.sequences),
            rows=round(self._last.rows),
            accepted=self._accepted,
            passes=self._passes,
            kv_used=slab.used * slab.entry_bytes,
            kv_capacity=slab.nbytes,
            batch=self._limit,
            reading=self._reading_s / max(time.monotonic() - self._begun, 1e-9),
        )

    def close(self) -> None:
        """Abandon the clips in flight."""
        self._threads.close()
        self.loop.close()
        self._sequences.clear()
        garbage.collect_if_due()
        self._collections.close()

    @property
    def _limit(self) -> int:
        return self.batch or self._size.most

    def _admit(self, arrivals: Arrivals) -> News:
        while len(self.loop) < self._limit:
            if self._again:  # alone, and no other clip overtakes it
                if len(self.loop):
                    return
                gc.collect()  # what the error of the first attempt still refers to, its keys and values among it
                yield from self.begin(self._again.popleft())
                return
            if self._waiting:
                request = self._waiting.popleft()
            elif (taken := arrivals.take()) is not None:
                request = taken
            else:
                return
            garbage.collect_if_due(busy=len(self.loop) > 0)
            claims = self._needs(request)
            if not len(self.loop):
                reserve(claims, self.batch or SIZES[-1])
            elif not fits([*chain(*self._claims.values()), *claims]):
                self._waiting.appendleft(request)
                return
            self._claims[request.key] = claims
            yield from self.begin(request)

    def _needs(self, request: Request) -> Items[Claim]:
        try:
            return self.captioner.needs(request) if request.clip is not None else ()
        except VidspecError:  # decoding it gives the same, as its own error
            return ()

    def _add_collection(self, start: float, end: float) -> None:
        """Add a garbage collection to the traces of all clips in flight: it stops every thread."""
        for sequence in list(self._sequences.values()):
            origin = sequence.trace.origin
            sequence.trace.add("collect", "target", start - origin, end - origin)

    def _passed(self, passing: Passing) -> None:
        if not passing.prompts:
            rows = passing.lane, round(passing.sequences), round(passing.rows), passing.seconds
            self._size.passed(*rows, passing.passes)
            if self.captioner.pace is not None:
                self.captioner.pace.passed(*rows, passing.passes, passing.grows)
        if passing.lane == "target":
            self._passes += 1
            self._last = passing

    def _news(self, sequence: Sequence) -> list[tuple[Hashable, Event | Exception]]:
        """The events that a clip has emitted, and its error."""
        news: list[tuple[Hashable, Event | Exception]] = []
        while sequence.events:
            event = sequence.events.popleft()
            if isinstance(event, Round):
                self._accepted += event.accepted
            elif isinstance(event, Prefilled):
                self._claims.pop(sequence.key, None)  # what it takes now is allocated
            news.append((sequence.key, event))
        if sequence.over and self._sequences.get(sequence.key) is sequence:
            del self._sequences[sequence.key]
            self._claims.pop(sequence.key, None)
            error = sequence.error
            if sequence.shared and isinstance(error, GenerationError | DeviceError) and error.kind == "memory":
                self._again.append(sequence.job)
                news.append((sequence.key, Again(error.message)))
            elif error is not None:
                news.append((sequence.key, error))
        return news
