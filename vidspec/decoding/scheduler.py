"""The parallel schedule: messages to draft and target about one clip, and its text; no clock, thread or torch.

The schedule of PEARL (Liu et al. 2024), ParallelVLM 4.2 and App. B, and HIPPO 5.2. A round is one target pass:

- *Pre-verify*, nothing pending: the target generates the token of the next position, which verifies the first token
  that the draft proposes at the same time. If it is accepted, the rest of the draft's window is pending.
- *Post-verify*, tokens pending: the target verifies them, and the first of the new window that the draft proposes at
  the same time. If all are accepted, the rest of the new window is pending.
- After a rejected token the target's own is emitted, the draft stops between two forward passes, rolls back and starts
  after it; a pre-verify follows. There is no bonus token.

Both kinds are one here: a pass over the last emitted token and the pending window, ``gamma`` rows in the steady
state, whose last row is compared with the first of the draft's next tokens. An accepted round ends when the draft's
window is complete, a rejected one at once.

A loose rule works as for a sequential window, with the pending tokens as the window; the target's own token after them
is compared with the draft's next for equality only. Decision, as no paper combines the two: with a rule that never
accepts a mismatch this schedule is then lossless.

Parallel prefill is the round before the first: the target's prefill is a pass with nothing pending, and its first token
is compared with the draft's first start-up token. A draft that has not read its prompt yet delays nothing: the target
continues by itself, one token per pass, and the draft, once it is ready, starts after the emitted text.

The target may choose the draft's visual tokens during or after its prefill. The draft waits for the choice, or
(``late``, HIPPO) reads everything at once, drafts from it, and prunes its KV cache when the choice arrives.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from vidspec.acceptance.base import Verdict
from vidspec.decoding.limits import StoppingRules
from vidspec.decoding.protocol import (
    Propose,
    Proposed,
    Verify,
    VisibleTokens,
    WorkerFailed,
    WorkerOrder,
    WorkerResult,
)
from vidspec.drafting.base import Draft
from vidspec.errors import GenerationError
from vidspec.events.events import Mode, Round

if TYPE_CHECKING:
    from vidspec.draft_length.window import WindowSize


@dataclass(frozen=True)
class ParallelSettings(StoppingRules):
    """Settings of the schedule, and the stopping rules.

    Attributes:
        overlap: True if the draft reads its prompt while the target reads its own (``prefill: parallel``).
        startup: the most tokens that the draft may propose before the target has read its prompt, in ParallelVLM the
            window; None for as many as fit (HIPPO), at most ``rows``.
        rows: the most rows of one target pass; further pending tokens wait.
        kept: the visual tokens the draft may see, None for all; unused with ``await_kept``.
        await_kept: True if the target chooses them during or after its prefill.
        late: True if the draft, which overlaps, sees all of them until then; else it waits.
    """

    overlap: bool = True
    startup: int | None = None
    rows: int = 64
    kept: tuple[int, ...] | None = None
    await_kept: bool = False
    late: bool = False

    def __post_init__(self) -> None:
        if self.max_new_tokens < 1 or self.rows < 1 or (self.startup is not None and self.startup < 1):
            raise ValueError("max_new_tokens, rows and startup must be at least 1")


class WorkerLost(GenerationError):
    """The worker died or hangs; another may repeat the clip."""


class WorkerTraceback(Exception):
    """The traceback of another process, as text."""

    def __str__(self) -> str:
        return f"\n{self.args[0]}"


def worker_error(failed: WorkerFailed) -> GenerationError:
    """Return the error (kind ``worker``) of a worker that cannot continue; its cause has the worker's traceback."""
    kind = WorkerLost if failed.lost else GenerationError
    error = kind(f"the draft worker failed: {failed.error}", kind="worker")
    error.__cause__ = WorkerTraceback(failed.traceback) if failed.traceback else None
    return error


class Scheduler:
    """State machine of the parallel schedule: maps each worker result to the next messages and the completed round.

    The caller sets the round's ``elapsed``.

    Attributes:
        emitted: the text so far.
        finished: True once it has ended; later results are ignored.
    """

    def __init__(self, settings: ParallelSettings, gamma: WindowSize) -> None:
        self.settings, self.gamma = settings, gamma
        self.emitted: list[int] = []
        self.finished = False
        self._drafted: list[int] = []  # the draft's tokens after the emitted ones
        self._epoch = 0
        self._draft: Literal["absent", "reading", "ready"] = "absent"
        self._kept = settings.kept
        self._kept_known = settings.late or not settings.await_kept
        self._round = 0
        self._mode: Mode = "prefill"
        self._open = True  # the target runs a pass; its prefill counts as a pass with nothing pending
        self._pending = 0
        self._parked: Verdict | None = None  # waits for the draft's token at the same position
        self._window_end = 0  # length of the draft's text before the next round may open
        self._requested_length = 0  # length in the last request to the draft
        self._rollback: tuple[int | None, tuple[int, ...]] = None, ()  # of the next request
        self._round_gamma = gamma.gamma
        self._draft_s = 0.0
        self._aborted = 0

    def start(self) -> list[WorkerOrder]:
        """Return the first messages."""
        reads = self._read_draft_prompt() if self.settings.overlap and self._kept_known else []
        return [Verify(0, 0, ()), *reads]

    def receive(self, result: WorkerResult) -> tuple[list[WorkerOrder], Round | None]:
        """Return the messages, and the round if one is complete, that follow from a worker's result.

        Raises:
            GenerationError: the worker failed, see :func:`worker_error`.
            RuntimeError: the protocol does not allow this result here.
        """
        if isinstance(result, WorkerFailed):
            raise worker_error(result)
        if self.finished:
            return [], None
        if isinstance(result, Proposed):
            return self._add_proposed(result)
        if isinstance(result, Verdict):
            return self._settle(result) if self._mode != "prefill" else self._target_ready(result)
        if isinstance(result, VisibleTokens):
            if self.settings.late:
                return [result], None
            self._kept, self._kept_known = result.indices, True
            return (self._read_draft_prompt() if self.settings.overlap or self._mode != "prefill" else []), None
        return self._draft_ready(), None

    def _read_draft_prompt(self) -> list[WorkerOrder]:
        """Return the draft's prefill and, while the target is still in its own, the request for start-up tokens."""
        self._draft = "reading"
        sends: list[WorkerOrder] = [VisibleTokens(self._kept)]
        if self._mode == "prefill" and self.settings.overlap:
            startup = self.settings.rows if self.settings.startup is None else self.settings.startup
            sends += self._propose(min(startup, self.settings.max_new_tokens))
        return sends

    def _target_ready(self, first: Verdict) -> tuple[list[WorkerOrder], Round | None]:
        sends, settled = self._settle(first)
        if self._draft == "absent" and self._kept_known and not self.finished:
            sends += self._read_draft_prompt()
        return sends, settled

    def _draft_ready(self) -> list[WorkerOrder]:
        if self._draft != "reading":
            raise RuntimeError("the draft read a prompt that nobody gave it")
        self._draft = "ready"
        if not self.emitted:
            return []
        # The target continued by itself; its running pass becomes the pre-verify of the draft's first token.
        self._mode = "pre"
        self._restart_draft(0, tuple(self.emitted))
        return self._request_window()

    def _add_proposed(self, result: Proposed) -> tuple[list[WorkerOrder], Round | None]:
        self._draft_s += result.seconds
        if result.epoch != self._epoch:
            self._aborted += 1
            return [], None
        if result.position != self._known_length or self._draft_ended:
            raise RuntimeError(f"unexpected answer {result}: {self._known_length} tokens are known")
        self._drafted.append(result.token)
        if self._parked is not None:
            verdict, self._parked = self._parked, None
            return self._settle(verdict)
        return ([] if self._open else self._open_round()), None

    def _settle(self, verdict: Verdict) -> tuple[list[WorkerOrder], Round | None]:
        """Process the target's result of the open round; park it until the draft's token for its position arrives."""
        if verdict.round != self._round or not self._open or verdict.accepted > self._pending:
            raise RuntimeError(f"unexpected answer {verdict} in round {self._round} with {self._pending} pending")
        all_accepted = verdict.accepted == self._pending
        candidate = self._drafted[self._pending] if len(self._drafted) > self._pending else None
        if all_accepted and candidate is None and self._draft == "ready":
            self._parked = verdict
            return [], None
        self._open = False
        verdict = replace(verdict, draft=Draft.chain(self._drafted[: self._pending + 1]))  # with the candidate
        tokens, self.finished = self.settings.cut(verdict.tokens, self.emitted)
        emitted = len(tokens)
        passed = all_accepted and candidate == verdict.token and emitted == verdict.accepted + 1
        no_draft = all_accepted and candidate is None
        origins = (*verdict.origins[:-1], "draft") if passed else verdict.origins
        start, epoch = len(self.emitted), self._epoch
        self.emitted += tokens
        accepted = min(verdict.accepted, emitted) + passed
        lost = 0 if passed and not self.finished else len(self._drafted) - accepted
        wasted = lost + self._aborted
        settled = Round(
            tokens,
            origins[:emitted],
            drafted=accepted + wasted,
            accepted=accepted,
            elapsed=0.0,
            mode="alone" if no_draft and self._mode != "prefill" else self._mode,
            start=start,
            epoch=epoch,
            rows=self._pending + 1 if self._round else 0,
            gamma=self._round_gamma,
            wasted=wasted,
            aborted=self._aborted,
            draft_s=self._draft_s,
            verify_s=verdict.seconds,
            loosened=tuple(loose for loose in verdict.loosened if loose.at < emitted),
            rejected=() if passed else tuple(one for one in verdict.rejected if one.at < emitted),
            probabilities=verdict.probabilities[:emitted],
        )
        self._draft_s, self._aborted = 0.0, 0
        return self._continue_draft(start, verdict, passed=passed, no_draft=no_draft), settled

    def _continue_draft(self, start: int, verdict: Verdict, *, passed: bool, no_draft: bool) -> list[WorkerOrder]:
        """Stop or continue the draft, or restart it after the target's own token."""
        if self.finished:
            return [] if self._draft == "absent" else [Propose(self._epoch, 0)]
        if passed:
            del self._drafted[: verdict.accepted + 1]
            return self._open_round()
        sends: list[WorkerOrder] = []
        if not no_draft:
            self._restart_draft(start + verdict.accepted, (verdict.token,))
        elif self._requested_length:  # start-up tokens would come too late: the draft gets its start when it is ready
            sends = self._propose(0)
        self._window_end = 0
        return sends + self._open_round()

    def _restart_draft(self, keep: int, tokens: tuple[int, ...]) -> None:
        """Set the draft's text with the next request, which follows at once."""
        self._epoch += 1
        self._drafted.clear()
        self._requested_length, self._rollback = 0, (keep, tokens)

    def _open_round(self) -> list[WorkerOrder]:
        """Open the next round, unless the draft's window is incomplete."""
        if self._known_length < self._window_end and not self._draft_ended:
            return []
        window = self._drafted[: self.settings.rows - 1]
        if self._draft_ended and len(window) == len(self._drafted):
            window.pop()  # the target's own token is compared with the last one: no token follows it
        self._round += 1
        self._open = True
        self._pending = len(window)
        self._mode = "post" if window else "pre"
        self._round_gamma = self.gamma.gamma
        return [
            Verify(self._round, len(self.emitted), tuple(window)),
            *self._request_window(),
        ]

    def _request_window(self) -> list[WorkerOrder]:
        """Request a window of new tokens after the pending ones."""
        if self._draft != "ready" or self._draft_ended:
            return []
        self._window_end = min(len(self.emitted) + self._pending + self._round_gamma, self.settings.max_new_tokens)
        return self._propose(self._window_end)

    def _propose(self, until: int) -> list[WorkerOrder]:
        if until == self._requested_length:
            return []
        (keep, tokens), self._rollback = self._rollback, (None, ())
        self._requested_length = until
        return [Propose(self._epoch, until, keep, tokens)]

    @property
    def _known_length(self) -> int:
        """Known length of the draft's text."""
        return len(self.emitted) + len(self._drafted)

    @property
    def _draft_ended(self) -> bool:
        """True if the draft's text has ended."""
        ended = bool(self._drafted) and self._drafted[-1] in self.settings.eos
        return ended or self._known_length >= self.settings.max_new_tokens
