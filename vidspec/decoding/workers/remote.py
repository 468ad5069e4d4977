"""The draft of one clip as the target's side has it: messages to and from its process; no wait is without limit."""

from __future__ import annotations

import time
from collections.abc import Callable

from vidspec.decoding.protocol import DraftMessage, Failed, PrefillDraft, Prune, Result
from vidspec.decoding.workers.heartbeat import PATIENCE
from vidspec.decoding.workers.mailbox import DraftAnswer, Mailbox
from vidspec.decoding.workers.messages import Spans
from vidspec.decoding.workers.process import DraftProcess
from vidspec.engine.requests import Receive, Steps
from vidspec.events.trace import Trace

__all__ = ["RemoteDraft"]

#: Seconds that the end of a clip waits for the draft's account of it. A draft that looks at a video takes longer; it
#: is not waited for, and the clip's trace lacks its lane.
ACCOUNT = 5.0


class RemoteDraft:
    """The draft of one clip.

    Args:
        process: where it works, beside the drafts of other clips.
        opened: begins the clip there, given who takes its answers, and gives its number; called when it is first
            needed.
        timeout: seconds without any answer after which the process counts as lost; while it reads a prompt, this
            clip's or another's, :data:`PATIENCE`, as long as it is seen to work.
        visual: how many visual tokens the target has, if that is known yet.
        trace: where waiting for it is noted, in the target's lane.
    """

    def __init__(
        self,
        process: DraftProcess,
        opened: Callable[[Callable[[DraftAnswer], None]], int],
        timeout: float,
        visual: Callable[[], int | None],
        trace: Trace,
    ) -> None:
        self.process, self.timeout, self.trace, self.mailbox = process, timeout, trace, Mailbox()
        self._opened, self._visual = opened, visual
        self._clip: int | None = None
        self._closed = False

    def begin(self) -> int:
        """Open the clip; its number."""
        if self._clip is None:
            self._clip = self._opened(self.mailbox.put)
        return self._clip

    def send(self, message: DraftMessage) -> None:
        """Send it a message; returns at once."""
        sees = isinstance(message, (PrefillDraft, Prune))
        self.process.send(self.begin(), message, self._visual() if sees else None)

    def receive(self) -> Steps[list[Result]]:
        """Its answers since the last time, at least one, or that it is lost."""
        begun, since = self.trace.elapsed(), time.monotonic()
        while not (found := (yield Receive(self.mailbox, min(1.0, self.timeout)))):
            silent = time.monotonic() - since
            if self.process.reading and silent < PATIENCE:
                silent = min(silent, self.process.heartbeat.silent())
            if silent >= self.timeout:
                return [Failed("draft", f"no answer for {self.timeout:g} s", lost=True)]
        self.trace.add("wait", "target", begun, self.trace.elapsed())
        return found  # type: ignore[no-any-return]

    def close(self) -> None:
        """The clip is over; the process goes on with the others."""
        if self._clip is not None and not self._closed:
            self._closed = True
            self.process.close(self._clip)

    def account(self) -> Steps[Spans | None]:
        """End the clip; what the draft did, if it says so, and soon."""
        if self._clip is None:
            return None
        self.close()
        until = time.monotonic() + ACCOUNT
        while (left := until - time.monotonic()) > 0:
            for found in (yield Receive(self.mailbox, left)):
                if isinstance(found, Spans):
                    return found
                if isinstance(found, Failed):
                    return None
        return None
