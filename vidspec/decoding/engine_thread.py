"""The thread that owns a loaded set of models: its loop, its slab, admission by memory, and the ends of clips.

All captioners of one target share it. Other threads submit requests and read events (:mod:`vidspec.decoding.tickets`).
A clip is admitted while its caller has fewer than its limit and there is room for its keys and values. A clip that runs
out of memory alongside others is repeated by itself.
"""

from __future__ import annotations

import atexit
import gc
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Hashable
from collections.abc import Sequence as Items
from concurrent.futures import Future
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import chain, count
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import torch

from vidspec import garbage
from vidspec.decoding.admission import MemoryClaim, has_room, memory_claims, reserve_memory
from vidspec.decoding.loop import Loop, LoopClient, PassRecord
from vidspec.decoding.tickets import Caller, Ticket
from vidspec.draft_length.costs import SIZES
from vidspec.engine.device import end_idle_threads, synchroniser
from vidspec.engine.requests import PrefillPrompt
from vidspec.errors import ClosedError, DeviceError, GenerationError, VidspecError
from vidspec.events.events import Event, Finished, LoopLoad, PrefillProgress, Restarted, Round
from vidspec.events.trace import Trace
from vidspec.events.wake import WakeEvent

if TYPE_CHECKING:
    from vidspec.decoding.engine_client import EngineClient
    from vidspec.decoding.sequence import Sequence
    from vidspec.decoding.setup import DecodingSetup
    from vidspec.models.request import CaptionRequest
    from vidspec.models.video_language_model import VideoLanguageModel

T = TypeVar("T")
#: Seconds between two reports of the load.
EVERY = 0.1
#: Most seconds that the end of the interpreter waits for the running pass.
LAST_PASS = 30.0


@dataclass(eq=False)
class SubmittedClip:
    """A submitted clip on its way.

    Attributes:
        client, setup: whose it is, and its parts.
        request: the clip, until it is in the loop.
        trace: that of the caller, for the first attempt.
        sequence: its decoding, once it is admitted.
        claims: memory that it will need, until its prompts have been read.
    """

    ticket: Ticket
    caller: Caller
    client: EngineClient
    setup: DecodingSetup
    request: CaptionRequest | None
    trace: Trace | None = None
    sequence: Sequence | None = None
    claims: Items[MemoryClaim] | None = None

    @property
    def job(self) -> CaptionRequest:
        """The clip."""
        request = self.sequence.job if self.sequence is not None else self.request
        assert request is not None
        return request

    def needs(self) -> Items[MemoryClaim]:
        """Return the memory that it needs; nothing for one that cannot be decoded."""
        if self.claims is None:
            try:
                self.claims = memory_claims(self.setup, self.job) if self.job.clip is not None else ()
            except VidspecError:  # decoding the clip raises the same error
                self.claims = ()
        return self.claims


class EngineThread:
    """Decodes all clips submitted for one target. It refers to models only while clips are in flight.

    The thread starts with the first request and ends with the target.
    """

    _threads: ClassVar[weakref.WeakKeyDictionary[VideoLanguageModel, EngineThread]] = weakref.WeakKeyDictionary()
    _finding: ClassVar[threading.Lock] = threading.Lock()
    #: Those whose thread has started, also after their target is gone.
    _running: ClassVar[weakref.WeakSet[EngineThread]] = weakref.WeakSet()

    def __init__(self) -> None:
        self.wake = WakeEvent()
        self.loop = Loop(on_pass=self._record_pass, wake=self.wake)
        self._devices: tuple[torch.device, ...] = ()
        self._arrived: deque[Caller | Callable[[], None]] = deque()  # other threads only append
        self._callers: list[Caller] = []  # with unfinished clips
        self._admitted: dict[Hashable, SubmittedClip] = {}
        self._staged: deque[SubmittedClip] = deque()  # admitted, not begun in the loop
        self._news: deque[tuple[Callable[[Any], object], Event | Exception | LoopLoad]] = deque()
        self._keys = count()
        self._thread: threading.Thread | None = None
        self._process, self._closed = os.getpid(), False
        self._maker, self._cores = threading.get_ident(), torch.get_num_threads()
        self._cores_set = self._cores

    @classmethod
    def of(cls, target: VideoLanguageModel, *devices: torch.device) -> EngineThread:
        """Return the thread of a target, with further devices whose queued work passes wait for."""
        with cls._finding:
            found = cls._threads.get(target)
            if found is None:
                found = cls._threads[target] = cls()
                weakref.finalize(target, found._stop).atexit = False
            found._devices = tuple(dict.fromkeys((*found._devices, *devices)))
            found.loop.synchronise = synchroniser(*found._devices)
            found.loop.overlaps = any(device.type != "cpu" for device in found._devices)
        return found

    def submit(self, submitted: SubmittedClip) -> None:
        """Submit a clip whose frames have been read.

        Raises:
            GenerationError: the thread was started before this process was forked.
        """
        submitted.ticket.wake = self.wake
        submitted.caller.waiting.append(submitted)
        self._send(submitted.caller)

    def call(self, function: Callable[[], T]) -> T:
        """Return the result of a function that uses the models, run between two passes."""
        if threading.current_thread() is self._thread:
            return function()
        future: Future[T] = Future()

        def run() -> None:
            try:
                future.set_result(function())
            except BaseException as error:
                future.set_exception(error)

        self._send(run)
        return future.result()

    def end_calls(self, client: EngineClient) -> None:
        """End the unfinished clips of a client with an error, as soon as the running pass has ended."""

        def end() -> None:
            for submitted in self._unfinished():
                if submitted.client is client:
                    self._end(submitted, ClosedError())

        if self._thread is not None:
            self.call(end)

    def _send(self, work: Caller | Callable[[], None]) -> None:
        if threading.get_ident() == self._maker:
            self._cores = torch.get_num_threads()  # which a user may change
        end_idle_threads()
        if self._thread is None:
            with self._finding:
                if self._thread is None:
                    self._process = os.getpid()
                    self._thread = threading.Thread(target=self._run, name="vidspec-engine", daemon=True)
                    self._running.add(self)
                    self._thread.start()
        if self._process != os.getpid():
            raise GenerationError(
                "this process was forked from one that captioned with these models",
                hint="fork before the first caption, or load the models in the child process",
                kind="forked",
            )
        self._arrived.append(work)
        self.wake.set()

    def _stop(self) -> None:
        self._closed = True
        self.loop.watch.close()
        self.wake.set()

    def _run(self) -> None:
        """Run turns while there are clips, else wait; garbage is collected in full only between clips."""
        torch.set_num_threads(self._cores_set)
        with torch.inference_mode():
            while not self._closed:
                self.loop.watch.pause()
                self.wake.wait(None)
                with ExitStack() as collections:
                    collections.enter_context(garbage.deferred(self._add_collection))
                    while self._step() and not self._closed:
                        pass
                    garbage.collect_if_due()

    def _step(self) -> bool:
        """Run a turn and deliver its events, without references to what it used; return False if nothing was left."""
        try:
            left = self._turn()
        except BaseException as error:  # a bug of the loop: the state of all clips is unknown
            self._fail(error)
            left = True
        while self._news:
            deliver, event = self._news.popleft()
            deliver(event)
        return left

    def _turn(self) -> bool:
        """Admit a clip, or run a pass for the clips of all callers."""
        asked: list[Callable[[], None]] = []
        while self._arrived:
            work = self._arrived.popleft()
            if not isinstance(work, Caller):
                asked.append(work)
            elif work not in self._callers:
                self._callers.append(work)
        self._end_cancelled()
        for function in asked:
            function()
        self._callers = [one for one in self._callers if one.unfinished]
        if not self._callers:
            return False
        if self._admit():
            return True  # deliver its first event before any work
        while self._staged:
            submitted = self._staged.popleft()
            assert submitted.sequence is not None
            self.loop.begin(submitted.sequence)
            self._take_events(submitted.sequence)
        for client in self.loop.turn(1.0):
            self._take_events(client)
        self._report_loads(time.monotonic())
        return True

    def _unfinished(self) -> list[SubmittedClip]:
        return [
            submitted
            for caller in self._callers
            for submitted in (*caller.clips.values(), *caller.waiting, *caller.again)
        ]

    def _end_cancelled(self) -> None:
        """Drop what is cancelled, and end the clips whose deadline has passed."""
        now = time.monotonic()
        for submitted in self._unfinished():
            deadline = submitted.sequence.deadline if submitted.sequence is not None else None
            if submitted.ticket.cancelled:
                self._end(submitted)
            elif deadline is not None and now > deadline:
                message = f"{submitted.job.path}: not captioned within {submitted.job.timeout:g} s"
                self._end(submitted, GenerationError(message, kind="timeout", hint="raise --timeout"))

    def _admit(self) -> bool:
        """Admit the next clip; False if there is none, or no room for it. Callers take turns."""
        callers = [one for one in self._callers if one.again] or [one for one in self._callers if one.waiting]
        for caller in callers:
            if caller.again:
                if self._admitted:  # it runs by itself, and no other clip overtakes it
                    return False
                gc.collect()  # objects that the first attempt's error refers to, its keys and values among them
                self._begin(caller.again[0])
                return True
            if len(caller.clips) >= caller.limit:
                continue
            if not self._has_room(caller.waiting[0]):
                return False
            self._begin(caller.waiting[0])
            self._callers.remove(caller)
            self._callers.append(caller)
            return True
        return False

    def _has_room(self, submitted: SubmittedClip) -> bool:
        """Return True if a clip fits alongside those in flight; the first one reserves memory for others like it."""
        if not self._admitted:
            if submitted.caller.batch != 1:
                reserve_memory(submitted.needs(), submitted.caller.batch or SIZES[-1])
            return True
        if len(self._admitted) >= max(SIZES[-1], submitted.caller.limit):
            return False
        unread = [one for one in self._admitted.values() if one.sequence is not None and one.sequence.released is None]
        return has_room([*chain(*[one.needs() for one in unread]), *submitted.needs()])

    def _begin(self, submitted: SubmittedClip) -> None:
        """Admit a clip."""
        garbage.collect_if_due(busy=bool(self._admitted))
        self._share_cores(submitted)
        caller, trace = submitted.caller, submitted.trace or Trace(self.loop.synchronise)
        try:
            sequence = submitted.client.start(submitted.job, trace, submitted.setup, next(self._keys))
        except Exception as error:
            self._end(submitted, error)
            return
        submitted.sequence = sequence
        if sequence.deadline is not None:
            self.loop.watch.start()
        self._admitted[sequence.key] = caller.clips[sequence.key] = submitted
        (caller.again if submitted in caller.again else caller.waiting).remove(submitted)
        submitted.request = submitted.trace = None  # the sequence releases the frames
        for one in self._admitted.values():
            assert one.sequence is not None
            one.sequence.shared |= len(self._admitted) > 1
        self._staged.append(submitted)
        self._take_events(sequence)

    def _share_cores(self, submitted: SubmittedClip) -> None:
        """Use the cores that the thread that loaded the models uses; half of them on a CPU beside a feed.

        OpenMP threads busy-wait for each other: with more threads than cores, one thread fewer does more.
        """
        halved = submitted.client.inputs.vision.has_feed and submitted.setup.target.model.device.type == "cpu"
        cores = max(1, self._cores // 2) if halved else self._cores
        if cores != self._cores_set:
            torch.set_num_threads(cores)  # of this thread; OpenMP counts by calling thread
            self._cores_set = cores

    def _take_events(self, client: LoopClient) -> None:
        """Take a clip's emitted events, and its error, for its caller."""
        submitted = self._admitted[client.key]
        sequence = submitted.sequence
        assert sequence is not None
        while sequence.events:
            event = sequence.events.popleft()
            if isinstance(event, Round):
                submitted.caller.accepted += event.accepted
            self._tell(submitted, event)
        if not sequence.over:
            return
        error = sequence.error
        if sequence.shared and isinstance(error, GenerationError | DeviceError) and error.kind == "memory":
            self._tell(submitted, Restarted(error.message))
            self._end(submitted, repeat=True)
        else:
            self._end(submitted, error)

    def _tell(self, submitted: SubmittedClip, event: Event | Exception) -> None:
        if not submitted.ticket.result_only or isinstance(event, Finished | BaseException):
            self._news.append((submitted.ticket.deliver, event))

    def _end(self, submitted: SubmittedClip, error: Exception | None = None, *, repeat: bool = False) -> None:
        """Remove a clip, abandoned if it has not ended; with an error, or to be repeated without others."""
        caller, sequence = submitted.caller, submitted.sequence
        if error is not None:
            self._tell(submitted, error)
        for waiting in (caller.waiting, caller.again, self._staged):
            if submitted in waiting:
                waiting.remove(submitted)
        if sequence is not None:
            del self._admitted[sequence.key], caller.clips[sequence.key]
            self.loop.drop(sequence.key)
            if repeat:
                again = SubmittedClip(submitted.ticket, caller, submitted.client, submitted.setup, sequence.job)
                caller.again.append(again)

    def _fail(self, error: BaseException) -> None:
        for submitted in self._unfinished():
            self._end(submitted, error if isinstance(error, Exception) else RuntimeError(repr(error)))

    def _report_loads(self, now: float) -> None:
        """Tell callers the progress of the target's prefills and the load."""
        for caller in self._callers:
            if not caller.clips or now - caller.reported <= EVERY:
                continue
            caller.reported = now
            for submitted in caller.clips.values():
                assert submitted.sequence is not None
                prompt = submitted.sequence.request
                if not isinstance(prompt, PrefillPrompt) or prompt.lane != "target":
                    continue
                if (span := prompt.reading.span) is not None:
                    self._tell(submitted, PrefillProgress(span.length, prompt.reading.prompt.length))
            if caller.on_load is not None:
                self._news.append(
                    (caller.on_load, caller.load(len(self.loop), submitted.setup.target.model.decoder.slab))
                )

    def _record_pass(self, passing: PassRecord) -> None:
        callers = [caller for caller in self._callers if caller.clips]
        if not callers:
            return
        costs = next(iter(callers[0].clips.values())).setup.costs
        lane = "tree" if passing.grows else passing.lane
        clips, rows = round(passing.sequences) - passing.prompts, round(passing.rows) - passing.prompt_rows
        if passing.prompts:
            costs.add_share(lane, clips, rows, passing.seconds * rows / passing.rows)
        else:
            costs.add(lane, clips, rows, passing.seconds, passing.passes)
        if passing.lane == "target":
            for caller in callers:
                caller.passes, caller.last = caller.passes + 1, passing
                if caller.batch is None and not passing.prompts:
                    caller.size.add_pass(round(passing.sequences), costs)

    def _add_collection(self, start: float, end: float) -> None:
        """Add a garbage collection, which stops every thread, to the traces of the clips in flight."""
        for submitted in list(self._admitted.values()):
            if submitted.sequence is not None:
                origin = submitted.sequence.trace.origin
                submitted.sequence.trace.add("collect", "target", start - origin, end - origin)


@atexit.register
def _stop_all() -> None:
    """End the threads before the interpreter does: it would crash a pass that is running then."""
    for engine in list(EngineThread._running):
        engine._stop()
        if engine._thread is not None:
            engine._thread.join(LAST_PASS)
