"""Target thread and draft process as the scheduler's workers; no wait is for ever."""

from __future__ import annotations

import queue
import time
from collections.abc import Callable

from vidspec.decoding.protocol import Failed, Message, PrefillDraft, PrefillTarget, Result, Verify, Worker
from vidspec.decoding.workers.process import DraftProcess
from vidspec.decoding.workers.target import TargetThread

__all__ = ["Pair"]


class Pair:
    """The workers of one clip.

    Args:
        target: makes the target's thread, given who takes its answers.
        draft: the draft's process.
        opened: begins the clip in it, given who takes its answers; called when the draft is first needed, or at once.
        eager: whether the draft begins at once.
        timeout: seconds without any answer after which the one that owes it has failed.
        visual: how many visual tokens the target has, if that is known yet.
    """

    def __init__(
        self,
        target: Callable[[Callable[[Result | BaseException], None]], TargetThread],
        draft: DraftProcess,
        opened: Callable[[Callable[[Result], None]], int],
        *,
        eager: bool,
        timeout: float,
        visual: Callable[[], int | None],
    ) -> None:
        self._answers: queue.SimpleQueue[Result | BaseException] = queue.SimpleQueue()
        self.draft, self.timeout, self._visual = draft, timeout, visual
        self._opened = opened
        self._open = False
        if eager:
            self._begin()
        self.target = target(self._answers.put)

    def _begin(self) -> None:
        if not self._open:
            self._open = True
            self._opened(self._answers.put)

    def submit(self, worker: Worker, message: Message) -> None:
        if isinstance(message, (PrefillTarget, Verify)):
            self.target.submit(message)
            return
        self._begin()
        self.draft.send(message, self._visual() if isinstance(message, PrefillDraft) else None)

    def result(self) -> Result:
        """The next answer of either.

        Raises:
            BaseException: what went wrong in the target's thread, as it is.
        """
        last = time.monotonic()
        while True:
            try:
                found = self._answers.get(timeout=min(1.0, self.timeout))
            except queue.Empty:
                if time.monotonic() - last >= self.timeout:
                    late: Worker = "target" if self.target.busy else "draft"
                    return Failed(late, f"no answer for {self.timeout:g} s")
                continue
            if isinstance(found, BaseException):
                raise found
            return found

    def abort(self) -> None:
        """Stop the target's thread. The draft's process is told when the clip is finished."""
        self.target.stop()
