"""The draft's process as the target's side sees it: started, spoken to, and ended under all circumstances."""

from __future__ import annotations

import contextlib
import multiprocessing
import queue
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.shared_memory import SharedMemory
from types import ModuleType
from typing import Any

import numpy as np

from vidspec.decoding.parallel import WorkerLost, WorkerTraceback, failure
from vidspec.decoding.protocol import DraftMessage, Failed
from vidspec.decoding.workers.draft import serve
from vidspec.decoding.workers.frames import drop, share
from vidspec.decoding.workers.messages import (
    Answer,
    CloseClip,
    Loaded,
    OpenClip,
    Order,
    Spans,
    Start,
    Taken,
    Unloadable,
)
from vidspec.decoding.workers.pulse import Pulse
from vidspec.errors import ModelError
from vidspec.models.identity import Identity
from vidspec.models.prompt import Question
from vidspec.profiles import Profile

__all__ = ["DraftProcess"]

#: Seconds that the end of a clip waits for the draft's account of it. A draft that is still reading its prompt takes
#: longer; it is not waited for, and the clip's trace lacks its lane.
ACCOUNT = 5.0


class DraftProcess:
    """A spawned process with its own model, vision tower and cache; it serves one clip after the other.

    The clip that was opened last is the one it works on: an older one that was not closed ends with an error.

    Args:
        start: the model.
    """

    def __init__(self, start: Start) -> None:
        context = multiprocessing.get_context("spawn")
        self.connection, theirs = context.Pipe()
        self.process: Any = context.Process(target=serve, args=(theirs, start), name="vidspec-draft", daemon=True)
        with _launching():
            self.process.start()
        theirs.close()
        self.loaded: Loaded | None = None
        self.unloadable: Unloadable | None = None
        self.spans: queue.SimpleQueue[Spans | None] = queue.SimpleQueue()
        self.pulse = Pulse(self.process.pid or 0)
        self._clip = 0
        self._blocks: dict[int, SharedMemory] = {}
        self._listener: Callable[[Failed | Any], None] | None = None
        self._early: Failed | None = None
        self._owed: dict[int, float] = {}  # clips that were closed and not accounted for, and since when
        self._lock, self._sending = threading.Lock(), threading.Lock()
        self._ready = threading.Event()
        self._reader = threading.Thread(target=_listen, args=(self.connection, self), daemon=True)
        self._reader.start()

    @property
    def alive(self) -> bool:
        return bool(self.process.is_alive()) and self._early is None

    @property
    def overdue(self) -> float:
        """For how many seconds it has owed the account of a closed clip; 0 if it owes none."""
        with self._lock:
            return time.monotonic() - min(self._owed.values()) if self._owed else 0.0

    def wait_until_loaded(self, timeout: float, silence: float) -> Identity:
        """Wait for the model, and say which it is.

        Raises:
            ModelError: it cannot be loaded; the cause carries the process's own traceback.
            WorkerLost: it died, took longer than ``timeout`` seconds, or did nothing for ``silence`` of them.
        """
        begun = seen = time.monotonic()
        while not self._ready.wait(min(1.0, silence)):
            now = time.monotonic()
            seen = now if self.pulse.beats() else seen
            if now - begun >= timeout or now - seen >= silence:
                what = f"after {timeout:g} s" if now - begun >= timeout else f"and does nothing for {silence:g} s"
                raise WorkerLost(f"the draft worker has not loaded its model {what}", kind="worker")
        if (wrong := self.unloadable) is not None:
            raise ModelError(f"the draft worker: {wrong.message}", hint=wrong.hint, kind=wrong.kind) from (
                WorkerTraceback(wrong.traceback)
            )
        if self._early is not None:
            raise failure(self._early)
        if self.loaded is None:
            raise AssertionError("ready without a model")
        return self.loaded.identity

    def open(
        self, profile: Profile, question: Question, room: int, *, eager: bool, listener: Callable[[Any], None]
    ) -> int:
        """Begin a clip; its answers go to ``listener``, on another thread. Returns the clip's number.

        Raises:
            GenerationError: there is not enough shared memory for its frames.
        """
        frames = np.ascontiguousarray(question.clip.frames)
        block = share(frames)
        with self._lock:
            self._clip += 1
            number, older, self._listener = self._clip, self._listener, listener
            self._blocks[number] = block
        if older is not None:
            older(Failed("draft", "another clip was begun before this one ended"))
        self._send(
            OpenClip(
                number,
                profile,
                block.name,
                frames.shape,
                tuple(float(t) for t in question.clip.timestamps),
                question.prompt,
                question.system,
                room,
                eager,
            )
        )
        if self._early is not None:
            listener(self._early)  # it ended before it could be told
        return number

    def send(self, clip: int, message: DraftMessage, visual: int | None = None) -> None:
        """A protocol message for a clip; without effect on one that is over."""
        self._send(Order(clip, message, visual))

    def serves(self, clip: int) -> bool:
        """Whether no clip was begun after this one."""
        return clip == self._clip

    def finish(self, clip: int, timeout: float = ACCOUNT) -> Spans | None:
        """End a clip: the draft stops, and says what it did. None if it has not within ``timeout`` seconds.

        The process stays as it is: its account, whenever it comes, is the first thing it does.
        """
        with self._lock:
            if clip == self._clip:
                self._listener = None
            self._owed[clip] = time.monotonic()
        self._send(CloseClip(clip))
        until = time.monotonic() + timeout
        while self._early is None:
            try:
                found = self.spans.get(timeout=max(0.0, until - time.monotonic()))
            except queue.Empty:
                return None
            if found is not None and found.clip == clip:
                return found
        return None

    def stop(self) -> None:
        """End the process, whatever it is doing, and the clip that is open."""
        self.gone(Failed("draft", "it was stopped"))
        self.process.kill()  # it may be stopped or stuck in a pass: nothing gentler is certain
        self.process.join()
        if threading.current_thread() is not self._reader:
            self._reader.join()
        with self._lock:
            blocks, self._blocks = list(self._blocks.values()), {}
        for block in blocks:
            drop(block)

    def _send(self, order: object) -> None:
        with self._sending, contextlib.suppress(OSError, ValueError):  # a closed pipe: the reader tells of it
            self.connection.send(order)

    def hang_up(self) -> None:
        """Close the pipe, by the reader and at its end alone: its number may at once be another file's."""
        with self._sending:
            self.connection.close()

    def heard(self, message: object) -> None:
        """Called by the reader with everything the process sends."""
        if isinstance(message, Loaded):
            self.loaded = message
            self._ready.set()
        elif isinstance(message, Unloadable):
            self.unloadable = message
        elif isinstance(message, Taken):
            with self._lock:
                block = self._blocks.pop(message.clip, None)
            if block is not None:
                drop(block)
        elif isinstance(message, Spans):
            with self._lock:
                self._owed.pop(message.clip, None)
            self.spans.put(message)
        elif isinstance(message, Answer) and isinstance(message.result, Failed):
            self.gone(message.result)
        elif isinstance(message, Answer):
            with self._lock:
                listener = self._listener if message.clip == self._clip else None
            if listener is not None:
                listener(message.result)

    def gone(self, failed: Failed) -> None:
        """The process cannot go on."""
        with self._lock:
            self._early, listener, self._listener = self._early or failed, self._listener, None
        self._ready.set()
        self.spans.put(None)
        if listener is not None:
            listener(failed)

    def exit_text(self) -> str:
        self.process.join(1.0)
        code = self.process.exitcode
        return f"its process ended with exit code {code}" if code is not None else "its pipe is closed"


_LAUNCH = threading.Lock()


@contextlib.contextmanager
def _launching() -> Iterator[None]:
    """Start a process that does not run the user's script again and that Ctrl-C leaves alone from its first moment.

    A spawned process imports the main module for what it may hold; the draft needs nothing of it, and a script without
    an ``if __name__ == "__main__"``, or one read from stdin, would fail there. It inherits the signals that are
    blocked here; otherwise it would print a traceback of its own until it can say that it ignores them.
    """
    blocks = hasattr(signal, "pthread_sigmask")
    if blocks:
        resource_tracker.ensure_running()  # its start would unblock them
    with _LAUNCH:
        main = sys.modules["__main__"]
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT}) if blocks else set()
        sys.modules["__main__"] = ModuleType("__main__")
        try:
            yield
        finally:
            sys.modules["__main__"] = main
            if blocks:
                signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _listen(connection: Connection, owner: DraftProcess) -> None:
    try:
        while True:
            owner.heard(connection.recv())
    except (EOFError, OSError):
        owner.gone(Failed("draft", owner.exit_text(), lost=True))
    except Exception as error:  # whatever it is, the one who waits must hear of it
        owner.gone(Failed("draft", f"its answer cannot be used: {error!r}", traceback.format_exc()))
    finally:
        owner.hang_up()
