"""The target's side of the draft's process: a slot that starts and replaces it, its pipe, and each clip's draft.

Every wait is bounded, and the process always ends. Its own side is :mod:`vidspec.decoding.workers.draft`.
"""

from __future__ import annotations

import contextlib
import threading
import time
import traceback
import weakref
from collections import deque
from itertools import count
from typing import Any, cast

import torch

from vidspec.config.schema import Profile
from vidspec.decoding.auto import split_threads
from vidspec.decoding.protocol import (
    CloseClip,
    DraftAnswer,
    DraftMessage,
    DraftSpans,
    OpenClip,
    PromptRead,
    WorkerFailed,
    WorkerResult,
)
from vidspec.decoding.scheduler import WorkerLost, WorkerTraceback, worker_error
from vidspec.decoding.workers.draft import serve
from vidspec.engine.device import CoreSharing
from vidspec.engine.requests import Receive, Steps
from vidspec.errors import ModelError
from vidspec.events.trace import Trace
from vidspec.events.wake import WakeEvent
from vidspec.models.identity import Identity, check_identity, model_identity, require_vision
from vidspec.models.placement import Placement
from vidspec.models.video_language_model import VideoLanguageModel
from vidspec.process import Child, ChildEnded, spawn

#: Seconds for which activity counts instead of an answer, and the most for loading weights. Prefill of a long video, or
#: loading from a disk, takes minutes.
PATIENCE = LOADING = 1800.0
#: Seconds that the end of a clip waits for the draft's spans. A draft that encodes a video takes longer; it is not
#: waited for, and the clip's trace lacks its lane.
SPANS_TIMEOUT = 5.0


class DraftProcess:
    """A spawned process with its own model, vision tower and cache; it serves any number of clips at once.

    Args:
        model: hub id or folder of the drafting model.
        where: its placement.
        threads: torch threads on a CPU; None on other devices.
    """

    def __init__(self, model: str, where: Placement, threads: int | None) -> None:
        self.process = spawn(serve, model, where, name="vidspec draft", threads=threads)
        self._loaded: Identity | WorkerFailed | None = None
        self._numbers = count(1)
        self._clips: dict[int, RemoteDraft] = {}  # open ones, and closed ones without their spans
        self._failure: WorkerFailed | None = None
        self._lock = threading.Lock()
        self._ready = threading.Event()
        self._reader = threading.Thread(target=_listen, args=(self.process, self), daemon=True)
        self._reader.start()

    @property
    def alive(self) -> bool:
        return self.process.alive and self._failure is None

    @property
    def overdue(self) -> float:
        """Seconds for which the spans of a closed clip have been missing; 0 if none are."""
        with self._lock:
            closed = [clip.closed for clip in self._clips.values() if clip.closed is not None]
        return time.monotonic() - min(closed) if closed else 0.0

    @property
    def reading(self) -> bool:
        """True if there is a clip whose prompt it has not read."""
        with self._lock:
            return any(clip.is_reading for clip in self._clips.values())

    def wait_until_loaded(self, timeout: float, silence: float) -> Identity:
        """Wait for the model and return its identity.

        Raises:
            ModelError: it cannot be loaded; the cause carries the process's own traceback.
            WorkerLost: it died, took longer than ``timeout`` seconds, or was inactive for ``silence`` seconds.
        """
        begun = time.monotonic()
        while not self._ready.wait(min(1.0, silence)):
            late = time.monotonic() - begun >= timeout
            if late or self.process.silent_s() >= silence:
                problem = f"after {timeout:g} s" if late else f"and does nothing for {silence:g} s"
                raise WorkerLost(f"the draft worker has not loaded its model {problem}", kind="worker")
        if isinstance(loaded := self._loaded, WorkerFailed):
            raise ModelError(f"the draft worker: {loaded.error}", hint=loaded.hint, kind=loaded.kind) from (
                WorkerTraceback(loaded.traceback)
            )
        if self._failure is not None:
            raise worker_error(self._failure)
        assert loaded is not None
        return loaded

    def open(self, message: OpenClip, clip: RemoteDraft) -> int:
        """Open a clip, which answers are put into on another thread, and return its number."""
        with self._lock:
            number = next(self._numbers)
            self._clips[number] = clip
        self.send(number, message)
        if self._failure is not None:
            clip.put(self._failure)  # the process ended before it could receive the clip
        return number

    def send(self, clip: int, message: OpenClip | DraftMessage | CloseClip) -> None:
        """Send a message about a clip; no effect on a closed one."""
        with contextlib.suppress(OSError):  # a closed pipe: the reader reports it
            self.process.channel.send((clip, message))

    def stop(self, *, lost: bool = False) -> None:
        """End the process and the open clips at once; ``lost``: they may be repeated."""
        self.fail(WorkerFailed("it was given up" if lost else "it was stopped", lost=lost))
        self.process.end()
        if threading.current_thread() is not self._reader:
            self._reader.join()

    def dispatch(self, number: int | None, message: object) -> None:
        """Handle a message about a clip, or about the model with None; called by the reader."""
        if number is None:
            self._loaded = cast("Identity | WorkerFailed", message)
            self._ready.set()
            return
        with self._lock:
            clip = self._clips.get(number)
            if isinstance(message, DraftSpans):
                self._clips.pop(number, None)
        if clip is not None:
            clip.put(cast(DraftAnswer, message))

    def fail(self, failed: WorkerFailed) -> None:
        """Mark the process as failed and tell its clips."""
        with self._lock:
            self._failure = self._failure or failed
            clips, self._clips = self._clips, {}
        self._ready.set()
        for clip in clips.values():
            clip.put(failed)


def _listen(process: Child, owner: DraftProcess) -> None:
    try:
        while True:
            owner.dispatch(*process.receive())
    except ChildEnded as ended:
        owner.fail(WorkerFailed(f"its process ended: {ended.reason}", ended.traceback, lost=True))
    except Exception as error:  # of any type: the waiting threads must be notified
        owner.fail(WorkerFailed(f"its answer cannot be used: {error!r}", traceback.format_exc(), lost=True))
    finally:
        process.channel.close()


class RemoteDraft:
    """The draft of one clip: a mailbox of its answers, which another thread fills and the loop empties.

    Args:
        process: process of the drafts of all clips.
        opening: the message that opens the clip, sent at first use.
        timeout: seconds without any answer after which the process counts as lost; while it prefills this clip or
            another, :data:`PATIENCE` seconds, as long as it is active.
        trace: times the waiting for it, in the target's lane.

    Attributes:
        wake: set with every answer.
        is_reading: True until its prompt is read.
        closed: time at which it was closed; None before.
    """

    closed: float | None

    def __init__(self, process: DraftProcess, opening: OpenClip, timeout: float, trace: Trace) -> None:
        self.process, self.timeout, self.trace, self.wake = process, timeout, trace, WakeEvent()
        self._opening: OpenClip | None = opening
        self._number: int | None = None
        self.is_reading, self.closed = True, None
        self._arrived: deque[DraftAnswer] = deque()

    def put(self, answer: DraftAnswer) -> None:
        """Add an answer; callable from any thread."""
        if isinstance(answer, (PromptRead, WorkerFailed)):
            self.is_reading = False
        self._arrived.append(answer)
        self.wake.set()

    def take(self) -> list[Any]:
        """Return all answers that have arrived; ``DraftSpans`` is the last, when the clip is closed."""
        return [self._arrived.popleft() for _ in range(len(self._arrived))]

    def begin(self) -> int:
        """Open the clip and return its number."""
        if self._number is None:
            assert self._opening is not None
            self._number = self.process.open(self._opening, self)
            self._opening = None  # it has the frames
        return self._number

    def send(self, message: DraftMessage) -> None:
        """Send a message without waiting."""
        self.process.send(self.begin(), message)

    def receive(self) -> Steps[list[WorkerResult]]:
        """Return its answers since the last call, at least one, or ``WorkerFailed`` if it is lost."""
        begun, since = self.trace.elapsed(), time.monotonic()
        while not (answers := (yield Receive(self, min(1.0, self.timeout)))):
            silent = time.monotonic() - since
            if self.process.reading and silent < PATIENCE:
                silent = min(silent, self.process.process.silent_s())
            if silent >= self.timeout:
                return [WorkerFailed(f"no answer for {self.timeout:g} s", lost=True)]
        self.trace.add("wait", "target", begun, self.trace.elapsed())
        return answers  # type: ignore[no-any-return]

    def close(self) -> None:
        """End the clip: the draft stops, and its spans are the last answer; the process continues with the others."""
        if self._number is not None and self.closed is None:
            self.closed = time.monotonic()
            self.process.send(self._number, CloseClip())

    def collect_spans(self) -> Steps[DraftSpans | None]:
        """End the clip; return the draft's spans if they arrive within :data:`SPANS_TIMEOUT` seconds."""
        if self._number is None:
            return None
        self.close()
        until = time.monotonic() + SPANS_TIMEOUT
        while (left := until - time.monotonic()) > 0:
            for message in (yield Receive(self, left)):
                if isinstance(message, DraftSpans):
                    return message
                if isinstance(message, WorkerFailed):
                    return None
        return None


class DraftProcessSlot:
    """Holds one draft process at a time.

    Args:
        model: hub id or folder of the drafting model.
        where: placement of the draft.
        profile: the settings.

    Attributes:
        target: the model that the draft must match; set before the first use.
        device: device of the draft.
        target_threads, draft_threads: torch threads of both on a CPU; None on other devices.
    """

    target: VideoLanguageModel

    def __init__(self, model: str, where: Placement, profile: Profile) -> None:
        self.model, self.device = model, where.device
        wanted = profile.workers
        self._shows_video = profile.draft.has_video
        self._checked: tuple[VideoLanguageModel, Identity] | None = None
        limit: int | None = None
        self.draft_threads: int | None = None
        if where.device.type == "cpu":
            total = profile.models.threads or torch.get_num_threads()
            limit, self.draft_threads = split_threads(total, wanted.draft_threads)
        self.target_threads = limit
        #: Reduces the target's threads while any clip is here, which leaves the draft its share of the processor.
        self.sharing = CoreSharing(lambda threads: limit or threads)
        self._where, self._timeout = where, wanted.timeout
        self._processes: list[DraftProcess] = []
        self.start()
        weakref.finalize(self, _stop_all, self._processes)  # its reader thread would keep a forgotten process for ever

    @property
    def process(self) -> DraftProcess | None:
        """The current process."""
        return self._processes[0] if self._processes else None

    def start(self) -> None:
        """Start a process if there is none, without waiting for it."""
        if self.process is None:
            self._processes.append(DraftProcess(self.model, self._where, self.draft_threads))

    def ready(self) -> DraftProcess:
        """Return a process whose model is loaded; a new one if the last has ended or hangs.

        Raises:
            WorkerLost: it ended, or took too long; the next call starts another.
            ModelError: its model cannot be loaded, or does not match the target.
        """
        process = self.process
        if process is not None and (not process.alive or self._hangs(process)):
            self.drop(process)
        self.start()
        process = self._processes[0]
        try:
            loaded = process.wait_until_loaded(LOADING, self._timeout)
        except WorkerLost:
            self.drop(process)
            raise
        if self._checked != (self.target, loaded):  # comparing vocabularies is slow: once, not for every clip
            check_identity(model_identity(self.target), loaded)
            require_vision(loaded, shown=self._shows_video)
            self._checked = self.target, loaded
        return process

    def _hangs(self, process: DraftProcess) -> bool:
        """Return True if a closed clip's spans are overdue; the limit is longer while the process works."""
        works = process.process.silent_s() < self._timeout
        return process.overdue > (PATIENCE if works else self._timeout)

    def drop(self, lost: DraftProcess | None = None) -> None:
        """End the process and its clips; with ``lost`` only if it is that process, and its clips may be repeated.

        A second call has no effect.
        """
        if lost is None or lost is self.process:
            _stop_all(self._processes, lost=lost is not None)


def _stop_all(processes: list[DraftProcess], *, lost: bool = False) -> None:
    while processes:
        processes.pop().stop(lost=lost)
