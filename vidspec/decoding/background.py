"""Background tasks: calls in a thread of their own while all clips continue."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Generic, TypeVar

from vidspec.engine.requests import Receive, Steps
from vidspec.events.wake import WakeEvent

__all__ = ["BackgroundTask"]

T = TypeVar("T")
#: Seconds after which a loop checks for an answer without a wake event.
PATIENCE = 1.0


class BackgroundTask(Generic[T]):
    """A call in a thread; only :meth:`answer` waits for its result.

    Args:
        call: must not use a model that a loop runs.
    """

    def __init__(self, call: Callable[[], T]) -> None:
        self.wake = WakeEvent()
        self._call = call
        self._future: Future[T] = Future()
        threading.Thread(target=self._run, name="vidspec-background", daemon=True).start()

    def _run(self) -> None:
        try:
            self._future.set_result(self._call())
        except BaseException as error:  # raised again by answer()
            self._future.set_exception(error)
        self.wake.set()

    def take(self) -> list[Future[T]]:
        """Return the finished future, if any; the loop's mailbox interface."""
        return [self._future] if self._future.done() else []

    def answer(self) -> Steps[T]:
        """Wait for the result of the call.

        Raises:
            Exception: raised by the call.
        """
        while not self._future.done():
            yield Receive(self, PATIENCE, "draft")
        return self._future.result()
