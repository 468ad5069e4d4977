"""Requests to an engine thread: a ticket for each, what one caller has submitted, and calls that serve a source."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Generator, Hashable
from functools import partial
from itertools import count
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Protocol, TypeAlias

from vidspec.decoding.loop import PassRecord
from vidspec.draft_length.costs import BatchSize
from vidspec.errors import ArgumentError, VidspecError
from vidspec.events.events import Event, Finished, LoopLoad

if TYPE_CHECKING:
    from vidspec.decoding.engine_thread import SubmittedClip
    from vidspec.engine.slab import Slab
    from vidspec.events.wake import WakeEvent
    from vidspec.models.request import CaptionRequest

#: Events with the key of their clip, or the exception that ended it; the load has the key None.
ServingEvents: TypeAlias = Generator[tuple[Hashable, Event | LoopLoad | Exception], None, None]
#: Most seconds of an uninterrupted wait: Windows delivers Ctrl-C only between two.
PATIENCE = 1.0


class Arrivals(Protocol):
    """Source of clips whose frames are in memory. Only the thread of its call uses it."""

    @property
    def over(self) -> bool:
        """True if no more clips will come."""
        ...

    def take(self) -> CaptionRequest | None:
        """Return the next clip, None if there is none now; never wait. The wake event is set when one is added."""
        ...


class Ticket:
    """A caller's handle of a request, which cancels it at the end of a ``with`` block. It holds no model and no frame.

    Args:
        deliver: called in the engine thread with each event, and with the exception that ends the request; None to
            keep them for :meth:`events`.
        result_only: True to deliver only ``Finished`` and the exception.

    Attributes:
        cancelled: True if its caller wants no more events.
        wake: wakes the engine thread; None until it is submitted.
    """

    def __init__(
        self, deliver: Callable[[Event | Exception], None] | None = None, *, result_only: bool = False
    ) -> None:
        self.result_only, self.cancelled = result_only, False
        self.wake: WakeEvent | None = None
        self._events: SimpleQueue[Event | Exception] = SimpleQueue()
        self.deliver = deliver or self._events.put

    def __enter__(self) -> Ticket:
        return self

    def __exit__(self, *_: object) -> None:
        self.cancel()

    def cancel(self) -> None:
        """Free the request's place after the running pass; no effect on one that has ended. Never waits."""
        if not self.cancelled:
            self.cancelled = True
            if self.wake is not None:
                self.wake.set()

    def events(self) -> Generator[Event, None, None]:
        """Yield the events up to ``Finished``.

        Raises:
            Exception: the one that ended the request.
        """
        while True:
            try:
                event = self._events.get(timeout=PATIENCE)
            except Empty:
                continue
            if isinstance(event, BaseException):
                try:
                    raise event
                finally:
                    del event  # its traceback refers to this frame: a cycle that keeps the request
            if isinstance(event, Finished):
                self.cancelled = True  # has ended
            yield event
            if isinstance(event, Finished):
                return


class Caller:
    """Clips that one caller has submitted to an engine thread.

    Args:
        batch: the most of its clips at once; None to choose by measurement. Memory may allow fewer.
        on_load: called in the engine thread with the load, now and then.

    Attributes:
        waiting: clips that are not admitted yet.
        again: clips to be repeated without others.
        clips: those in flight, by their keys in the loop.
        passes, last: number of the target's passes that have served them, and the last one.

    Raises:
        ArgumentError: the batch is not a number of clips.
    """

    def __init__(self, batch: int | None = None, on_load: Callable[[LoopLoad], None] | None = None) -> None:
        if batch is not None and not (isinstance(batch, int) and batch >= 1):
            raise ArgumentError(f"batch must be a number of clips, 1 or more, not {batch!r}")
        self.batch, self.on_load = batch, on_load
        self.waiting: deque[SubmittedClip] = deque()
        self.again: deque[SubmittedClip] = deque()
        self.clips: dict[Hashable, SubmittedClip] = {}
        self.size = BatchSize()
        self.last = PassRecord("target", 0, 0, 0, 0, 0.0)
        self.passes = self.accepted = 0
        self.reported, self.begun, self.reading_s = 0.0, time.monotonic(), 0.0

    @property
    def unfinished(self) -> bool:
        """True if clips that it has submitted have not ended."""
        return bool(self.clips or self.waiting or self.again)

    @property
    def limit(self) -> int:
        """Most clips at once."""
        return self.batch or self.size.most

    def load(self, clips: int, slab: Slab) -> LoopLoad:
        """Return the load with ``clips`` in flight of all callers."""
        return LoopLoad(
            clips=clips,
            waiting=len(self.waiting) + len(self.again),
            sequences=round(self.last.sequences),
            rows=round(self.last.rows),
            accepted=self.accepted,
            passes=self.passes,
            kv_used=slab.used * slab.entry_bytes,
            kv_capacity=slab.capacity * slab.entry_bytes,
            batch=self.limit,
            reading=self.reading_s / max(time.monotonic() - self.begun, 1e-9),
        )


def serve(
    submit: Callable[[CaptionRequest, Ticket, Caller], None],
    arrivals: Arrivals,
    batch: int | None,
    wake: WakeEvent,
    load: Callable[[Caller], LoopLoad],
) -> ServingEvents:
    """Submit clips as they arrive and as their limit admits them; see :meth:`EngineClient.serve
    <vidspec.decoding.engine_client.EngineClient.serve>`.

    Args:
        submit: submits a request of a caller, whose events the ticket receives. A ``VidspecError`` that it raises ends
            the clip.
        arrivals: the clips.
        batch: the most clips at once.
        wake: set when ``arrivals`` has something new; here also with each event.
        load: returns the load.

    Raises:
        ClosedError: the captioner is closed.
    """
    news: deque[tuple[int | None, Hashable, Event | LoopLoad | Exception]] = deque()
    tickets: dict[int | None, Ticket] = {}
    numbers = count()

    def add(number: int | None, key: Hashable, event: Event | LoopLoad | Exception) -> None:
        news.append((number, key, event))
        wake.set()

    caller = Caller(batch, partial(add, None, None))
    try:
        while True:
            while news:
                number, key, event = news.popleft()
                if isinstance(event, Finished | BaseException):
                    tickets.pop(number, None)
                yield key, event
            over = arrivals.over
            while len(tickets) < caller.limit and (request := arrivals.take()) is not None:
                number, key = next(numbers), request.key
                tickets[number] = ticket = Ticket(partial(add, number, key))
                try:
                    submit(request, ticket, caller)
                except VidspecError as error:
                    add(number, key, error)
                del request  # its frames are released once the models have encoded them
            if tickets or news:
                wake.wait(PATIENCE)
                continue
            if not arrivals.over:  # the last ones may just have failed
                load(caller)  # refuses to wait for a captioner that was closed
                begun = time.monotonic()
                wake.wait(PATIENCE)
                caller.reading_s += time.monotonic() - begun
            yield None, load(caller)
            if over:
                return
    finally:
        for ticket in tickets.values():
            ticket.cancel()
