"""The target's handle of the draft process: starts it, sends and receives messages, and always ends it."""

from __future__ import annotations

import contextlib
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence

from vidspec.config.profiles import Profile
from vidspec.decoding.protocol import DraftMessage, PromptRead, WorkerFailed
from vidspec.decoding.scheduler import WorkerLost, WorkerTraceback, worker_error
from vidspec.decoding.workers.draft import serve
from vidspec.decoding.workers.mailbox import DraftAnswer
from vidspec.decoding.workers.messages import (
    ClipAnswer,
    ClipOrder,
    CloseClip,
    DraftLoaded,
    DraftLoadFailed,
    DraftSpans,
    DraftStart,
    OpenClip,
)
from vidspec.errors import ModelError
from vidspec.models.identity import Identity
from vidspec.models.request import CaptionRequest
from vidspec.process import Child, ChildEnded, spawn

__all__ = ["PATIENCE", "DraftProcess"]

#: Seconds for which activity counts instead of an answer. Prefill of a long video, or loading weights from a disk,
#: takes minutes.
PATIENCE = 1800.0


class DraftProcess:
    """A spawned process with its own model, vision tower and cache; it serves any number of clips at once.

    Args:
        start: the model and its placement.
    """

    def __init__(self, start: DraftStart) -> None:
        self.process = spawn(serve, start, name="vidspec draft", threads=start.threads)
        self.loaded: DraftLoaded | None = None
        self.load_error: DraftLoadFailed | None = None
        self._clip = 0
        self._listeners: dict[int, Callable[[DraftAnswer], None]] = {}  # of the open clips
        self._reading: set[int] = set()
        self._failure: WorkerFailed | None = None
        self._awaiting_spans: dict[int, float] = {}  # closed clips without their spans, and since when
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
            return time.monotonic() - min(self._awaiting_spans.values()) if self._awaiting_spans else 0.0

    @property
    def reading(self) -> bool:
        """True if there is a clip whose prompt it has not read."""
        return bool(self._reading)

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
        if (error := self.load_error) is not None:
            raise ModelError(f"the draft worker: {error.message}", hint=error.hint, kind=error.kind) from (
                WorkerTraceback(error.traceback)
            )
        if self._failure is not None:
            raise worker_error(self._failure)
        if self.loaded is None:
            raise AssertionError("ready without a model")
        return self.loaded.identity

    def open(
        self,
        profile: Profile,
        request: CaptionRequest,
        room: int,
        listener: Callable[[DraftAnswer], None],
        *,
        eager: bool,
        texts: Mapping[str, Sequence[int]] | None = None,
    ) -> int:
        """Open a clip and return its number; messages about it go to ``listener``, on another thread."""
        shown = CaptionRequest("", request.frames, request.prompt or "", request.system, earlier=request.earlier)
        with self._lock:
            self._clip += 1
            number = self._clip
            self._listeners[number] = listener
            self._reading.add(number)
        self._send(OpenClip(number, profile, shown, room, eager, texts or {}))
        if self._failure is not None:
            listener(self._failure)  # the process ended before it could receive the clip
        return number

    def send(self, clip: int, message: DraftMessage, visual: int | None = None) -> None:
        """Send a protocol message for a clip; no effect on a closed one."""
        self._send(ClipOrder(clip, message, visual))

    def close(self, clip: int) -> None:
        """Close a clip: the draft stops, and its listener receives the spans when they arrive."""
        with self._lock:
            self._awaiting_spans[clip] = time.monotonic()
        self._send(CloseClip(clip))

    def stop(self, *, lost: bool = False) -> None:
        """End the process and the open clips at once; ``lost``: they may be repeated."""
        self.fail(WorkerFailed("draft", "it was given up" if lost else "it was stopped", lost=lost))
        self.process.end()
        if threading.current_thread() is not self._reader:
            self._reader.join()

    def _send(self, order: object) -> None:
        with contextlib.suppress(OSError):  # a closed pipe: the reader reports it
            self.process.channel.send(order)

    def dispatch(self, message: object) -> None:
        """Handle a message of the process; called by the reader."""
        if isinstance(message, DraftLoaded):
            self.loaded = message
            self._ready.set()
        elif isinstance(message, DraftLoadFailed):
            self.load_error = message
        elif isinstance(message, WorkerFailed):
            self.fail(message)
        elif isinstance(message, (DraftSpans, ClipAnswer)):
            self._deliver(message.clip, message)

    def _deliver(self, clip: int, message: DraftSpans | ClipAnswer) -> None:
        with self._lock:
            listener = self._listeners.get(clip)
            if isinstance(message, DraftSpans):
                self._remove_clip(clip)
            elif isinstance(message.result, (PromptRead, WorkerFailed)):
                self._reading.discard(clip)
        if listener is not None:
            listener(message.result if isinstance(message, ClipAnswer) else message)

    def _remove_clip(self, clip: int) -> None:
        self._reading.discard(clip)
        self._awaiting_spans.pop(clip, None)
        self._listeners.pop(clip, None)

    def fail(self, failed: WorkerFailed) -> None:
        """Mark the process as failed and notify its listeners."""
        with self._lock:
            self._failure = self._failure or failed
            listeners = dict(self._listeners)
            for clip in listeners:
                self._remove_clip(clip)
        self._ready.set()
        for listener in listeners.values():
            listener(failed)


def _listen(process: Child, owner: DraftProcess) -> None:
    try:
        while True:
            owner.dispatch(process.receive())
    except ChildEnded as ended:
        owner.fail(WorkerFailed("draft", f"its process ended: {ended.reason}", ended.traceback, lost=True))
    except Exception as error:  # of any type: the waiting threads must be notified
        owner.fail(WorkerFailed("draft", f"its answer cannot be used: {error!r}", traceback.format_exc(), lost=True))
    finally:
        process.channel.close()
