"""Serving: the calls of one captioner as generators of events, over one loop.

Any thread that waits for its clips runs the next turn, for the clips of all threads: a single call never changes
threads, and concurrent calls share passes. A clip is admitted while its call has fewer than its limit and there is room
for its keys and values. A clip that runs out of memory alongside others is repeated by itself.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from contextlib import ExitStack

from vidspec import garbage
from vidspec.decoding.calls import Arrivals, CaptionerCall, ServedCaptioner, ServingEvents
from vidspec.decoding.flights import Flights
from vidspec.decoding.loop import Loop, PassRecord
from vidspec.engine import exclusive
from vidspec.errors import ClosedError
from vidspec.events.trace import Trace
from vidspec.events.wake import WakeEvent

__all__ = ["Serving"]

#: Seconds between two reports of the load.
EVERY = 0.1


class Serving:
    """Clips of all calls of one captioner. Calls may come from any thread; one at a time runs a turn.

    During a turn a thread holds this object, whose state it changes, and the models, which it computes with. The object
    does not refer to the captioner, whose models end with their last reference.

    Args:
        synchronise: waits for queued work of the devices.
        overlaps: True if devices compute while the host works.
    """

    def __init__(self, synchronise: Callable[[], None], *, overlaps: bool = False) -> None:
        self.loop = Loop(on_pass=self._record_pass, synchronise=synchronise, overlaps=overlaps)
        self._calls: list[CaptionerCall] = []  # other threads only append
        self._flights = Flights(self.loop)
        self._closed = False

    def run(
        self,
        captioner: ServedCaptioner,
        arrivals: Arrivals,
        *,
        batch: int | None = None,
        wake: WakeEvent | None = None,
        trace: Trace | None = None,
        result_only: bool = False,
    ) -> ServingEvents:
        """Run one call; see :meth:`~vidspec.captioner.Captioner.serve` and :class:`CaptionerCall`."""
        if batch is not None and batch < 1:
            raise ValueError(f"a batch must have at least one clip, not {batch}")
        call = CaptionerCall(captioner, arrivals, batch, wake or WakeEvent(), trace, result_only)
        call.wake.relay = self.loop.wake
        self._calls.append(call)
        del captioner, trace
        collections = ExitStack()
        collections.enter_context(garbage.deferred(call.add_collection))
        try:
            while True:
                while call.news:
                    yield call.news.popleft()
                over = arrivals.over
                call.take()
                unfinished = call.unfinished
                if call.news:  # from another thread's turn, perhaps the last
                    continue
                if unfinished:
                    self._advance(call)
                elif self._closed:
                    raise ClosedError
                elif over:
                    yield None, call.load(len(self.loop))
                    return
                else:
                    garbage.collect_if_due(busy=len(self._flights) > 0)
                    call.wait()
                    yield None, call.load(len(self.loop))
        finally:
            call.wake.relay = None
            call.threads.close()
            call.closed = True
            self._drop_unless_running()
            garbage.collect_if_due(busy=len(self._flights) > 0)
            collections.close()

    def close(self) -> None:
        """End all calls, those of other threads with an error, as soon as the running turn has ended."""
        self.loop.wake.set()
        exclusive.acquire(None, (self,))
        try:
            self._closed = True
            for call in list(self._calls):
                self._flights.abandon(call, ClosedError())
        finally:
            exclusive.release((self,))

    def _advance(self, call: CaptionerCall) -> None:
        """Run a turn, or wait until another thread's turn has brought news of this call.

        A ``result_only`` call runs turns until it has its result: other threads are woken only by their own news.
        """
        needed = self, *call.models
        if not exclusive.acquire(self, needed, unless=lambda: True):
            self.loop.wake.set()  # in case the running turn waits for messages
            if not exclusive.acquire(self, needed, unless=lambda: bool(call.news)):
                return
        try:
            while not call.news:
                self._turn(call)
                if not call.result_only or exclusive.has_other_group(self, needed):
                    break
                if any(other.news for other in self._calls):
                    exclusive.notify()
        except BaseException as error:  # Ctrl-C, or a bug: the state of other calls' clips is unknown
            self._flights.repeat_others(call, error)
            raise
        finally:
            if any([one.closed for one in self._calls]):
                self._drop_closed()
            exclusive.release(needed)
        if any([one.closed for one in self._calls]):  # closed in the meantime
            self._drop_unless_running()

    def _turn(self, call: CaptionerCall) -> None:
        """Admit a clip, or run a pass for the clips of all calls."""
        self._drop_closed()
        if self._closed:
            self._flights.abandon(call, ClosedError())
            return
        if self._admit():
            return  # deliver its first event before any work
        flights = self._flights
        flights.begin_admitted()
        call.halve_threads()
        for client in self.loop.turn(1.0):
            flights.deliver(client)
        now = time.monotonic()
        flights.end_timed_out(now)
        for one in list(self._calls):
            if now - one.reported > EVERY and one.sequences and not one.result_only:
                one.report_load(now, len(self.loop))

    def _admit(self) -> bool:
        """Admit the next clip; False if there is none, or no room for it. Calls take turns."""
        calls = [call for call in self._calls if call.again] or [call for call in self._calls if call.waiting]
        for call in calls:
            if call.again:
                if len(self._flights):  # it runs by itself, and no other clip overtakes it
                    return False
                gc.collect()  # objects that the first attempt's error refers to, its keys and values among them
                self._flights.admit(call, call.again)
                return True
            if len(call.sequences) >= call.limit:
                continue
            if not self._flights.has_room(call, call.waiting[0]):
                return False
            self._flights.admit(call, call.waiting)
            self._calls.remove(call)
            self._calls.append(call)
            return True
        return False

    def _record_pass(self, passing: PassRecord) -> None:
        calls = [call for call in self._calls if call.sequences]
        if not passing.prompts:
            rows = passing.lane, round(passing.sequences), round(passing.rows), passing.seconds
            for call in calls:
                if call.batch is None:
                    call.size.add_pass(*rows, passing.passes)
            if calls and (pace := calls[0].pace) is not None:
                pace.add_pass(*rows, passing.passes, passing.grows)
        if passing.lane == "target":
            for call in calls:
                call.passes, call.last = call.passes + 1, passing

    def _drop_unless_running(self) -> None:
        """Abandon the clips of closed calls now, or leave it to the thread that runs a turn; never wait."""
        if exclusive.try_acquire((self,)):
            try:
                self._drop_closed()
            finally:
                exclusive.release((self,))

    def _drop_closed(self) -> None:
        for call in [call for call in self._calls if call.closed]:
            self._calls.remove(call)
            self._flights.abandon(call)
