"""Two simulated workers that take virtual time instead of running models, for exact tests and times of schedules.

``SimulatedWorkers`` speaks the protocol of ``vidspec.decoding.protocol``: it holds the tokens that the caches of real
workers would hold, checks every message against them, and moves a virtual clock from event to event. No threads, no
waiting, no torch.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from research.replay.virtual import Block, Costs, Run, Text, WorkerName, verified
from vidspec.acceptance.base import Verdict
from vidspec.decoding.protocol import (
    PromptRead,
    Propose,
    Proposed,
    Verify,
    VisibleTokens,
    WorkerOrder,
    WorkerResult,
)
from vidspec.decoding.scheduler import Scheduler
from vidspec.draft_length.costs import PassCosts
from vidspec.events.events import Round


class Deadlock(RuntimeError):
    """Raised if the scheduler waits while no worker works and no message is in flight."""


@dataclass
class _Target:
    """The target's state: ``text`` is the prompt's continuation; the cache lacks its last token."""

    text: list[int] = field(default_factory=list)
    busy: bool = False


@dataclass
class _Draft:
    """The draft's state: ``text`` has both emitted and proposed tokens."""

    text: list[int] = field(default_factory=list)
    inbox: deque[WorkerOrder] = field(default_factory=deque)
    eos: frozenset[int] = frozenset()
    busy: bool = False
    read: bool = False
    epoch: int = 0
    until: int = 0


class SimulatedWorkers:
    """Both workers, and the channels between them and the scheduler.

    Args:
        tie: orders events of the same instant; a random one explores the orders that a real machine may show.
        measured: receives the times of all passes.
    """

    def __init__(
        self,
        text: Text,
        costs: Costs,
        tie: Callable[[], float] = lambda: 0.0,
        measured: PassCosts | None = None,
    ) -> None:
        self.text, self.costs, self.tie, self.measured = text, costs, tie, measured or PassCosts()
        self.now = 0.0
        self.blocks: list[Block] = []
        self.draft_forwards = 0
        self.target, self.draft = _Target(), _Draft()
        self._events: list[tuple[float, float, int, Callable[[], None]]] = []
        self._results: deque[WorkerResult] = deque()
        self._last: dict[tuple[WorkerName, str], tuple[float, float]] = {}  # messages of one way do not overtake
        self._count = 0

    def submit(self, message: WorkerOrder) -> None:
        """Send a message."""
        if isinstance(message, Verify):
            self._travel("target", "in", lambda: self._tell_target(message))
        else:
            self._travel("draft", "in", lambda: self._tell_draft(message))

    def result(self) -> WorkerResult:
        """Return the next result of either worker, advancing the clock; one worker's results come in order.

        Raises:
            Deadlock: there will never be one.
        """
        while not self._results:
            if not self._events:
                raise Deadlock(f"at {self.now} s nothing is on its way")
            self.now, _, _, happen = heapq.heappop(self._events)
            happen()
        return self._results.popleft()

    def draft_text(self) -> list[int]:
        """Return the draft's text after the messages that have reached it."""
        text = list(self.draft.text)
        for message in self.draft.inbox:
            if isinstance(message, Propose) and message.keep is not None:
                text = [*text[: message.keep], *message.tokens]
        return text

    def _at(self, time: float, happen: Callable[[], None]) -> None:
        self._count += 1
        heapq.heappush(self._events, (time, self.tie(), self._count, happen))

    def _travel(self, worker: WorkerName, way: str, happen: Callable[[], None]) -> None:
        arrival = max((self.now + self.costs.latency(), self.tie()), self._last.get((worker, way), (0.0, 0.0)))
        self._last[worker, way] = arrival
        self._count += 1
        heapq.heappush(self._events, (*arrival, self._count, happen))

    def _answer(self, worker: WorkerName, result: WorkerResult) -> None:
        self._travel(worker, "out", lambda: self._results.append(result))

    def _tell_target(self, message: Verify) -> None:
        state = self.target
        if state.busy:
            raise AssertionError(f"the target is at work and gets {message}")
        state.busy = True
        if not message.round:
            end = self.now + self.costs.target_prefill
            self.blocks.append(Block("target", "prefill", self.now, end))
            if self.costs.signals is not None:
                self._at(self.now + self.costs.signals, lambda: self._answer("target", VisibleTokens((0,))))
            self._at(end, self._target_read)
        else:
            if message.prefix != len(state.text):
                raise AssertionError(f"{message} to a target that has {len(state.text)} tokens")
            rows = len(message.window) + 1
            seconds = self.costs.verify(rows)
            self.blocks.append(Block("target", "verify", self.now, self.now + seconds, message.prefix, rows=rows))
            self._at(self.now + seconds, lambda: self._verified(message, seconds))

    def _target_read(self) -> None:
        self.target.busy = False
        token = self.text.choose(())
        self.target.text.append(token)
        self._answer("target", Verdict((), token))

    def _verified(self, message: Verify, seconds: float) -> None:
        self.measured.add("target", 1, len(message.window) + 1, seconds)
        accepted, token = verified(self.text, self.target.text, message.window)
        self.target.text.append(token)
        self.target.busy = False
        self._answer("target", Verdict.chain(accepted, token, round=message.round, seconds=seconds))

    def _tell_draft(self, message: WorkerOrder) -> None:
        self.draft.inbox.append(message)
        if not self.draft.busy:
            self._draft_on()

    def _draft_on(self) -> None:
        """Between two forward passes, handle all messages, then do the next piece of work, if any."""
        state = self.draft
        while state.inbox and not state.busy:
            self._take(state.inbox.popleft())
        ended = bool(state.text) and state.text[-1] in state.eos
        if state.busy or not state.read or ended or len(state.text) >= state.until:
            return
        if not state.text:  # the prefill's own logits give the first token
            self._propose(0.0)
            self._draft_on()
            return
        state.busy = True
        self.draft_forwards += 1
        seconds = self.costs.draft()
        self.blocks.append(Block("draft", "draft", self.now, self.now + seconds, len(state.text), state.epoch))
        self._at(self.now + seconds, lambda: self._drafted(seconds))

    def _take(self, message: WorkerOrder) -> None:
        state = self.draft
        if isinstance(message, VisibleTokens):
            if not state.read:  # to prune costs nothing here
                state.busy = True
                end = self.now + self.costs.draft_prefill
                self.blocks.append(Block("draft", "prefill", self.now, end))
                self._at(end, self._draft_read)
            return
        if not isinstance(message, Propose):
            raise AssertionError(f"the draft gets {message}")
        if message.keep is not None:
            if message.keep > len(state.text) or message.epoch <= state.epoch:
                raise AssertionError(f"{message} to a draft of {len(state.text)} tokens in epoch {state.epoch}")
            state.text[message.keep :] = message.tokens
            state.epoch = message.epoch
        elif message.epoch != state.epoch:
            raise AssertionError(f"{message} to a draft in epoch {state.epoch}")
        state.until = message.until

    def _draft_read(self) -> None:
        self.draft.busy, self.draft.read = False, True
        self._answer("draft", PromptRead())
        self._draft_on()

    def _drafted(self, seconds: float) -> None:
        self.measured.add("draft", 1, 1, seconds)
        self.draft.busy = False
        self._propose(seconds)
        self._draft_on()

    def _propose(self, seconds: float) -> None:
        state = self.draft
        token = self.text.propose(state.text)
        state.text.append(token)
        self._answer("draft", Proposed(state.epoch, len(state.text) - 1, token, seconds))


def drive(scheduler: Scheduler, workers: SimulatedWorkers) -> Iterator[Round]:
    """Pass messages and results between scheduler and workers until the text ends; yields every round."""
    workers.draft.eos = scheduler.settings.eos
    for send in scheduler.start():
        workers.submit(send)
    while not scheduler.finished:
        sends, outcome = scheduler.receive(workers.result())
        for send in sends:
            workers.submit(send)
        if outcome is not None:
            yield outcome


def simulate(scheduler: Scheduler, workers: SimulatedWorkers) -> Run:
    """Run ``scheduler`` on ``workers`` to the end of the text."""
    rounds: list[Round] = []
    times: list[float] = []
    for outcome in drive(scheduler, workers):
        rounds.append(outcome)
        times.append(workers.now)
    return Run(tuple(scheduler.emitted), tuple(rounds), tuple(times), tuple(workers.blocks), workers.draft_forwards)
