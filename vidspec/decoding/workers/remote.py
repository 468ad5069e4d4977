"""The target's handle of one clip's draft: messages to and from its process; every wait is bounded."""

from __future__ import annotations

import time
from collections.abc import Callable

from vidspec.decoding.protocol import DraftMessage, PrefillDraft, Prune, WorkerFailed, WorkerResult
from vidspec.decoding.workers.mailbox import ClipMailbox, DraftAnswer
from vidspec.decoding.workers.messages import DraftSpans
from vidspec.decoding.workers.process import PATIENCE, DraftProcess
from vidspec.engine.requests import Receive, Steps
from vidspec.events.trace import Trace

__all__ = ["RemoteDraft"]

#: Seconds that the end of a clip waits for the draft's spans. A draft that encodes a video takes longer; it is not
#: waited for, and the clip's trace lacks its lane.
SPANS_TIMEOUT = 5.0


class RemoteDraft:
    """The draft of one clip.

    Args:
        process: process of the drafts of all clips.
        open_clip: opens the clip there with a listener for its answers, and returns its number; called at first use.
        timeout: seconds without any answer after which the process counts as lost; while it prefills this clip or
            another, :data:`PATIENCE` seconds, as long as it is active.
        visual: returns the number of the target's visual tokens, if known yet.
        trace: times the waiting for it, in the target's lane.
    """

    def __init__(
        self,
        process: DraftProcess,
        open_clip: Callable[[Callable[[DraftAnswer], None]], int],
        timeout: float,
        visual: Callable[[], int | None],
        trace: Trace,
    ) -> None:
        self.process, self.timeout, self.trace, self.mailbox = process, timeout, trace, ClipMailbox()
        self._open_clip: Callable[[Callable[[DraftAnswer], None]], int] | None = open_clip
        self._visual = visual
        self._clip: int | None = None
        self._closed = False

    def begin(self) -> int:
        """Open the clip and return its number."""
        if self._clip is None:
            assert self._open_clip is not None
            self._clip = self._open_clip(self.mailbox.put)
            self._open_clip = None  # it refers to the frames
        return self._clip

    def send(self, message: DraftMessage) -> None:
        """Send a message without waiting."""
        sees = isinstance(message, (PrefillDraft, Prune))
        self.process.send(self.begin(), message, self._visual() if sees else None)

    def receive(self) -> Steps[list[WorkerResult]]:
        """Return its answers since the last call, at least one, or ``WorkerFailed`` if it is lost."""
        begun, since = self.trace.elapsed(), time.monotonic()
        while not (answers := (yield Receive(self.mailbox, min(1.0, self.timeout)))):
            silent = time.monotonic() - since
            if self.process.reading and silent < PATIENCE:
                silent = min(silent, self.process.process.silent_s())
            if silent >= self.timeout:
                return [WorkerFailed("draft", f"no answer for {self.timeout:g} s", lost=True)]
        self.trace.add("wait", "target", begun, self.trace.elapsed())
        return answers  # type: ignore[no-any-return]

    def close(self) -> None:
        """End the clip; the process continues with the others."""
        if self._clip is not None and not self._closed:
            self._closed = True
            self.process.close(self._clip)

    def collect_spans(self) -> Steps[DraftSpans | None]:
        """End the clip; return the draft's spans if they arrive within :data:`SPANS_TIMEOUT` seconds."""
        if self._clip is None:
            return None
        self.close()
        until = time.monotonic() + SPANS_TIMEOUT
        while (left := until - time.monotonic()) > 0:
            for message in (yield Receive(self.mailbox, left)):
                if isinstance(message, DraftSpans):
                    return message
                if isinstance(message, WorkerFailed):
                    return None
        return None
