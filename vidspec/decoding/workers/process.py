"""The draft's process as the target's side sees it: started, spoken to, and ended under all circumstances."""

from __future__ import annotations

import contextlib
import multiprocessing
import queue
import sys
import threading
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from multiprocessing.shared_memory import SharedMemory
from types import ModuleType
from typing import Any

import numpy as np

from vidspec.decoding.protocol import DraftMessage, Failed
from vidspec.decoding.workers.draft import serve
from vidspec.decoding.workers.messages import Answer, CloseClip, Loaded, OpenClip, Order, Spans, Start
from vidspec.errors import GenerationError
from vidspec.models.identity import Identity
from vidspec.models.prompt import Question

__all__ = ["DraftProcess"]


class DraftProcess:
    """A spawned process with its own model, vision tower and cache; it serves one clip after the other.

    Args:
        start: model and settings.
    """

    def __init__(self, start: Start) -> None:
        context = multiprocessing.get_context("spawn")
        self.connection, theirs = context.Pipe()
        self.process: Any = context.Process(target=serve, args=(theirs, start), name="vidspec-draft", daemon=True)
        with _no_main():
            self.process.start()
        theirs.close()
        self.loaded: Loaded | None = None
        self.spans: queue.SimpleQueue[Spans] = queue.SimpleQueue()
        self._clip = 0
        self._block: SharedMemory | None = None
        self._listener: Callable[[Failed | Any], None] | None = None
        self._early: Failed | None = None
        self._lock = threading.Lock()
        self._reader = threading.Thread(target=_listen, args=(self.connection, self), daemon=True)
        self._ready = threading.Event()
        self._reader.start()

    @property
    def alive(self) -> bool:
        return bool(self.process.is_alive()) and self._early is None

    def wait_until_loaded(self, timeout: float) -> Identity:
        """Wait for the model, and say which it is.

        Raises:
            GenerationError: it failed, died or took longer than ``timeout`` seconds.
        """
        if not self._ready.wait(timeout):
            raise GenerationError(f"the draft worker has not loaded its model after {timeout:g} s", kind="worker")
        if self._early is not None:
            cause = RuntimeError(self._early.traceback) if self._early.traceback else None
            raise GenerationError(f"the draft worker failed: {self._early.error}", kind="worker") from cause
        if self.loaded is None:
            raise AssertionError("ready without a model")
        return self.loaded.identity

    def open(self, question: Question, room: int, *, eager: bool, listener: Callable[[Any], None]) -> int:
        """Begin a clip; its answers go to ``listener``, on another thread. Returns the clip's number."""
        frames = np.ascontiguousarray(question.clip.frames)
        with self._lock:
            self._clip += 1
            self._listener = listener
        self._block = SharedMemory(create=True, size=max(1, frames.nbytes))
        np.ndarray(frames.shape, dtype=np.uint8, buffer=self._block.buf)[:] = frames
        self._send(
            OpenClip(
                self._clip,
                self._block.name,
                frames.shape,
                tuple(float(t) for t in question.clip.timestamps),
                question.prompt,
                question.system,
                room,
                eager,
            )
        )
        return self._clip

    def send(self, message: DraftMessage, visual: int | None = None) -> None:
        """A protocol message for the clip that is open."""
        self._send(Order(self._clip, message, visual))

    def finish(self, timeout: float = 5.0) -> Spans | None:
        """End the clip: the draft stops, and says what it did. None if it does not answer."""
        with self._lock:
            self._listener = None
        self._send(CloseClip(self._clip))
        found = None
        while True:
            try:
                found = self.spans.get(timeout=timeout)
            except queue.Empty:
                break
            if found.clip == self._clip:
                break
        self._forget()
        return found

    def stop(self) -> None:
        """End the process, whatever it is doing."""
        with self._lock:
            self._listener = None
        with contextlib.suppress(OSError):
            self.connection.close()
        self.process.join(0.2)
        if self.process.is_alive():
            self.process.kill()  # it may be stopped or stuck in a pass: nothing gentler is certain
            self.process.join()
        self._forget()

    def _forget(self) -> None:
        block, self._block = self._block, None
        if block is not None:
            block.close()
            with contextlib.suppress(FileNotFoundError):
                block.unlink()

    def _send(self, order: object) -> None:
        with contextlib.suppress(OSError, ValueError):  # a closed pipe: the reader tells of it
            self.connection.send(order)

    def heard(self, message: object) -> None:
        """Called by the reader with everything the process sends."""
        if isinstance(message, Loaded):
            self.loaded = message
            self._ready.set()
            return
        if isinstance(message, Spans):
            self.spans.put(message)
            return
        if isinstance(message, Answer) and isinstance(message.result, Failed):
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
        if listener is not None:
            listener(failed)

    def exit_text(self) -> str:
        self.process.join(1.0)
        code = self.process.exitcode
        return f"its process ended with exit code {code}" if code is not None else "its pipe is closed"


@contextlib.contextmanager
def _no_main() -> Iterator[None]:
    """Start a process that does not run the user's script again.

    A spawned process imports the main module for what it may hold; the draft needs nothing of it, and a script without
    an ``if __name__ == "__main__"``, or one read from stdin, would fail there.
    """
    main = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


def _listen(connection: Connection, owner: DraftProcess) -> None:
    while True:
        try:
            message = connection.recv()
        except (EOFError, OSError):
            owner.gone(Failed("draft", owner.exit_text()))
            return
        owner.heard(message)
