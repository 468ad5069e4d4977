"""Target thread and draft process as the scheduler's workers; no wait is for ever."""

from __future__ import annotations

import queue
import time
from collections.abc import Callable

from vidspec.decoding.protocol import Failed, Message, PrefillDraft, PrefillTarget, Ready, Result, Verify, Worker
from vidspec.decoding.workers.messages import Spans
from vidspec.decoding.workers.process import DraftProcess
from vidspec.decoding.workers.target import TargetThread

__all__ = ["PATIENCE", "Pair"]

#: Seconds that one pass of the target may take. The prompt of a long video, or weights that lie on a disk, take
#: minutes, and in turns nobody would ask; a draft that is done waits meanwhile and owes nothing.
PATIENCE = 1800.0


class Pair:
    """The workers of one clip.

    Args:
        target: makes the target's thread, given who takes its answers.
        draft: the draft's process.
        opened: begins the clip in it, given who takes its answers, and gives its number; called when the draft is first
            needed, or at once.
        eager: whether the draft begins at once.
        timeout: seconds without any answer after which the one that owes it has failed. While the target is at work
            it is :data:`PATIENCE`, if that is longer; and while the draft reads its prompt, as long as it is seen to
            work.
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
        self._clip: int | None = None
        self._reading = False
        if eager:
            self._begin()
        try:
            self.target = target(self._answers.put)
        except BaseException:
            self.close(wait=False)
            raise

    def _begin(self) -> int:
        if self._clip is None:
            self._clip = self._opened(self._answers.put)
            self._reading = True
        return self._clip

    def submit(self, worker: Worker, message: Message) -> None:
        if isinstance(message, (PrefillTarget, Verify)):
            self.target.submit(message)
            return
        clip = self._begin()
        self.draft.send(clip, message, self._visual() if isinstance(message, PrefillDraft) else None)

    def result(self) -> Result:
        """The next answer of either.

        Raises:
            BaseException: what went wrong in the target's thread, as it is.
        """
        last = seen = time.monotonic()
        while True:
            try:
                found = self._answers.get(timeout=min(1.0, self.timeout))
            except queue.Empty:
                late: Worker = "target" if self.target.busy else "draft"
                limit, now = max(self.timeout, PATIENCE) if late == "target" else self.timeout, time.monotonic()
                if late == "draft" and self._reading and self.draft.pulse.beats() and now - last < PATIENCE:
                    seen = now
                if now - (last if late == "target" else seen) >= limit:
                    self.target.lost = late == "target"
                    return Failed(late, f"no answer for {limit:g} s", lost=late == "draft")
                continue
            if isinstance(found, BaseException):
                raise found
            self._reading = self._reading and not (isinstance(found, Ready) and found.worker == "draft")
            return found

    def abort(self) -> None:
        """Stop the target's thread. The draft's process is told when the clip is closed."""
        self.target.stop()

    @property
    def is_current(self) -> bool:
        """Whether the draft's process is not at a later clip already."""
        return self._clip is None or self.draft.serves(self._clip)

    def close(self, *, wait: bool) -> Spans | None:
        """End the clip on the draft's side; what it did if it says so, and if ``wait``, soon."""
        if self._clip is None:
            return None
        return self.draft.finish(self._clip) if wait else self.draft.finish(self._clip, 0.0)
