"""Clips in flight, of all calls of one captioner: admission by memory, events, timeouts, repetition.

Only the thread that runs a turn uses them.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Hashable
from collections.abc import Sequence as Items
from itertools import chain, count
from typing import TYPE_CHECKING

from vidspec import garbage
from vidspec.decoding.admission import MemoryClaim, has_room, reserve_memory
from vidspec.decoding.loop import Loop, LoopClient
from vidspec.draft_length.batch import SIZES
from vidspec.engine.device import synchroniser
from vidspec.errors import DeviceError, GenerationError
from vidspec.events.events import Finished, InputsReleased, Restarted, Round
from vidspec.events.trace import Trace

if TYPE_CHECKING:
    from vidspec.decoding.calls import CaptionerCall
    from vidspec.decoding.sequence import Sequence
    from vidspec.models.request import CaptionRequest

__all__ = ["Flights"]


class Flights:
    """Clips in flight with their calls.

    Args:
        loop: decodes them.
    """

    def __init__(self, loop: Loop) -> None:
        self.loop = loop
        self._flights: dict[Hashable, tuple[CaptionerCall, Sequence]] = {}
        self._staged: deque[Sequence] = deque()  # admitted, not begun in the loop
        self._claims: dict[Hashable, Items[MemoryClaim]] = {}  # of clips whose prompts have not been read
        self._keys = count()

    def __len__(self) -> int:
        return len(self._flights)

    def has_room(self, call: CaptionerCall, request: CaptionRequest) -> bool:
        """Return True if a clip fits alongside those in flight; the first one reserves memory for others like it."""
        if not self._flights:
            if call.batch != 1:
                reserve_memory(call.needs(request), call.batch or SIZES[-1])
            return True
        if len(self._flights) >= max(SIZES[-1], call.limit):
            return False
        for key, (other, sequence) in self._flights.items():
            if sequence.released is None and key not in self._claims:
                self._claims[key] = other.needs(sequence.job)
        return has_room([*chain(*self._claims.values()), *call.needs(request)])

    def admit(self, call: CaptionerCall, requests: deque[CaptionRequest]) -> None:
        """Admit the first of a call's requests; it is in flight before it is removed from them."""
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
        self.deliver(sequence)

    def begin_admitted(self) -> None:
        """Begin the admitted clips in the loop."""
        while self._staged:
            sequence = self._staged.popleft()
            self.loop.begin(sequence)
            self.deliver(sequence)

    def deliver(self, client: LoopClient) -> None:
        """Pass a clip's emitted events, and its error, to its call."""
        call, sequence = self._flights[client.key]
        key = sequence.job.key
        while sequence.events:
            event = sequence.events.popleft()
            if isinstance(event, Round):
                call.accepted += event.accepted
            elif isinstance(event, InputsReleased):
                self._claims.pop(sequence.key, None)  # its memory is allocated now
            if not call.result_only or isinstance(event, Finished):
                call.news.append((key, event))
        if sequence.over:
            self._end(call, sequence)

    def _end(self, call: CaptionerCall, sequence: Sequence) -> None:
        error = sequence.error
        if sequence.shared and isinstance(error, GenerationError | DeviceError) and error.kind == "memory":
            self._repeat(call, sequence, error.message)
            return
        if error is not None:
            call.news.append((sequence.job.key, error))
        self.remove(sequence)

    def _repeat(self, call: CaptionerCall, sequence: Sequence, why: str) -> None:
        """Abandon a clip, to begin it again by itself."""
        call.again.append(sequence.job)
        if not call.result_only:
            call.news.append((sequence.job.key, Restarted(why)))
        self.remove(sequence)

    def remove(self, sequence: Sequence) -> None:
        """Remove a clip, and abandon it if it has not ended."""
        call, _ = self._flights.pop(sequence.key)
        self._claims.pop(sequence.key, None)
        if sequence in self._staged:
            self._staged.remove(sequence)
        self.loop.drop(sequence.key)
        del call.sequences[sequence.key]  # last: its call may then see that nothing of it is in flight

    def end_timed_out(self, now: float) -> None:
        """End the clips whose deadline has passed, each with an error, and drop those that are abandoned."""
        for call, sequence in list(self._flights.values()):
            if sequence.job.abandoned is not None and sequence.job.abandoned.is_set():
                self.remove(sequence)
            elif sequence.deadline is not None and now > sequence.deadline:
                message = f"{sequence.job.path}: not captioned within {sequence.job.timeout:g} s"
                call.news.append((sequence.job.key, GenerationError(message, kind="timeout", hint="raise --timeout")))
                self.remove(sequence)

    def abandon(self, call: CaptionerCall, error: Exception | None = None) -> None:
        """Abandon a call's clips; with an error, end each of them with it."""
        keys = [sequence.job.key for sequence in call.sequences.values()]
        keys += [request.key for request in (*call.waiting, *call.again)]
        if error is not None:
            call.news.extend((key, error) for key in keys)
        call.waiting.clear()
        call.again.clear()
        for sequence in list(call.sequences.values()):
            self.remove(sequence)

    def repeat_others(self, call: CaptionerCall, error: BaseException) -> None:
        """Repeat the clips of other calls after a turn that failed or was interrupted."""
        for other, sequence in list(self._flights.values()):
            if other is not call:
                self._repeat(other, sequence, f"a pass was interrupted: {type(error).__name__}")
