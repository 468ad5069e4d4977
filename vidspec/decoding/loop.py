"""The decoding loop: answers the requests of many clips, so that a model's pass serves every clip that waits for it.

It handles generators and their requests (:mod:`vidspec.engine.requests`); no models, texts or torch.

A turn is one pass. Models that draft go first: the target runs only when no clip waits for a draft model, and then
verifies the windows of all clips. No clip starves: it waits for one window of each other clip, and for as many of their
prompt rows as one pass may have.
"""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Callable, Hashable
from contextlib import nullcontext
from typing import Any, NamedTuple, TypeVar

from vidspec.engine.overlap import overlap
from vidspec.engine.requests import Chain, Encode, EngineRequest, Forward, ModelLane, Receive, StaticTree, Steps
from vidspec.engine.rows import ChainRule
from vidspec.events.trace import Trace
from vidspec.events.wake import WakeEvent

D = TypeVar("D", Chain, StaticTree)

#: Most prompt rows in a pass that other clips wait for.
SHARED = 512


class PassRecord(NamedTuple):
    """One pass: its sequences and rows, the number of each that belong to prompts, and its time.

    A chain drafted in one call counts as the mean of its ``passes``; ``grows``: a tree grows with it.
    """

    lane: ModelLane
    sequences: float
    rows: float
    prompts: int
    prompt_rows: int
    seconds: float
    passes: int = 1
    grows: bool = False


class LoopClient:
    """A decoding in the loop.

    Args:
        key: identifies it in the loop.
        steps: yields requests; may be set later, before :meth:`Loop.begin`.
        trace: its ``waited`` grows by the time in which others are served.

    Attributes:
        request: the pending request; None before it begins and after its end.
        since: time of the request, by the loop's clock.
        over: True once ``steps`` has ended, by returning ``value`` or by raising ``error``.
        deadline: time of abandonment, on ``time.monotonic``; None for never.
        overlaps: True if work that its next request does not need may be left in ``later``.
        later: runs while a device computes, at the latest before the decoding is resumed.
        failed: raised by it.
    """

    def __init__(self, key: Hashable, steps: Steps[object] | None = None, trace: Trace | None = None) -> None:
        self.key, self.trace = key, trace or Trace()
        self.steps = steps
        self.request: EngineRequest | None = None
        self.over = False
        self.deadline: float | None = None
        self.value: object = None
        self.error: Exception | None = None
        self.since = 0.0
        self.overlaps = False
        self.later: Callable[[], None] | None = None
        self.failed: Exception | None = None

    def run_later(self) -> None:
        """Run what was left for later."""
        work, self.later = self.later, None
        if work is not None:
            try:
                work()
            except Exception as error:
                self.failed = error


class StepInterrupt(BaseException):
    """Raised inside a step that does not end. No ``Exception``: a part that catches those does not catch it."""


class StepWatch:
    """Interrupts a step that still runs after its decoding's deadline, from a thread of its own.

    The exception is raised asynchronously, between two instructions of Python; code in C is not interrupted. A step is
    left alone for :attr:`grace` seconds, as it may be changing what decodings share, and interrupted again if it goes
    on. :meth:`Loop._resume` writes ``running`` before a step and None after it; then nothing more is thrown, and
    ``thrown`` says that an exception may be pending, which :meth:`settle` takes back.
    """

    def __init__(self) -> None:
        self.running: tuple[LoopClient, float] | None = None
        self.thrown, self.grace = False, 5.0
        self._throwing, self._closed, self._stepper = False, False, 0
        self._wanted = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Watch the steps of the calling thread from now on."""
        self._wanted.set()
        if self._thread is None:
            self._stepper = threading.get_ident()
            self._thread = threading.Thread(target=self._watch, name="vidspec-step-watch", daemon=True)
            self._thread.start()

    def pause(self) -> None:
        """Sleep until the next :meth:`start`: no step runs."""
        self._wanted.clear()
        if self._closed:
            self._wanted.set()

    def close(self) -> None:
        """End the thread."""
        self._closed = True
        self._wanted.set()

    def settle(self) -> None:
        """Take back an exception that was thrown too late."""
        while self._throwing:
            time.sleep(0)
        try:
            _throw(self._stepper)  # replaces a pending one. Null would too, and leave CPython 3.11's flag for it set
            while True:
                time.sleep(0)
        except StepInterrupt:
            self.thrown = False

    def _watch(self) -> None:
        while self._wanted.wait() and not self._closed:
            self._check()
            time.sleep(self.grace / 5)

    def _check(self) -> None:
        if (step := self.running) is None:
            return
        (client, begun), now = step, time.monotonic()
        if client.deadline is not None and now > client.deadline and now - begun > self.grace:
            self._throwing = self.thrown = True
            if self.running is step:
                _throw(self._stepper)
            self._throwing = False


def _throw(thread: int) -> None:
    """Make an interrupt pending in a thread."""
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(StepInterrupt))


class Loop:
    """Runs decodings in flight.

    Args:
        now: returns the time in seconds.
        on_pass: called with every pass.
        wake: event to wait for while all decodings wait for messages.
        synchronise: waits for queued work of devices. Not called after passes with logits: the read-back of their
            tokens waits for the device, and nothing is queued after it.
        overlaps: True if devices compute while the host does what clips leave for later.
    """

    def __init__(
        self,
        now: Callable[[], float] = time.perf_counter,
        on_pass: Callable[[PassRecord], None] = lambda passing: None,
        wake: WakeEvent | None = None,
        synchronise: Callable[[], None] = lambda: None,
        *,
        overlaps: bool = False,
    ) -> None:
        self.now, self.on_pass, self.wake, self.synchronise = now, on_pass, wake or WakeEvent(), synchronise
        self.watch = StepWatch()
        self._clients: dict[Hashable, LoopClient] = {}
        self._encoded_last, self.overlaps = False, overlaps
        self._leaving: list[LoopClient] = []  # that left work for later
        self._reported: list[LoopClient] = []  # whose work has been done since the last turn

    def __len__(self) -> int:
        return len(self._clients)

    def __contains__(self, key: Hashable) -> bool:
        return key in self._clients

    def begin(self, client: LoopClient) -> None:
        """Add a decoding and run it to its first request.

        Raises:
            ValueError: its key is in flight.
        """
        if client.key in self._clients:
            raise ValueError(f"{client.key!r} is in flight already")
        self._clients[client.key] = client
        client.over, client.error, client.request, client.overlaps = False, None, None, self.overlaps
        self._resume(client)

    def drop(self, key: Hashable) -> None:
        """Abandon a decoding; no effect if the key is not in flight."""
        client = self._clients.pop(key, None)
        if client is not None and client.steps is not None:
            client.steps.close()

    def close(self) -> None:
        """Abandon all decodings."""
        for key in list(self._clients):
            self.drop(key)

    def turn(self, patience: float | None = None) -> list[LoopClient]:
        """Run one pass, or wait if none is requested; return the decodings that were resumed or did what was left.

        Args:
            patience: most seconds to wait; None for no limit.
        """
        resumed = [self._resume(client, messages) for client, messages in self._take_messages()]
        heard = bool(resumed)
        waiting: dict[object, list[tuple[LoopClient, Forward]]] = {}
        encodes: list[tuple[LoopClient, Encode]] = []
        for client in self._clients.values():
            request = client.request
            if isinstance(request, Forward):
                waiting.setdefault(request.engine.model, []).append((client, request))
            elif isinstance(request, Encode):
                encodes.append((client, request))
        if encodes and not (waiting and self._encoded_last):  # encodes and passes alternate
            self._encoded_last = True
            self._run_later()
            resumed += self._encode(encodes)
        elif waiting:
            self._encoded_last = False
            drafts_first = min(waiting.values(), key=lambda pairs: pairs[0][1].lane)
            with overlap(self._run_later) if self._leaving else nullcontext():
                answers = self._answer_requests(drafts_first)
            resumed += [self._resume(client, answer) for client, answer in answers]
        elif self._clients and not resumed:
            self._run_later()
            if not self._reported:
                self._wait(patience)
        reported, self._reported = self._reported, []
        # What heard a message may be among the others too.
        return list(dict.fromkeys([*reported, *resumed])) if reported or heard else resumed

    def _run_later(self) -> None:
        """Run the work that clips have left for later."""
        leaving, self._leaving = self._leaving, []
        for client in leaving:
            if client.later is not None and self._clients.get(client.key) is client:
                client.run_later()
                self._reported.append(client)

    def _take_messages(self) -> list[tuple[LoopClient, list[Any]]]:
        received = []
        for client in self._clients.values():
            if isinstance(client.request, Receive):
                messages = client.request.mailbox.take()
                if messages or time.monotonic() >= client.request.until:
                    received.append((client, messages))
        return received

    def _wait(self, patience: float | None) -> None:
        requests = (client.request for client in self._clients.values())
        seconds = min(one.until for one in requests if isinstance(one, Receive)) - time.monotonic()
        self.wake.wait(max(0.0, seconds if patience is None else min(seconds, patience)))

    def _encode(self, encodes: list[tuple[LoopClient, Encode]]) -> list[LoopClient]:
        """Answer the first request, with those that one pass of a vision tower answers, too."""
        client, first = encodes[0]
        others = first.partners([request for _, request in encodes])
        begun, failed = self.now(), False
        try:
            first.run_with(others)
            self.synchronise()
        except Exception as error:
            if not others:
                return [self._resume(client, error)]
            failed = True
        if failed:  # outside the except clause, whose error holds the tensors of the pass
            return self._encode(encodes[:1])
        seconds, answered = self.now() - begun, {id(one) for one in (first, *others)}
        for _, request in encodes:
            if id(request) in answered:
                request.seconds = seconds
        return [self._resume(one, request.answer) for one, request in encodes if id(request) in answered]

    def _answer_requests(self, requests: list[tuple[LoopClient, Forward]]) -> list[tuple[LoopClient, object]]:
        """Run one pass over the rows these clips request of one model, or their chains if all requests are chains."""
        chains = [(client, request) for client, request in requests if isinstance(request, Chain)]
        trees = [(client, request) for client, request in requests if isinstance(request, StaticTree)]
        drafted = None
        if len(chains) == len(requests):
            drafted = self._draft_together(chains, _draft_chains)
        elif len(trees) == len(requests):
            drafted = self._draft_together(trees, _draft_trees)
        return self._run_pass(requests) if drafted is None else drafted

    def _run_pass(self, requests: list[tuple[LoopClient, Forward]]) -> list[tuple[LoopClient, object]]:
        """Run one pass; return the clips whose requests it completes, with the answers or errors."""
        engine = requests[0][1].engine
        shared = len(self._clients) > len(requests) or not all([request.splittable for _, request in requests])
        left = min(SHARED, engine.chunk) if shared else engine.chunk
        parts: list[tuple[LoopClient, Forward, list[Any]]] = []
        prompts = prompt_rows = 0
        for client, request in requests:
            if request.splittable and left <= 0:
                continue
            try:
                adds = list(request.parts(left))
            except Exception as error:
                return [(client, error)]  # the others request again
            if request.splittable:
                added = sum(map(len, adds))
                left, prompts, prompt_rows = left - added, prompts + 1, prompt_rows + added
            parts.append((client, request, adds))
        batch = [rows for _, _, adds in parts for rows in adds]
        count = sum(map(len, batch))
        begun, prepared = self.now(), engine.preparing
        try:
            passed = engine.run(batch)
            if prompts:
                self.synchronise()  # nothing is read back for a prompt's first stretches
        except Exception as error:
            if len(parts) == 1:
                return [(parts[0][0], error)]
            passed = None
        if passed is None:  # outside the except clause, whose error holds the tensors of the pass
            return [answer for client, request, _ in parts for answer in self._run_pass([(client, request)])]
        at, answered = 0, list[tuple[LoopClient, object]]()
        for client, request, adds in parts:
            try:
                if request.add_result(passed[at : at + len(adds)]):
                    answered.append((client, request.answer))
            except Exception as error:  # of this clip only: the pass is valid for the others
                answered.append((client, error))
            at += len(adds)
        seconds = self.now() - begun - (engine.preparing - prepared)
        for _, request, _ in parts:
            request.seconds += seconds
        grows = any([request.grows for _, request, _ in parts])
        self.on_pass(PassRecord(parts[0][1].lane, len(parts), count, prompts, prompt_rows, seconds, grows=grows))
        return answered

    def _draft_together(
        self, requests: list[tuple[LoopClient, D]], draft: Callable[[list[D]], _Drafted | None]
    ) -> list[tuple[LoopClient, object]] | None:
        """Draft for all clips in one call; return None if the host has to see each pass."""
        engine = requests[0][1].engine
        begun, prepared = self.now(), engine.preparing
        try:
            if (drafted := draft([request for _, request in requests])) is None:
                return None
        except Exception as error:
            if len(requests) == 1:
                return [(requests[0][0], error)]
            drafted = None
        if drafted is None:  # outside the except clause, whose error holds the tensors of the pass
            return [answer for request in requests for answer in self._answer_requests([request])]
        seconds = self.now() - begun - (engine.preparing - prepared)
        for _, request in requests:
            request.seconds += seconds
        steps, lane = drafted.steps, requests[0][1].lane
        grows = isinstance(requests[0][1], StaticTree)
        self.on_pass(PassRecord(lane, drafted.clips, drafted.rows, 0, 0, seconds / steps, steps, grows=grows))
        return [(client, answer) for (client, _), answer in zip(requests, drafted.answers, strict=True)]

    def _resume(self, client: LoopClient, answer: object = None) -> LoopClient:
        """Run a decoding to its next request or its end; an exception as ``answer`` is raised in it.

        A decoding that was interrupted has no request, and waits to be dropped.
        """
        assert client.steps is not None
        if client.request is not None:
            client.trace.waited += self.now() - client.since - client.request.seconds
        client.request = None
        if client.later is not None:
            client.run_later()
        if client.failed is not None:
            answer, client.failed = client.failed, None
        watch = self.watch
        try:
            watch.running = client, time.monotonic()
            try:
                if isinstance(answer, Exception):
                    client.request = client.steps.throw(answer)
                else:
                    client.request = client.steps.send(answer)
            except StopIteration as end:
                client.over, client.value = True, end.value
            except Exception as error:
                client.over, client.error = True, error
            watch.running = None
            if watch.thrown:
                watch.settle()
        except StepInterrupt:
            watch.running = None
            watch.settle()
            if client.request is None and not client.over:
                return client
        if not (client.over or isinstance(client.request, (Forward, Encode, Receive))):
            client.over, client.error = True, TypeError(f"{client.request!r}, yielded, is no engine request")
            client.steps.close()
        client.since = self.now()
        if client.later is not None:
            self._leaving.append(client)
        if isinstance(client.request, Receive):
            client.request.mailbox.wake = self.wake
        if client.over and self._clients.get(client.key) is client:
            del self._clients[client.key]
        return client


class _Drafted(NamedTuple):
    """Drafts of several clips by one call: their answers, its passes, and the mean of clips and rows in each."""

    answers: list[list[int]]
    steps: int
    clips: float
    rows: float


def _draft_chains(chains: list[Chain]) -> _Drafted | None:
    rules, states = [chain.rule for chain in chains], [chain.states for chain in chains] if chains[0].states else None
    batch = [(chain.span, chain.token_ids, chain.gamma) for chain in chains]
    engine = chains[0].engine
    if not any(rules):
        tokens = engine.greedy(batch, states)
    elif (drawn := engine.chain(batch, [rule or ChainRule() for rule in rules], states)) is None:
        return None
    else:
        tokens = [tokens for tokens, _ in drawn]
        for chain, (_, probs) in zip(chains, drawn, strict=True):
            chain.probs += () if probs is None else (probs,)
    gammas = [chain.gamma for chain in chains]
    steps = max(gammas)
    answers = [[*chain.answer, *added] for chain, added in zip(chains, tokens, strict=True)]
    return _Drafted(answers, steps, sum(gammas) / steps, sum(gammas) / steps)


def _draft_trees(trees: list[StaticTree]) -> _Drafted | None:
    if (answers := trees[0].engine.trees(trees)) is None:
        return None
    levels = [len(tree.levels) for tree in trees]
    rows = sum(len(tree.token_ids) + sum(map(len, tree.levels[1:])) for tree in trees)
    return _Drafted(answers, max(levels), sum(levels) / max(levels), rows / max(levels))
