"""Target and draft of many clips in virtual time: the real schedule, loops, process book-keeping and draft's worker.

Simulated are models, clock, pipe and process: engines take time instead of computing, and while the target's is at
work the draft goes on. Everything follows from a seed.
"""

import heapq
import itertools
import random
import threading
from collections import deque
from functools import partial
from types import SimpleNamespace

import numpy as np
import torch

from tests.decoding.parallel_toys import EOS, ToyText
from vidspec.acceptance.base import Verdict
from vidspec.config import profiles
from vidspec.decoding.limits import StoppingRules
from vidspec.decoding.loop import Loop, LoopClient
from vidspec.decoding.protocol import WorkerFailed as Lost
from vidspec.decoding.schedules.parallel import Parallel
from vidspec.decoding.sequence import Sequence
from vidspec.decoding.workers import draft as drafts
from vidspec.decoding.workers import process as processes
from vidspec.decoding.workers import run as runs
from vidspec.draft_length.costs import PassCosts
from vidspec.engine.history import TokenBans
from vidspec.engine.requests import Encode, Forward, PrefillPrompt
from vidspec.engine.rows import PassResult, Rows
from vidspec.events.events import Restarted
from vidspec.events.trace import Trace
from vidspec.events.wake import WakeEvent
from vidspec.models.placement import Placement
from vidspec.models.request import CaptionRequest

CPU = torch.device("cpu")
PROFILE = profiles.load("parallelvlm", {"workers.timeout": 60.0}, env={})


class Deadlock(AssertionError):
    """Somebody waits, and nothing is on its way."""


class VirtualTime(WakeEvent):
    """The clock, and what is going to happen. As a wake event: to wait is to let the next thing happen."""

    def __init__(self, rng):
        super().__init__()
        self.rng, self.now = rng, 0.0
        self._events, self._count = [], 0

    def at(self, time, happen, behind=(0.0, 0.0)):
        """When it happens; of things at the same time any may be first, but for those it must come ``behind``."""
        self._count += 1
        moment = max((time, self.rng.random()), behind)
        heapq.heappush(self._events, (*moment, self._count, happen))
        return moment

    def step(self):
        self.now, _, _, happen = heapq.heappop(self._events)
        happen()

    def advance(self, seconds):
        until = self.now + seconds
        while self._events and self._events[0][0] <= until:
            self.step()
        self.now = until

    def drain(self):
        while self._events:
            self.step()

    def wait(self, timeout):
        if not self._events:
            raise Deadlock("nothing is on its way")
        self.step()


class Span:
    """A cache: how long the prompt in it is, and the tokens behind it."""

    offset = 0

    def __init__(self, text):
        self.text, self.prompt, self.tokens = text, 0, []

    @property
    def length(self):
        return self.prompt + len(self.tokens)

    def rollback(self, length):
        assert self.prompt <= length <= self.length
        del self.tokens[length - self.prompt :]

    def gather(self, start, kept):
        """Keep the first half of a prompt and all tokens behind it."""
        half = self.prompt // 2
        assert start == 0 and kept == [*range(half), *range(self.prompt, self.length)]
        assert self.offset == self.prompt - half, "positions move, or it is pruned twice"
        self.prompt = half


class Stretch:
    """Rows of a prompt."""

    def __init__(self, reading, most):
        self.reading, self.count = reading, min(most, reading.left)

    def __len__(self):
        return self.count


class TimedPrefill:
    """Prefill of a prompt in virtual time."""

    def __init__(self, prompt):
        self.prompt, self.left, self.span = prompt, prompt.length, Span(prompt.text)

    def rows(self, most):
        self.now = Stretch(self, most)
        return self.now

    def add_result(self, passed):
        self.left -= len(self.now)
        self.span.prompt += len(self.now)
        if self.left:
            return None
        return SimpleNamespace(span=self.span, logits=Token(self.prompt.text, ()))


class Token:
    """Logits of the draft."""

    def __init__(self, text, prefix):
        self.text, self.prefix = text, prefix

    def argmax(self):
        return self.text.propose(self.prefix)


class TimedModel:
    device, bans = CPU, TokenBans()


class TimedEngine:
    """A model that takes time: ``took`` is given what each pass costs; ``passes`` counts them."""

    chunk, preparing = 900, 0.0

    def __init__(self, took):
        self.took, self.passes = took, 0
        self.model = TimedModel()

    def start_prefill(self, prompt, room, taps=None, *, states=False, cached=None):
        return TimedPrefill(prompt)

    def run(self, batch):
        assert batch and all(len(rows) for rows in batch)
        self.passes += 1
        self.took(batch)
        return [None if isinstance(rows, Stretch) else self._read(rows.span, rows.token_ids) for rows in batch]

    def check(self, passed):
        pass  # texts, not logits

    def greedy(self, batch, states=None):
        assert all(gamma == 1 for _, _, gamma in batch)
        passed = self.run([Rows(span, token_ids) for span, token_ids, _ in batch])
        return [[one.logits[-1].argmax()] for one in passed]

    def _read(self, span, token_ids):
        span.tokens += token_ids
        token = Token(span.text, tuple(span.tokens))
        return PassResult([token], [token], chosen=[token.argmax()])


class TargetSide:
    """Chooses by a text instead of a model; asks for the passes that a model would take."""

    prompt = SimpleNamespace(prefix=SimpleNamespace(visual=()), prefilled=lambda profile, elapsed: "Prefilled")

    def __init__(self, engine, text, length, kept):
        self.engine, self.length, self.kept = engine, length, kept
        self.text, self.emitted = text, []

    def answer(self, order, publish):
        if not order.round:
            self.text.publish = (lambda: publish((0, 2))) if self.kept else lambda: None
            read = yield PrefillPrompt(self.engine, SimpleNamespace(text=self.text, length=self.length), 9)
            self.text.publish()  # has come by now
            self.span, self.emitted = read.span, [self.text.choose(())]
            return Verdict((), self.emitted[0])
        assert order.prefix == len(self.emitted)
        passes = self.engine.passes
        yield Forward(self.engine, [Rows(self.span, [self.emitted[-1], *order.window])])
        assert self.engine.passes == passes + 1, "a pass has left out who waited"
        accepted, token = 0, self.text.choose(self.emitted)
        while accepted < len(order.window) and token == order.window[accepted]:
            self.emitted.append(token)
            accepted += 1
            token = self.text.choose(self.emitted)
        self.span.rollback(self.length + len(self.emitted))
        self.emitted.append(token)
        return Verdict.chain(accepted, token, round=order.round, seconds=1.0)


class DraftClip(drafts.DraftClip):
    """The real one, but for what it sees and reads."""

    def __init__(self, number, order, engine, emit):
        LoopClient.__init__(self, number, trace=Trace())
        self.engine, self.emit = engine, emit
        self._kind = self
        rows, release = (lambda prefix: torch.arange(prefix.length // 2)), (lambda: None)
        profile = SimpleNamespace(generate=SimpleNamespace(penalties={}, grammar_schema=None))
        self.context = SimpleNamespace(read=self.prefill, rows=rows, release=release, profile=profile)
        self.text, self.length, self.steps_of_look = order.request.prompt
        self._encode_now, self._text, self._kept, self._prefix = order.eager, None, deque(), None
        self._eos, self._epoch, self._until = order.eos, 0, 0

    def encode(self, context):
        while self.steps_of_look:
            yield Encode(lambda: self.engine.took(()), "draft")
            self.steps_of_look -= 1

    def prefix(self, context):
        yield from self.encode(context)
        outline = SimpleNamespace(length=self.length)
        return SimpleNamespace(text=self.text, length=self.length, token_ids=None, outline=lambda: outline)

    def prefill(self, engine, prefix):
        self.reading = PrefillPrompt(engine, prefix, 9, lane="draft")
        return (yield self.reading)


class Process(processes.DraftProcess):
    """The real book-keeping; behind the pipe the real worker, in virtual time."""

    def __init__(self, case, where, threads):
        case.processes.append(self)
        self.process = SimpleNamespace(alive=True, end=lambda: None, join=lambda: None, silent_s=lambda: 0.0)
        self._reader = self.process
        self._numbers, self._clips, self._failure = itertools.count(1), {}, None
        self._lock, self._ready = threading.Lock(), threading.Event()
        self.world, self.costs, self.dead, self.working = case.world, case.costs, False, False
        self.engine = TimedEngine(self._took)
        self.worker = drafts.DraftWorker(self.engine, lambda message: self._saying.append(message))
        self._inbox, self._saying, self._last = deque(), [], {}

    def wait_until_loaded(self, timeout, silence):
        return "loaded"

    def _way(self, way, happen):
        """Messages of one way do not overtake each other."""
        arrival = self.world.now + self.costs.latency()
        behind = self._last.get(way, (0.0, 0.0))
        self._last[way] = self.world.at(arrival, lambda: None if self.dead else happen(), behind)

    def send(self, clip, message):
        self._way("in", lambda: self._arrived(clip, message))

    def _arrived(self, clip, message):
        self._inbox.append((clip, message))
        self._on()

    def _on(self):
        """Between two passes: all messages, then the next pass."""
        if self.working or self.dead:
            return
        while self._inbox:
            self.worker.take(*self._inbox.popleft())
        self._speak()
        if self.worker.busy:
            self._spent = 0.0
            self.worker.turn()
            self.working = True
            self.world.at(self.world.now + self._spent, self._passed)
        else:
            assert all(clip.read for clip in self.worker._clips.values() if hasattr(clip.context, "tokens")), (
                "told to, and idle"
            )

    def _passed(self):
        self.working = False
        if not self.dead:
            self._speak()
            self._on()

    def _speak(self):
        for message in self._saying:
            self._way("out", lambda message=message: self.dispatch(*message))
        self._saying.clear()

    def _took(self, batch):
        """A pass has rows of each clip that proposes, and of no other."""
        self._spent += self.costs.draft()
        clips = self.worker._clips.values()
        proposing = {id(clip._text.span) for clip in clips if clip._is_proposing and clip._text.tokens}
        tokens = [rows for rows in batch if isinstance(rows, Rows)]
        assert not batch or {id(rows.span) for rows in tokens} == proposing
        assert all(rows.token_ids for rows in tokens)
        reading = {id(clip.reading.reading) for clip in clips if hasattr(clip, "reading")}
        assert {id(rows.reading) for rows in batch if isinstance(rows, Stretch)} <= reading, "of a clip that is over"

    def die(self, after):
        if not self.dead:
            self.dead = True
            self.world.at(self.world.now + after, lambda: self.fail(Lost("exit code -9", lost=True)))


def enter(monkeypatch):
    """Put the parts of this module in the place of what computes, sleeps or starts processes."""
    monkeypatch.setattr(drafts, "DraftClip", DraftClip)
    monkeypatch.setattr(runs, "TargetSide", lambda sequence: sequence.side)
    monkeypatch.setattr(processes, "DraftProcess", Process)


class TextSequence(Sequence):
    """The real one, but for the target's side and the text, which no model has."""

    def __init__(self, request, setup, make_side, text):
        super().__init__(request, setup)
        self.make_side, self.said = make_side, text

    def attempt(self):
        self.said.asked.clear()
        self.side = self.make_side()
        self.rounds, self.token_ids = [], []
        self.prefilled, self.released = None, None


class BatchScenario:
    """So many clips at once, and perhaps a draft that dies."""

    def __init__(self, seed, *, kill=False):
        self.rng = rng = random.Random(seed)
        self.world = VirtualTime(rng)
        self.kills, self.processes = int(kill), []
        self.drops = rng.choice([0.0, 0.0, 0.02])
        whole = rng.random() < 0.4  # whole numbers: many events at the same instant

        def some(low, high):
            value = rng.uniform(low, high)
            return float(round(value)) if whole else value

        slow, step, way = some(0, 9), some(0, 3), rng.choice([0.0, some(0, 3)])
        vary = (lambda value: value) if whole else (lambda value: value * rng.random())
        self.costs = SimpleNamespace(draft=lambda: vary(step), latency=lambda: vary(way))
        self.verify = lambda: vary(slow)
        self.target = TimedEngine(self._took)
        self.prompts = rng.choice([8, 500, 2500])
        self.count = min(rng.randint(1, 8), rng.randint(1, 8))
        self.slot = processes.DraftProcessSlot(self, Placement(CPU, torch.float32, "sdpa"), PROFILE)
        self.slot.target, self.slot._checked = None, (None, "loaded")

    def _took(self, batch):
        """A pass of the target; what pruning needs of a prompt is there in its middle."""
        seconds = self.verify()
        self.world.advance(seconds / 2)
        for rows in batch:
            if isinstance(rows, Stretch) and len(rows) == rows.reading.left:
                text = rows.reading.prompt.text
                text.publish()
                text.publish = lambda: None
        self.world.advance(seconds / 2)

    def clip(self, number):
        """One clip's text, and its sequence."""
        rng = self.rng
        text = ToyText(rng.random(), rng.choice([0.0, 0.6, 0.9, 1.0]), rng.choice([1, 2, 5]), rng.choice([0.0, 0.2]))
        kept = rng.random() < 0.5
        schedule = SimpleNamespace(
            prefill=rng.choice(["parallel", "sequential"]), startup=rng.choice(["fit", "window"])
        )
        setup = SimpleNamespace(
            costs=PassCosts(),
            acceptance="exact",
            profile=SimpleNamespace(
                schedule=schedule,
                draft=SimpleNamespace(gamma=rng.choice([1, 2, 4]), kind="model", has_video=True),
                workers=PROFILE.workers,
                generate=SimpleNamespace(seed=0),
            ),
            limits=StoppingRules(rng.choice([1, 3, 8, 16]), frozenset({EOS})),
            pruner="attention" if kept else None,
            late=kept and schedule.prefill == "parallel" and rng.random() < 0.5,
            room=9,
            slot=self.slot,
        )
        length, looks = rng.randint(1, self.prompts), rng.randrange(3)
        frames = SimpleNamespace(frames=np.zeros((1, 1, 1, 3), np.uint8), timestamps=np.zeros(1), sound=None)
        request = CaptionRequest("clip", frames, (text, rng.randint(1, self.prompts), looks), key=number)
        sequence = TextSequence(request, setup, partial(TargetSide, self.target, text, length, kept), text)
        sequence.attempt()
        sequence.steps = Parallel.run(sequence)
        return text, setup.limits, sequence

    def run(self):
        """Rounds of each clip; how many were begun again."""
        loop = Loop(lambda: self.world.now, wake=self.world)
        clips = {}
        if self.kills:
            self.world.at(self.rng.uniform(0, 30), lambda: self.processes[-1].die(self.costs.latency()))
        turns = 0
        waiting = list(range(self.count))
        while waiting or len(loop):
            if waiting and (not len(loop) or self.rng.random() < 0.5):
                number = waiting.pop()
                clips[number] = self.clip(number)
                loop.begin(clips[number][2])
            if (flying := [number for number in clips if number in loop]) and self.rng.random() < self.drops:
                number = self.rng.choice(flying)
                loop.drop(number)  # nobody wants it any more
                del clips[number]
            list(loop.turn())
            turns += 1
            assert turns < 3000, "this takes for ever"
            for _, _, sequence in clips.values():
                if sequence.error is not None:
                    raise sequence.error
        self.world.drain()
        for text, limits, sequence in clips.values():
            check(text, limits, sequence.rounds)
        events = [event for _, _, sequence in clips.values() for event in sequence.events]
        again = sum(isinstance(event, Restarted) for event in events)
        assert len(self.processes) <= 1 + self.kills, "one for all, not one for each"
        last = self.processes[-1]
        if not last.dead:
            assert not last.worker.busy and not last.worker._clips, "a clip was left behind"
            assert not last._clips
        return clips, again


def check(text, limits, rounds):
    """The text is the greedy one, each token was chosen once, and the counters add up."""
    emitted = [token for one in rounds for token in one.token_ids]
    assert emitted == text.reference(limits.max_new_tokens)
    assert text.asked == [tuple(emitted[:i]) for i in range(len(emitted))]
    assert [one.mode == "prefill" for one in rounds] == [True] + [False] * (len(rounds) - 1)
    for one in rounds:
        assert len(one.origins) == len(one.token_ids) >= 1
        assert one.origins.count("draft") == one.accepted
        assert [other.at for other in one.rejected] == [one.accepted] * one.origins.count("correction")
        assert all(one.token_ids[other.at] != other.token for other in one.rejected)
        assert one.drafted == one.accepted + one.wasted and 0 <= one.aborted <= one.wasted
