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
        self._told: Future[T] = Future()
        threading.Thread(target=self._work, name="vidspec-background", daemon=True).start()

    def _work(self) -> None:
        try:
            self._told.set_result(self._call())
        except BaseException as error:  # raised again by answer()
            self._told.set_exception(error)
        self.wake.set()

    def take(self) -> list[Future[T]]:
        """Return the finished future, if any; the loop's mailbox interface."""
        return [self._told] if self._told.done() else []

    def answer(self) -> Steps[T]:
        """Wait for the result of the call.

        Raises:
            Exception: raised by the call.
        """
        while not self._told.done():
            yield Receive(self, PATIENCE, "draft")
        return self._told.result()
