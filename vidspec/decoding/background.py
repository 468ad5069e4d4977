"""Work in a thread of its own while its clip, and all others, go on."""

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
    """A call in a thread; :meth:`answer` waits for its result, and nothing else does.

    Args:
        call: touches no model that a loop runs.
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
        """Itself once it is done; the mailbox of the loop."""
        return [self._told] if self._told.done() else []

    def answer(self) -> Steps[T]:
        """The result of the call.

        Raises:
            Exception: raised by the call.
        """
        while not self._told.done():
            yield Receive(self, PATIENCE, "draft")
        return self._told.result()
