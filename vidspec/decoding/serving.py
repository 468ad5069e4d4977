"""Serving: many clips on one captioner's models, with admission, repetition after OOM, timeouts, and the load.

All calls of a captioner share one loop. Any thread that waits for its clips runs the next turn, for the clips of all
threads: a single call never changes threads, and concurrent calls share passes. A clip is admitted while its call has
fewer than its limit and there is room for its keys and values. A clip that runs out of memory alongside others is
repeated by itself. Each call gets its events with the key of their clip.
"""

from __future__ import annotations

import gc
import time
from collections import deque
from collections.abc import Callable, Hashable
from collections.abc import Sequence as Items
from contextlib import ExitStack
from itertools import chain, count
from typing import TYPE_CHECKING

from vidspec import garbage
from vidspec.decoding.admission import MemoryClaim, has_room, reserve_memory
from vidspec.decoding.calls import Arrivals, CaptionerCall, ServedCaptioner, ServingEvents
from vidspec.decoding.loop import Loop, PassRecord
from vidspec.decoding.sequence import Sequence
from vidspec.draft_length.batch import SIZES
from vidspec.engine import exclusive
from vidspec.engine.device import synchroniser
from vidspec.engine.requests import PrefillPrompt
from vidspec.errors import ClosedError, DeviceError, GenerationError
from vidspec.events.events import Finished, LoopLoad, Prefilled, PrefillProgress, Restarted, Round
from vidspec.events.trace import Trace
from vidspec.events.wake import WakeEvent

if TYPE_CHECKING:
    from vidspec.models.request import CaptionRequest

__all__ = ["Serving"]

#: Seconds between two reports of the load.
EVERY = 0.1


class Serving:
    """Clips of all calls of one captioner. Calls may come from any thread; one at a time runs a turn.

    During a turn a thread holds this object, whose state it changes, and the models, which it computes with. The object
    does not refer to the captioner, whose models end with their last reference.

    Args:
        synchronise: waits for queued work of the devices.
    """

    def __init__(self, synchronise: Callable[[], None]) -> None:
        self.loop = Loop(on_pass=self._record_pass, synchronise=synchronise)
        self._calls: list[CaptionerCall] = []  # other threads only append
        self._flights: dict[Hashable, tuple[CaptionerCall, Sequence]] = {}
        self._staged: deque[Sequence] = deque()  # admitted, not begun in the loop
        self._claims: dict[Hashable, Items[MemoryClaim]] = {}  # of clips whose prompts have not been read
        self._keys = count()
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
                    yield None, self._load(call)
                    return
                else:
                    garbage.collect_if_due(busy=bool(self._flights))
                    call.wait()
                    yield None, self._load(call)
        finally:
            call.wake.relay = None
            call.threads.close()
            call.closed = True
            self._drop_unless_running()
            garbage.collect_if_due(busy=bool(self._flights))
            collections.close()

    def close(self) -> None:
        """End all calls, those of other threads with an error, as soon as the running turn has ended."""
        self.loop.wake.set()
        exclusive.acquire(None, (self,))
        try:
            self._closed = True
            for call in list(self._calls):
                self._abandon_clips(call, ClosedError())
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
            self._repeat_others(call, error)
            raise
        finally:
            self._drop_closed()
            exclusive.release(needed)
        if any(one.closed for one in self._calls):  # closed in the meantime
            self._drop_unless_running()

    def _turn(self, call: CaptionerCall) -> None:
        """Admit a clip, or run a pass for the clips of all calls."""
        self._drop_closed()
        if self._closed:
            self._abandon_clips(call, ClosedError())
            return
        if self._admit():
            return  # deliver its first event before any work
        while self._staged:
            sequence = self._staged.popleft()
            self.loop.begin(sequence)
            self._deliver(sequence)
        call.halve_threads()
        for client in self.loop.turn(1.0):
            self._deliver(self._flights[client.key][1])
        self._end_timed_out()
        self._report_load()

    def _admit(self) -> bool:
        """Admit the next clip; False if there is none, or no room for it. Calls take turns."""
        calls = [call for call in self._calls if call.again] or [call for call in self._calls if call.waiting]
        for call in calls:
            if call.again:
                if self._flights:  # it runs by itself, and no other clip overtakes it
                    return False
                gc.collect()  # objects that the first attempt's error refers to, its keys and values among them
                self._start(call, call.again)
                return True
            if len(call.sequences) >= call.limit:
                continue
            if not self._has_room(call, call.waiting[0]):
                return False
            self._start(call, call.waiting)
            self._calls.remove(call)
            self._calls.append(call)
            return True
        return False

    def _has_room(self, call: CaptionerCall, request: CaptionRequest) -> bool:
        if not self._flights:
            if call.batch != 1:
                reserve_memory(call.needs(request), call.batch or SIZES[-1])
            return True
        if len(self._flights) >= max(SIZES[-1], call.limit):
            return False
        for key, (other, sequence) in self._flights.items():
            if sequence.prefilled is None and key not in self._claims:
                self._claims[key] = other.needs(sequence.job)
        return has_room([*chain(*self._claims.values()), *call.needs(request)])

    def _start(self, call: CaptionerCall, requests: deque[CaptionRequest]) -> None:
        """Begin the first of a call's requests; it is in flight before it is removed from them."""
        garbage.collect_if_due(busy=bool(self._flights))
        request = requests[0]
        trace, call.trace = call.trace or Trace(synchroniser(*call.captioner.devices)), None
        try:
            sequence = call.captioner.start(request, trace)
        except Exception as error:
            call.news.append((request.key, error))
            requests.popleft()
            return
        if request.timeout is not None:
            sequence.deadline = time.monotonic() + request.timeout - request.spent
        sequence.key = next(self._keys)
        self._flights[sequence.key] = call, sequence
        call.sequences[sequence.key] = sequence
        requests.popleft()
        for _, flight in self._flights.values():
            flight.shared |= len(self._flights) > 1
        self._staged.append(sequence)
        self._deliver(sequence)

    def _deliver(self, sequence: Sequence) -> None:
        """Pass a clip's emitted events, and its error, to its call."""
        call, key = self._flights[sequence.key][0], sequence.job.key
        while sequence.events:
            event = sequence.events.popleft()
            if isinstance(event, Round):
                call.accepted += event.accepted
            elif isinstance(event, Prefilled):
                self._claims.pop(sequence.key, None)  # its memory is allocated now
            if not call.result_only or isinstance(event, Finished):
                call.news.append((key, event))
        if not sequence.over:
            return
        error = sequence.error
        if sequence.shared and isinstance(error, GenerationError | DeviceError) and error.kind == "memory":
            call.again.append(sequence.job)
            if not call.result_only:
                call.news.append((key, Restarted(error.message)))
        elif error is not None:
            call.news.append((key, error))
        self._remove(sequence)

    def _remove(self, sequence: Sequence) -> None:
        """Remove a clip, and abandon it if it has not ended."""
        call, _ = self._flights.pop(sequence.key)
        self._claims.pop(sequence.key, None)
        if sequence in self._staged:
            self._staged.remove(sequence)
        self.loop.drop(sequence.key)
        del call.sequences[sequence.key]  # last: its call may then see that nothing of it is in flight

    def _end_timed_out(self) -> None:
        now = time.monotonic()
        for call, sequence in list(self._flights.values()):
            if sequence.job.abandoned is not None and sequence.job.abandoned.is_set():
                self._remove(sequence)
            elif sequence.deadline is not None and now > sequence.deadline:
                message = f"{sequence.job.path}: not captioned within {sequence.job.timeout:g} s"
                call.news.append((sequence.job.key, GenerationError(message, kind="timeout", hint="raise --timeout")))
                self._remove(sequence)

    def _report_load(self) -> None:
        now = time.monotonic()
        for call in list(self._calls):
            if call.sequences and not call.result_only and now - call.reported > EVERY:
                call.reported = now
                for sequence in call.sequences.values():
                    prompt = sequence.request
                    if not isinstance(prompt, PrefillPrompt) or prompt.lane != "target":
                        continue
                    if (span := prompt.reading.span) is not None:
                        call.news.append((sequence.job.key, PrefillProgress(span.length, prompt.reading.prompt.length)))
                call.news.append((None, self._load(call)))

    def _load(self, call: CaptionerCall) -> LoopLoad:
        """Return the number of clips and the size of the last pass."""
        slab = call.slab
        return LoopLoad(
            clips=len(self.loop),
            waiting=len(call.waiting) + len(call.again),
            sequences=round(call.last.sequences),
            rows=round(call.last.rows),
            accepted=call.accepted,
            passes=call.passes,
            kv_used=slab.used * slab.entry_bytes,
            kv_capacity=slab.nbytes,
            batch=call.limit,
            reading=call.reading_s / max(time.monotonic() - call.begun, 1e-9),
        )

    def _record_pass(self, passing: PassRecord) -> None:
        calls = [call for call in self._calls if call.sequences]
        if not passing.prompts:
            rows = passing.lane, round(passing.sequences), round(passing.rows), passing.seconds
            for call in calls:
                call.size.add_pass(*rows, passing.passes)
            if calls and (pace := calls[0].captioner.pace) is not None:
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
            self._abandon_clips(call)

    def _abandon_clips(self, call: CaptionerCall, error: Exception | None = None) -> None:
        """Abandon a call's clips; with an error, end each of them with it."""
        keys = [sequence.job.key for sequence in call.sequences.values()]
        keys += [request.key for request in (*call.waiting, *call.again)]
        if error is not None:
            call.news.extend((key, error) for key in keys)
        call.waiting.clear()
        call.again.clear()
        for sequence in list(call.sequences.values()):
            self._remove(sequence)

    def _repeat_others(self, call: CaptionerCall, error: BaseException) -> None:
        why = f"a pass was interrupted: {type(error).__name__}"
        for other, sequence in list(self._flights.values()):
            if other is not call:
                other.again.append(sequence.job)
                if not other.result_only:
                    other.news.append((sequence.job.key, Restarted(why)))
                self._remove(sequence)
